// silu_mul against a float64 loop, extreme gates included.
#include "rarefy/ops/silu_mul.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

TEST(SiluMul, MatchesFloat64AlsoInPlace) {
  Stream stream;
  for (const std::int64_t rows : {0, 1, 2, 33})
    for (const std::int64_t dim : {1, 5, 64, 1537}) {
      std::vector<float> gate = random_floats(rows * dim, 1, 10), up = random_floats(rows * dim, 2);
      const std::vector<float> before = gate;
      const TensorView g = make_view(gate.data(), {rows, dim});
      silu_mul(g, make_view(up.data(), {rows, dim}), g, stream);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const double expected = before[i] / (1 + std::exp(-static_cast<double>(before[i]))) * up[i];
        ASSERT_NEAR(gate[i], expected, 1e-6 * std::abs(expected) + 1e-30) << before[i];
      }
    }
}

TEST(SiluMul, ExtremeGates) {
  Stream stream;
  std::vector<float> gate{0, -0.0f, 1e30f, -87, -89, -1000, -1e30f, NAN, 1e-40f}, up(9, 1.0f), y(9);
  silu_mul(make_view(gate.data(), {1, 9}), make_view(up.data(), {1, 9}), make_view(y.data(), {1, 9}), stream);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 1e30f);
  for (int i = 3; i < 6; ++i) EXPECT_NEAR(y[static_cast<std::size_t>(i)], 0, 1e-34);
  EXPECT_TRUE(std::isfinite(y[6]));
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_NEAR(y[8], 0.5e-40, 1e-42);
}

TEST(SiluMul, RefusesShapesThatDoNotFit) {
  float x[6] = {};
  Stream stream;
  const TensorView v = make_view(x, {2, 3});
  EXPECT_THROW(silu_mul(v, make_view(x, {3, 2}), v, stream), Error);
  EXPECT_THROW(silu_mul(v, v, make_view(x, {6}), stream), Error);
  EXPECT_THROW(silu_mul(make_view(x, {6}), v, v, stream), Error);
}

}  // namespace
}  // namespace rarefy::ops
