// Token weights against float64.
#include "rarefy/cache/token_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
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
  const KeyPage keys_page{page.data(), DType::F16, kDim, kBlock};
  float mass_out[kBlock], w[kBlock];
  expected_attention(keys_page, sets, nullptr, mass_out);
  weights_of(mass_out, 1.f / kBlock, w);
  for (int t = 0; t < kBlock; ++t) {
    EXPECT_NEAR(mass_out[t], mass[static_cast<std::size_t>(t)], 1e-5) << t;
    EXPECT_NEAR(w[t], std::sqrt(std::max(1.0, mass[static_cast<std::size_t>(t)] * kBlock)), 1e-4) << t;
  }
  // With the log-sum-exp over this block alone nothing changes; over the block twice every mass halves.
  std::vector<float> lse(2 * kQueries, -std::numeric_limits<float>::infinity());
  add_log_sums(keys_page, sets, lse.data());
  float again[kBlock];
  expected_attention(keys_page, sets, lse.data(), again);
  for (int t = 0; t < kBlock; ++t) EXPECT_NEAR(again[t], mass_out[t], 1e-6);
  add_log_sums(keys_page, sets, lse.data());
  expected_attention(keys_page, sets, lse.data(), again);
  for (int t = 0; t < kBlock; ++t) EXPECT_NEAR(2 * again[t], mass_out[t], 1e-6);
  // Slots past the end never count, whatever they hold.
  for (std::size_t i = 0; i < page.size() / 2; ++i) {
    const Half nan = {0x7fff};
    std::memcpy(page.data() + format24::dense_offset(static_cast<int>(i) / 64, static_cast<int>(i) % 64), &nan,
                static_cast<int>(i) / 64 >= 40 ? 2 : 0);
  }
  expected_attention({page.data(), DType::F16, kDim, 40}, sets, nullptr, mass_out);
  float sum = 0;
  for (int t = 0; t < kBlock; ++t) sum += mass_out[t];
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(mass_out[40], 0);
  expected_attention(keys_page, {}, nullptr, mass_out);
  weights_of(mass_out, 1.f / kBlock, w);
  for (const float x : w) EXPECT_EQ(x, 1.f);
}

}  // namespace
}  // namespace rarefy
