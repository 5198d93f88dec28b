// rms_norm against literal values and a float64 loop.
#include "rarefy/ops/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

TEST(RmsNorm, LiteralCase) {
  float x[] = {3, 4, 0, 0};
  float weight[] = {1, 2};
  float y[4];
  Stream stream;
  rms_norm(make_view(x, {2, 2}), make_view(weight, {2}), 0.5f, make_view(y, {2, 2}), stream);
  EXPECT_FLOAT_EQ(y[0], 3 / std::sqrt(13.0f));
  EXPECT_FLOAT_EQ(y[1], 8 / std::sqrt(13.0f));
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 0);
}

TEST(RmsNorm, MatchesFloat64AlsoInPlace) {
  Stream stream;
  for (const std::int64_t rows : {0, 1, 2, 31, 33})
    for (const std::int64_t dim : {1, 7, 64, 576, 1000}) {
      std::vector<float> x = random_floats(rows * dim, 1, 3), weight = random_floats(dim, 2);
      const std::vector<float> before = x;
      const TensorView view = make_view(x.data(), {rows, dim});
      rms_norm(view, make_view(weight.data(), {dim}), 1e-5f, view, stream);
      for (std::int64_t i = 0; i < rows; ++i) {
        const float* in = before.data() + i * dim;
        double sum = 0;
        for (std::int64_t k = 0; k < dim; ++k) sum += static_cast<double>(in[k]) * in[k];
        const double scale = 1 / std::sqrt(sum / static_cast<double>(dim) + 1e-5);
        for (std::int64_t k = 0; k < dim; ++k) {
          const double expected = in[k] * scale * weight[static_cast<std::size_t>(k)];
          // Sums of up to 1000 squares in float32, in at least eight lanes.
          ASSERT_NEAR(x[static_cast<std::size_t>(i * dim + k)], expected, 2e-6 * std::abs(expected) + 1e-9);
        }
      }
    }
}

TEST(RmsNorm, RefusesShapesThatDoNotFit) {
  float x[6] = {}, weight[3] = {};
  Stream stream;
  const TensorView xv = make_view(x, {2, 3});
  EXPECT_THROW(rms_norm(make_view(x, {6}), make_view(weight, {3}), 0, xv, stream), Error);
  EXPECT_THROW(rms_norm(xv, make_view(weight, {2}), 0, xv, stream), Error);
  EXPECT_THROW(rms_norm(xv, make_view(weight, {3}), 0, make_view(x, {3, 2}), stream), Error);
}

}  // namespace
}  // namespace rarefy::ops
