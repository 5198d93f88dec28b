// Token weights of a block: how much its tokens are expected to be attended to (pruning.md 2 and 3).
#pragma once
#include <cstdint>
#include <span>

#include "rarefy/base/dtype.h"
#include "rarefy/format24/layout.h"

namespace rarefy {

/// A set of queries of one KV head: `count` rows of head_dim values, `stride` floats apart.
struct QuerySet {
  const float* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t stride = 0;
};

/// w[t] = sqrt(max(1, mass[t] / mean(mass))),  mass[t] = mean over the queries of softmax over the block's tokens of q
/// . k[t] / sqrt(d) The softmax runs over the block alone: no state is kept, and a block's weights do not depend on
/// when it is sealed. The floor of 1 keeps facts that no query expects readable.
///   k  dense page of the block's keys, of `dtype`;   queries  one set per query head of the group;   w  [64]
/// No queries: all weights are 1.
void token_weights(DType dtype, int head_dim, const std::byte* k, std::span<const QuerySet> queries, float* w);

}  // namespace rarefy
