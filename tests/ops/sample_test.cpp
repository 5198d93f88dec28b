// sample: greedy, each filter alone and together, the distribution of draws, and refusals.
#include "rarefy/ops/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "rarefy/base/check.h"
#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::map<std::int32_t, double> shares(const std::vector<float>& logits, const SamplingParams& params,
                                      int draws = 20000) {
  std::map<std::int32_t, double> count;
  for (int i = 0; i < draws; ++i) count[sample(logits, params, static_cast<std::uint64_t>(i))] += 1.0 / draws;
  return count;
}

// Five tokens of probability 0.4, 0.3, 0.15, 0.1, 0.05, not in order of id.
const std::vector<float> kLogits{std::log(0.1f), std::log(0.4f), std::log(0.05f), std::log(0.3f), std::log(0.15f)};

TEST(Sample, GreedyTakesTheLowestOfEqualIds) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, -kInf}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-kInf, -5}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{2, 7, 7}, {.temperature = 1, .top_k = 1}, 0), 1);
  EXPECT_EQ(sample(kLogits, {.temperature = 1e-30f}, 3), 1);
}

// With 20,000 draws a share's standard deviation is at most 0.0035: 0.015 is above four of them.
TEST(Sample, DrawsFollowTheSoftmax) {
  auto got = shares(kLogits, {.temperature = 1, .seed = 7});
  EXPECT_NEAR(got[1], 0.4, 0.015);
  EXPECT_NEAR(got[3], 0.3, 0.015);
  EXPECT_NEAR(got[4], 0.15, 0.015);
  EXPECT_NEAR(got[0], 0.1, 0.015);
  EXPECT_NEAR(got[2], 0.05, 0.015);
  got = shares(kLogits, {.temperature = 0.5f, .seed = 8});
  EXPECT_NEAR(got[1], 0.16 / 0.285, 0.015);
}

TEST(Sample, FiltersKeepTheBest) {
  auto got = shares(kLogits, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(got.size(), 2u);
  EXPECT_NEAR(got[1], 4.0 / 7, 0.015);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_k = 99}).size(), 5u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_p = 0.65f}).size(), 2u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_p = 0.75f}).size(), 3u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_p = 1e-6f}).size(), 1u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .min_p = 0.3f}).size(), 3u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .min_p = 1}).size(), 1u);
  // top-p is measured on what top-k left: 0.4 of 0.7 is below 0.6, so both stay.
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.6f}).size(), 2u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.55f}).size(), 1u);
  EXPECT_EQ(shares(kLogits, {.temperature = 1, .top_k = 4, .top_p = 0.99f, .min_p = 0.5f}).size(), 2u);
}

TEST(Sample, TiesAtTheCutTakeTheLowerIds) {
  const std::vector<float> equal(10, 1.5f);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1, .top_k = 3}, SamplingParams{.temperature = 1, .top_p = 0.25f}}) {
    auto got = shares(equal, params, 500);
    EXPECT_EQ(got.size(), 3u);
    EXPECT_EQ(got.rbegin()->first, 2);
  }
}

TEST(Sample, FiltersMatchSortingTheWholeVocabulary) {
  std::vector<float> logits = random_floats(3000, 5, 3);
  for (std::size_t i = 0; i < logits.size(); i += 17) logits[i] = -kInf;
  std::vector<std::int32_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  const auto at = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return at(a) > at(b); });
  for (const auto& [top_k, top_p, min_p] :
       {std::tuple{0, 0.5f, 0.0f}, {40, 0.9f, 0.0f}, {0, 1.0f, 0.05f}, {100, 0.95f, 0.02f}}) {
    const SamplingParams params{.temperature = 0.7f, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = 11};
    std::size_t kept = top_k > 0 ? static_cast<std::size_t>(top_k) : order.size();
    std::vector<double> p(kept);
    double total = 0;
    for (std::size_t i = 0; i < kept; ++i) total += p[i] = std::exp((at(order[i]) - at(order[0])) / 0.7f);
    double mass = 0;
    std::size_t nucleus = 0;
    while (nucleus < kept && mass < top_p * total) mass += p[nucleus++];
    while (nucleus > 1 && p[nucleus - 1] < min_p) --nucleus;
    for (const auto& [id, share] : shares(logits, params, 4000)) {
      const auto rank = static_cast<std::size_t>(std::find(order.begin(), order.end(), id) - order.begin());
      EXPECT_LT(rank, nucleus);
      EXPECT_GT(at(id), -kInf);
    }
  }
}

TEST(Sample, DrawsAreDeterministicAndDifferBetweenSeedsAndSteps) {
  const std::vector<float> flat(1000, 0.0f);
  const SamplingParams a{.temperature = 1, .seed = 1}, b{.temperature = 1, .seed = 2};
  int equal_seeds = 0, equal_steps = 0;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    EXPECT_EQ(sample(flat, a, step), sample(flat, a, step));
    equal_seeds += sample(flat, a, step) == sample(flat, b, step);
    equal_steps += sample(flat, a, step) == sample(flat, a, step + 1);
  }
  EXPECT_LT(equal_seeds, 10);
  EXPECT_LT(equal_steps, 10);
}

TEST(Sample, RefusesBadLogits) {
  for (const std::vector<float>& bad : {std::vector<float>{}, {1, NAN}, {NAN, 1}, {-kInf, -kInf}, {kInf, 1}})
    for (const float temperature : {0.0f, 1.0f}) try {
        sample(bad, {.temperature = temperature}, 0);
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.id(), "E_LOGITS");
        EXPECT_EQ(e.code(), ErrorCode::BadInput);
      }
}

TEST(Sample, RefusesParametersOutOfRange) {
  for (const SamplingParams& bad : {SamplingParams{.temperature = -1},
                                    {.temperature = NAN},
                                    {.temperature = 101},
                                    {.top_k = -1},
                                    {.top_p = 0},
                                    {.top_p = 1.1f},
                                    {.top_p = NAN},
                                    {.min_p = -0.1f},
                                    {.min_p = 1.5f},
                                    {.min_p = kInf}})
    EXPECT_THROW(check_sampling(bad), Error);
  check_sampling({});
  check_sampling({.temperature = 100, .top_k = 1 << 30, .top_p = 1e-9f, .min_p = 1});
}

}  // namespace
}  // namespace rarefy::ops
