// Sealing and its inverse: dense page to sparse page and back, on many pages at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "rarefy/base/device.h"
#include "rarefy/base/dtype.h"
#include "rarefy/format24/layout.h"
#include "rarefy/format24/prune.h"

namespace rarefy::format24 {

/// One page to seal. `sparse` may be null: then only the loss is computed.
struct CompressJob {
  const std::byte* dense = nullptr;  // [dense_page_bytes]
  std::byte* sparse = nullptr;       // [sparse_page_bytes], may be null
  PruneInput prune;
};

/// Prunes and compresses full blocks, fused: reads each dense page once and writes its sparse page once.
///   Keys: in each group of four channels of a token keeps the two with the largest |k_c| u_c (u = 1 for Magnitude).
///   Values, Magnitude: the two largest |v| of four tokens of a channel. Calibrated: with a_t = w_t v_t drops the pair
///   {a, b} with the least a^2 + b^2 + (a + b)^2 / 4 and writes v_t + (a + b) / (4 w_t) for each kept token (pruning.md
///   2). Elements and Channels: values that the mask drops are stored as zero if fewer than two of a group remain. Ties
///   keep the lower index (values, Calibrated: the first kept pair in lexicographic order). NaN counts as infinite.
///   dtype  F16 or BF16, of every page;  head_dim 64 or 128;  side of every job
///   loss   [jobs] float32, of `kind`, may be null
/// Same input, same bytes, on every device. No jobs: nothing. Throws BadInput (null page, mask with more than two of
/// four), Unsupported (dtype, head_dim, device).
void compress(Side side, DType dtype, int head_dim, std::span<const CompressJob> jobs, LossKind kind, float* loss,
              Stream& stream);

/// Writes the dense page whose dropped values are zero. For tests and oracles. Throws BadFile (E_METADATA) if the
/// metadata of a group is not two ascending indices.
void decompress(Side side, DType dtype, int head_dim, const std::byte* sparse, std::byte* dense);

}  // namespace rarefy::format24
