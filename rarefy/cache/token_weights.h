// Token weights of sealed values: how much their tokens are expected to be attended to (pruning.md 2 and 3).
#pragma once
#include <cstdint>
#include <span>

#include "rarefy/base/dtype.h"
#include "rarefy/format24/layout.h"

namespace rarefy {

/// A set of queries of one query head: `count` rows of head_dim values, `stride` floats apart.
struct QuerySet {
  const float* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t stride = 0;
};

/// A block's keys: a dense page of `dtype` whose first `tokens` slots are in use.
struct KeyPage {
  const std::byte* data = nullptr;
  DType dtype = DType::F16;
  int head_dim = 0;
  int tokens = format24::kBlock;
};

/// lse[i] = log(exp(lse[i]) + sum over the block's tokens of exp(q_i . k_t / sqrt(d))), for every query i of all sets
/// in order.
///   lse  [queries] float32, -inf before the first block
void add_log_sums(const KeyPage& keys, std::span<const QuerySet> queries, float* lse);

/// mass[t] = mean over the queries of exp(q . k_t / sqrt(d) - lse), the expected attention that token t gets.
///   lse   [queries] log-sum-exp over every key there is, or null: over the block alone (no state is needed then)
///   mass  [64]; slots past `tokens` get 0. No queries: all equal.
void expected_attention(const KeyPage& keys, std::span<const QuerySet> queries, const float* lse, float* mass);

/// w[t] = sqrt(max(1, mass[t] / mean)). The floor of 1 keeps facts that no query expects readable.
///   mass, w  [64], may be the same;   mean  over the tokens that are sealed together
void weights_of(const float* mass, float mean, float* w);

}  // namespace rarefy
