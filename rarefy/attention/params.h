// What CPU attention works on after the checks: rows of queries, and the pages that each of them reads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "rarefy/attention/attention.h"
#include "rarefy/cache/kv_view.h"
#include "rarefy/format24/layout.h"

namespace rarefy::attention {

/// One call of decode or prefill; every pointer has been checked.
struct Params {
  KvView view;
  BlockList blocks;
  const float* q = nullptr;  // [rows, q_heads, head_dim]
  float* o = nullptr;        // as q
  float* lse = nullptr;      // [rows, q_heads], may be null
  int q_heads = 0;
  int group = 0;
  float scale = 1;
  int local = 0;
};

/// One query token: which keys it sees, and from where on it reads dense pages that sealed blocks still have.
struct Row {
  int sequence = 0;
  std::int64_t index = 0;         // of q, o and lse
  std::int64_t list_row = 0;      // of the block list
  std::int64_t keys = 0;          // tokens 0 .. keys - 1 are visible
  std::int64_t window_start = 0;  // a block that ends after it is read dense where it can be
};

/// Decode has no window of its own: the cache seals a block only when it has left the local window.
inline constexpr std::int64_t kNoWindow = std::numeric_limits<std::int64_t>::max();

inline Row decode_row(const KvView& view, int sequence) {
  return {sequence, sequence, sequence, view.kv_len[sequence], kNoWindow};
}

/// Query `i` of a sequence's chunk of `q_len`, whose first row is `first`. (DESIGN 5, dense window)
inline Row prefill_row(const Params& params, int sequence, std::int64_t first, std::int64_t q_len, std::int64_t i) {
  const std::int64_t c0 = params.view.kv_len[sequence] - q_len;
  return {sequence, first + i, first + i, std::max<std::int64_t>(c0 + i + 1, 0),
          c0 + i / kWindowTile * kWindowTile - params.local};
}

/// The K or the V of one block, as it will be read.
struct Page {
  const std::byte* data = nullptr;
  bool sparse = false;
};
struct BlockPages {
  Page k;
  Page v;
};

/// Byte offset of page `entry` (signed, 1-based, not 0) in its pool.
constexpr std::int64_t page_offset(std::int32_t entry, int head_dim) {
  const std::int64_t e = entry;
  return e > 0 ? (e - 1) * format24::dense_page_bytes(head_dim) : (-e - 1) * format24::sparse_page_bytes(head_dim);
}

inline Page page_at(const KvView& view, std::int32_t entry) {
  return {(entry > 0 ? view.dense : view.sparse) + page_offset(entry, view.head_dim), entry < 0};
}

/// The pages of block `block` for a row with this `window_start`; `map_row` is view.row(sequence, kv_head).
inline BlockPages pages_of(const KvView& view, std::int64_t map_row, std::int64_t block, std::int64_t window_start) {
  const std::int64_t at = map_row + block;
  const bool windowed = (block + 1) * kBlock > window_start;
  const auto choose = [&](const std::int32_t* map, const std::int32_t* window) {
    return page_at(view, windowed && window != nullptr && window[at] != 0 ? window[at] : map[at]);
  };
  return {choose(view.k_map, view.k_window), choose(view.v_map, view.v_window)};
}

constexpr std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

/// The blocks that one (row, KV head) reads, in ascending order.
struct BlockRange {
  const std::int32_t* ids = nullptr;  // null: 0 .. count - 1
  std::int64_t count = 0;
  std::int64_t operator[](std::int64_t i) const { return ids != nullptr ? ids[i] : i; }
};

inline BlockRange blocks_of(const Params& params, const Row& row, int kv_head) {
  if (params.blocks.ids == nullptr) return {nullptr, blocks_for(row.keys)};
  const std::int32_t* ids =
      params.blocks.ids + (row.list_row * params.view.kv_heads + kv_head) * params.blocks.max_selected;
  return {ids, std::find(ids, ids + params.blocks.max_selected, -1) - ids};
}

/// How many tokens of a block lie before `keys`.
constexpr int tokens_before(std::int64_t block, std::int64_t keys) {
  return static_cast<int>(std::clamp<std::int64_t>(keys - block * kBlock, 0, kBlock));
}

}  // namespace rarefy::attention
