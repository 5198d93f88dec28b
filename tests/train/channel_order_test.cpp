// Channel orders are permutations, dealt as pruning.md says, and swaps only lower what is dropped.
#include "rarefy/train/channel_order.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "rarefy/base/check.h"

namespace rarefy::train {
namespace {

TEST(DealChannels, BackAndForthOverTheGroups) {
  // Energies 8 .. 1 of channels 0 .. 7: ranks 0, 1 | 3, 2 | 4, 5 | 7, 6 go to the two groups.
  const std::vector<double> energy = {8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(deal_channels(energy), (std::vector<std::int32_t>{0, 3, 4, 7, 1, 2, 5, 6}));
  EXPECT_THROW(deal_channels(std::vector<double>(6)), Error);
}

RC_GTEST_PROP(ChannelOrder, IsAPermutationAndSwapsDoNotHurt, (unsigned seed)) {
  constexpr std::size_t kDim = 64, kRows = 40;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> strength(kDim), samples(kDim * kRows);
  for (float& s : strength) s = std::exp(normal(random));
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = normal(random) * strength[i % kDim];
  std::vector<double> energy(kDim);
  for (std::size_t i = 0; i < samples.size(); ++i) energy[i % kDim] += samples[i] * samples[i];
  std::vector<std::int32_t> order = deal_channels(energy);
  const double dealt = dropped_energy(order, samples);
  improve_order(order, samples, 500, seed);
  RC_ASSERT(dropped_energy(order, samples) <= dealt * (1 + 1e-6));
  std::vector<std::int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < kDim; ++i) RC_ASSERT(sorted[i] == static_cast<std::int32_t>(i));
}

TEST(ChannelOrder, DroppedEnergyIsTheTwoSmallestOfEachGroup) {
  const std::vector<float> row = {1, -5, 3, 2, 4, 4, 0, 1};
  const std::vector<std::int32_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_DOUBLE_EQ(dropped_energy(order, row), 1 + 4 + 0 + 1);
}

}  // namespace
}  // namespace rarefy::train
