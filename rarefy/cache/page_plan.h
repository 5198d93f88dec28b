// How many pages a cache can need: for its pools, and for one step.
#pragma once
#include <cstdint>

#include "rarefy/cache/kv_cache.h"

namespace rarefy {

struct PageCount {
  std::int64_t dense = 0;
  std::int64_t sparse = 0;
};

/// Blocks that hold `tokens` tokens.
inline std::int64_t blocks_of(std::int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

/// ceil(share * blocks), the number of blocks that a share means.
std::int64_t share_of(float share, std::int64_t blocks);

/// Pages with which max_sequences sequences of max_tokens tokens never run out.
PageCount plan_pools(const CacheConfig& config);

}  // namespace rarefy
