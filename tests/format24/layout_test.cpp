// The page format against its description (DESIGN 4, docs/format24.md), written down here a second time.
#include "rarefy/format24/layout.h"

#include <gtest/gtest.h>

#include <set>

namespace rarefy::format24 {
namespace {

TEST(Layout, PageSizes) {
  EXPECT_EQ(dense_page_bytes(128), 16384);
  EXPECT_EQ(sparse_page_bytes(128), 9216);
  EXPECT_EQ(dense_page_bytes(64), 8192);
  EXPECT_EQ(sparse_page_bytes(64), 4608);
}

TEST(Layout, EveryPlaceIsUsedOnce) {
  for (const int head_dim : {64, 128}) {
    std::set<int> dense, k, v;
    for (int token = 0; token < kBlock; ++token)
      for (int channel = 0; channel < head_dim; ++channel) dense.insert(dense_offset(token, channel));
    for (int token = 0; token < kBlock; ++token)
      for (int j = 0; j < head_dim / 2; ++j) k.insert(k_nonzero_offset(token, j, head_dim));
    for (int row = 0; row < kBlock / 2; ++row)
      for (int channel = 0; channel < head_dim; ++channel) v.insert(v_nonzero_offset(row, channel));
    EXPECT_EQ(static_cast<std::int64_t>(dense.size()) * 2, dense_page_bytes(head_dim));
    EXPECT_EQ(*dense.rbegin(), dense_page_bytes(head_dim) - 2);
    for (const auto* offsets : {&k, &v}) {
      EXPECT_EQ(static_cast<std::int64_t>(offsets->size()) * 2, nonzero_bytes(head_dim));
      EXPECT_EQ(*offsets->rbegin(), nonzero_bytes(head_dim) - 2);
    }
  }
}

TEST(Layout, EightChannelsStayTogether) {
  for (int token = 0; token < kBlock; ++token)
    for (int channel = 0; channel < 128; channel += 8)
      for (int i = 1; i < 8; ++i) EXPECT_EQ(dense_offset(token, channel + i), dense_offset(token, channel) + 2 * i);
}

TEST(Layout, SwizzleOfTheHardware) {
  // 128 B rows: address bits 4-6 are XORed with bits 7-9; 64 B rows: bits 4-5 with bits 7-8.
  for (int row = 0; row < 64; ++row) {
    for (int byte = 0; byte < 128; ++byte) {
      const int address = row * 128 + byte;
      EXPECT_EQ(swizzle128(row, byte), address ^ ((address >> 7 & 7) << 4));
    }
    for (int byte = 0; byte < 64; ++byte) {
      const int address = row * 64 + byte;
      EXPECT_EQ(swizzle64(row, byte), address ^ ((address >> 7 & 3) << 4));
    }
  }
}

TEST(Layout, MetadataInRegisterOrder) {
  // What lane `lane` of the warp holds of a tile of 16 rows and 64 values: its word's low half is row lane / 4, its
  // high half eight rows further; lanes 0 and 1 of a quad have the first 32 values, 2 and 3 the second; bit 0 of the
  // lane picks 16 of them.
  for (const int reduction : {64, 128}) {
    const int tiles = 64 / 16;
    for (int tile = 0; tile < tiles; ++tile)
      for (int step = 0; step < reduction / 64; ++step)
        for (int lane = 0; lane < 32; ++lane)
          for (int half = 0; half < 2; ++half)
            for (int nibble = 0; nibble < 4; ++nibble) {
              const int row = tile * 16 + lane / 4 + 8 * half;
              const int first_value = step * 64 + (lane % 4 >= 2 ? 32 : 0) + (lane % 2 == 1 ? 16 : 0) + nibble * 4;
              const MetadataPlace place = metadata_place(row, first_value / 4, reduction);
              EXPECT_EQ(place.word, (tile * (reduction / 64) + step) * 32 + lane);
              EXPECT_EQ(place.shift, half * 16 + nibble * 4);
            }
  }
}

}  // namespace
}  // namespace rarefy::format24
