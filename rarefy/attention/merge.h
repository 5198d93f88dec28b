// Merging of partials: attention over disjoint sets of keys becomes attention over their union.
#pragma once
#include <cstdint>

namespace rarefy::attention {

/// Partials of one row, `parts` of them, part i at o + i * o_stride and lse[i * lse_stride].
struct Partials {
  const float* o = nullptr;    // [head_dim] each, normalised
  const float* lse = nullptr;  // natural log; -inf: the part has no key
  std::int64_t o_stride = 0;
  std::int64_t lse_stride = 0;
  int parts = 0;
};

/// Merges in the order of the parts.   (split-KV, HieraSparse IV-C)
///   lse = log(sum_i exp(lse_i)),   o = sum_i exp(lse_i - lse) o_i
///   o [head_dim] float32, host;   lse one float, may be null
/// No part with a key gives o = 0, lse = -inf; a single one comes back bit for bit.
void merge(const Partials& partials, int head_dim, float* o, float* lse);

}  // namespace rarefy::attention
