// Sizes of the portable (compute capability 8.0) attention kernels: how work is cut, and the shared-memory plan.
#pragma once
#include <cstdint>

#include "rarefy/format24/layout.h"

namespace rarefy::attention::sm80 {

/// Warps of a decode CTA. Each walks over its own blocks through its own ring of pages, so none waits for another; two
/// CTAs fit on an SM, so one computes while another starts or ends.
inline constexpr int kDecodeWarps = 2;

/// Query heads of one KV head that a decode CTA takes at most: two tiles of the product's N side.
inline constexpr int kDecodeQueries = 16;

/// A ring's unit: a sparse page where there are some (a dense page takes two units then), else a dense page.
constexpr int unit_bytes(int head_dim, bool sealed) {
  return static_cast<int>(sealed ? format24::sparse_page_bytes(head_dim) : format24::dense_page_bytes(head_dim));
}

/// Most units of a warp's ring: more pages in flight than this gain nothing.
inline constexpr int kMaxUnits = 8;
/// Fewest units: K and V of one block, both dense.
constexpr int min_units(bool sealed) { return sealed ? 4 : 2; }

/// Warps and queries of a prefill CTA: one tile of the dense window, so that all of its queries read the same pages.
inline constexpr int kPrefillWarps = 8;
inline constexpr int kPrefillQueries = 128;
/// Pages in shared memory, 16 KiB each at head_dim 128: six fit on every GPU from 8.0 on.
inline constexpr int kPrefillPages = 6;

constexpr int splits_of(int blocks, int split_blocks) {
  return blocks < 1 ? 1 : (blocks + split_blocks - 1) / split_blocks;
}

}  // namespace rarefy::attention::sm80
