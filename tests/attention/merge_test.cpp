// Merging of partials: no part, one part bit for bit, many parts against the sum over all keys.
#include "rarefy/attention/merge.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace rarefy::attention {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

TEST(Merge, NoKeyAnywhere) {
  const std::vector<float> o(8, 0.0f), lse = {kNone, kNone};
  std::vector<float> out(4, 5.0f);
  float out_lse = 0;
  merge({o.data(), lse.data(), 4, 1, 2}, 4, out.data(), &out_lse);
  EXPECT_EQ(out, std::vector<float>(4, 0.0f));
  EXPECT_EQ(out_lse, kNone);
}

TEST(Merge, OnePartWithKeysComesBackBitForBit) {
  const std::vector<float> o = {0, 0, 0.1f, -7e-20f, 0, 0}, lse = {kNone, -88.25f, kNone};
  std::vector<float> out(2);
  float out_lse = 0;
  merge({o.data(), lse.data(), 2, 1, 3}, 2, out.data(), &out_lse);
  EXPECT_EQ(out, (std::vector<float>{0.1f, -7e-20f}));
  EXPECT_EQ(out_lse, -88.25f);
}

TEST(Merge, NanReachesTheOutput) {
  const std::vector<float> o = {1, std::nanf("")}, lse = {0, std::nanf("")};
  float out = 0, out_lse = 0;
  merge({o.data(), lse.data(), 1, 1, 2}, 1, &out, &out_lse);
  EXPECT_TRUE(std::isnan(out));
  EXPECT_TRUE(std::isnan(out_lse));
}

RC_GTEST_PROP(Merge, EqualsTheWeightedMean, ()) {
  const auto parts = *rc::gen::inRange(1, 20);
  std::vector<float> o, lse;
  for (int i = 0; i < parts; ++i) {
    o.push_back(static_cast<float>(*rc::gen::inRange(-1000, 1000)) * 0.01f);
    lse.push_back(static_cast<float>(*rc::gen::inRange(-5000, 5000)) * 0.01f);
  }
  double max = kNone, sum = 0, mean = 0;
  for (const float x : lse) max = std::max<double>(max, x);
  for (int i = 0; i < parts; ++i) {
    sum += std::exp(lse[i] - max);
    mean += std::exp(lse[i] - max) * o[i];
  }
  float out = 0, out_lse = 0;
  merge({o.data(), lse.data(), 1, 1, parts}, 1, &out, &out_lse);
  RC_ASSERT(std::abs(out - mean / sum) < 2e-5);
  RC_ASSERT(std::abs(out_lse - (max + std::log(sum))) < 2e-5);
}

}  // namespace
}  // namespace rarefy::attention
