// Token weights against float64.
#include "rarefy/cache/token_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace rarefy {
namespace {

TEST(TokenWeights, EqualTheFormula) {
  using format24::kBlock;
  constexpr int kDim = 64, kQueries = 10;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<double> keys(kBlock * kDim);
  std::vector<std::byte> page(static_cast<std::size_t>(format24::dense_page_bytes(kDim)));
  for (int t = 0; t < kBlock; ++t)
    for (int c = 0; c < kDim; ++c) {
      const Half x = from_float<Half>(2 * normal(random));
      keys[static_cast<std::size_t>(t * kDim + c)] = to_float(x);
      std::memcpy(page.data() + format24::dense_offset(t, c), &x, 2);
    }
  std::vector<float> queries(2 * kQueries * kDim);
  for (float& q : queries) q = normal(random);
  std::vector<double> mass(kBlock);
  for (int i = 0; i < 2 * kQueries; ++i) {
    std::vector<double> p(kBlock);
    double sum = 0;
    for (int t = 0; t < kBlock; ++t) {
      double s = 0;
      for (int c = 0; c < kDim; ++c)
        s += queries[static_cast<std::size_t>(i * kDim + c)] * keys[static_cast<std::size_t>(t * kDim + c)];
      sum += p[static_cast<std::size_t>(t)] = std::exp(s / 8);
    }
    for (int t = 0; t < kBlock; ++t)
      mass[static_cast<std::size_t>(t)] += p[static_cast<std::size_t>(t)] / sum / (2 * kQueries);
  }
  // Two heads whose queries lie side by side, row by row.
  const QuerySet sets[] = {{queries.data(), kQueries, 2 * kDim}, {queries.data() + kDim, kQueries, 2 * kDim}};
  float w[kBlock];
  token_weights(DType::F16, kDim, page.data(), sets, w);
  for (int t = 0; t < kBlock; ++t)
    EXPECT_NEAR(w[t], std::sqrt(std::max(1.0, mass[static_cast<std::size_t>(t)] * kBlock)), 1e-4) << t;
  token_weights(DType::F16, kDim, page.data(), {}, w);
  for (const float x : w) EXPECT_EQ(x, 1.f);
}

}  // namespace
}  // namespace rarefy
