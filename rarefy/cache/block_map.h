// Block maps of one layer and side: (sequence slot, KV head, block) to a signed, 1-based page.
#pragma once
#include <cstdint>
#include <vector>

#include "rarefy/cache/pool.h"

namespace rarefy {

/// +p is dense page p - 1, -p sparse page p - 1, 0 no page.
class BlockMap {
 public:
  BlockMap(int slots, int kv_heads, int max_blocks)
      : kv_heads_(kv_heads),
        max_blocks_(max_blocks),
        entries_(static_cast<std::size_t>(slots) * static_cast<std::size_t>(kv_heads) *
                 static_cast<std::size_t>(max_blocks)) {}

  std::int32_t* row(int slot, int kv_head) {
    return entries_.data() + (static_cast<std::int64_t>(slot) * kv_heads_ + kv_head) * max_blocks_;
  }
  const std::int32_t* row(int slot, int kv_head) const { return const_cast<BlockMap*>(this)->row(slot, kv_head); }
  const std::int32_t* data() const { return entries_.data(); }

  static std::int32_t dense(PageId page) { return page + 1; }
  static std::int32_t sparse(PageId page) { return -(page + 1); }
  static PageId page(std::int32_t entry) { return (entry > 0 ? entry : -entry) - 1; }

 private:
  int kv_heads_;
  int max_blocks_;
  std::vector<std::int32_t> entries_;
};

}  // namespace rarefy
