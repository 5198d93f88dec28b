// Shares of blocks and planned pools.
#include "rarefy/cache/page_plan.h"

#include <gtest/gtest.h>

namespace rarefy {
namespace {

TEST(PagePlan, BlocksAndShares) {
  EXPECT_EQ(blocks_of(0), 0);
  EXPECT_EQ(blocks_of(1), 1);
  EXPECT_EQ(blocks_of(64), 1);
  EXPECT_EQ(blocks_of(65), 2);
  EXPECT_EQ(share_of(0, 7), 0);
  EXPECT_EQ(share_of(0.5f, 7), 4);
  EXPECT_EQ(share_of(0.25f, 1), 1);
  EXPECT_EQ(share_of(1, 7), 7);
  EXPECT_EQ(share_of(0.5f, 0), 0);
}

TEST(PagePlan, ADenseCacheNeedsNoSparsePages) {
  CacheConfig c;
  c.layers = 3;
  c.kv_heads = 2;
  c.max_sequences = 2;
  c.max_tokens = 1000;
  c.max_chunk = 128;
  EXPECT_EQ(plan_pools(c).sparse, 0);
  EXPECT_GE(plan_pools(c).dense, 2 * 3 * 2 * 2 * 16);
  const std::int64_t dense = plan_pools(c).dense;
  c.max_tokens = 100000;
  c.prefill = c.decode = {1, 1};
  EXPECT_EQ(plan_pools(c).sparse, 2 * 3 * 2 * 2 * blocks_of(100000));
  EXPECT_LT(plan_pools(c).dense, 2 * dense);  // does not grow with max_tokens
}

}  // namespace
}  // namespace rarefy
