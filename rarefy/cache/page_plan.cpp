// Worst cases of page use.
#include "rarefy/cache/page_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rarefy {

std::int64_t share_of(float share, std::int64_t blocks) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(share) * static_cast<double>(blocks)));
}

PageCount plan_pools(const CacheConfig& c) {
  const std::int64_t blocks = blocks_of(c.max_tokens);
  PageCount per_head;
  std::int64_t transient = 0;
  for (const auto& [prefill, decode] : {std::pair{c.prefill.k, c.decode.k}, std::pair{c.prefill.v, c.decode.v}}) {
    // Before the prompt ends only the prefill share is sealed; in decode with S < 1 nothing bounds what stays dense.
    // A decode step of several tokens seals none of them, in any layer.
    const std::int64_t window = c.sink / kBlock + c.local / kBlock + 2 + blocks_of(c.max_chunk);
    const std::int64_t open =
        blocks - static_cast<std::int64_t>(std::floor(static_cast<double>(prefill) * static_cast<double>(blocks)));
    const std::int64_t dense = decode == 1 ? std::min(blocks, open + window) : blocks;
    per_head.dense += c.layers * dense;
    per_head.sparse += decode > 0 ? c.layers * blocks : 0;
    transient += blocks_of(c.max_chunk) + 1;  // a chunk's pages in the layer that is being computed
  }
  const std::int64_t heads = static_cast<std::int64_t>(c.max_sequences) * c.kv_heads;
  return {heads * per_head.dense + c.kv_heads * transient, heads * per_head.sparse};
}

}  // namespace rarefy
