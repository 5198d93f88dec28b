// Simulated quantisation on literal groups.
#include "rarefy/cache/simulated.h"

#include <gtest/gtest.h>

#include <vector>

namespace rarefy {
namespace {

TEST(SimulatedCache, RoundsAsTheBlocksWould) {
  std::vector<float> row(32, 0.f);
  row[0] = 127;
  row[1] = 3.4f;
  row[2] = -2.6f;
  round_as(SimulatedCache::Q8_0, row.data(), 32);
  EXPECT_EQ(row[0], 127);
  EXPECT_EQ(row[1], 3);
  EXPECT_EQ(row[2], -3);
  std::vector<float> four(32, 1.f);
  four[0] = 16;
  four[1] = 8.6f;
  round_as(SimulatedCache::Q4_1, four.data(), 32);
  EXPECT_EQ(four[0], 16);
  EXPECT_EQ(four[1], 9);
  EXPECT_EQ(four[2], 1);
  std::vector<float> flat(32, 2.f), same = flat;
  round_as(SimulatedCache::Q4_1, flat.data(), 32);
  EXPECT_EQ(flat, same);
  round_as(SimulatedCache::None, four.data(), 32);
  EXPECT_EQ(four[1], 9);
}

}  // namespace
}  // namespace rarefy
