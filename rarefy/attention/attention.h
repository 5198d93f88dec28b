// Attention over a mixed dense / 2:4 cache: the contract of prefill and decode on every device.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rarefy/base/device.h"
#include "rarefy/base/precision.h"
#include "rarefy/base/tensor.h"
#include "rarefy/base/workspace.h"
#include "rarefy/cache/kv_view.h"

namespace rarefy::attention {

/// Queries per tile of the moving dense window.
inline constexpr int kWindowTile = 128;

/// Which version of the CPU code runs: Fast is the product, Plain the oracle (loops in the order of the equation,
/// float64 sums).
enum class Version { Fast, Plain };

struct Options {
  float scale = 1;  // of the scores, usually 1 / sqrt(head_dim)
  int local = 256;  // tokens before a query's tile that are read dense while their dense page exists
  Precision precision = Precision::Fast;  // Fast may round q, p and tiles to bf16 in prefill
  Version version = Version::Fast;
  int split_blocks = 32;          // CUDA decode: blocks of a sequence that run as one part; see decode_split_blocks
  std::int32_t* error = nullptr;  // CUDA: [1] device, set to 1 when a map entry or a listed block is bad; may be null
};

/// Blocks for Options::split_blocks, so that `rows` (sequences times KV heads) of up to `blocks` blocks fill a GPU of
/// `multiprocessors` once: a power of two from 16 to 512. From what a cache can hold, not from what a step holds: then
/// a sequence's result does not depend on its batch, and a captured graph stays valid while sequences grow.
int decode_split_blocks(std::int64_t rows, std::int64_t blocks, int multiprocessors);

/// Decode attention, one query per sequence, over the listed blocks of a mixed cache.  (HieraSparse Alg. 1; split-KV,
/// IV-C)
///   o[b,h] = softmax(scale * q[b,h] K^T) V   over the tokens of blocks[b, h / group]
///   q       [batch, q_heads, head_dim]   float32 on the CPU; the pages' dtype on CUDA
///   view    one layer's pages and block maps    (cache/kv_view.h)
///   blocks  [batch, kv_heads, max_selected]; null ids: every block
///   o       [batch, q_heads, head_dim]   as q;   lse [batch, q_heads] float32, natural log, data may be null
/// Every listed block must be resident. A row with no keys gives o = 0, lse = -inf. Slots past a sequence's end may
/// hold anything, NaN included. Reruns are bit-equal, and a sequence's rows do not depend on the rest of the batch.
/// On CUDA maps and lists are checked by the kernel: a bad entry reads nothing and sets `options.error`. Throws
/// BadInput (shapes, a page outside its pool, a listed block outside the sequence or not resident or not ascending),
/// Unsupported (no such kernel).
void decode(const TensorView& q, const KvView& view, const BlockList& blocks, const Options& options,
            const TensorView& o, const TensorView& lse, Workspace& workspace, Stream& stream);

/// Prefill attention: causal, queries right-aligned to the keys (query i of a sequence stands at kv_len - q_len + i).
///   q        [total_q, q_heads, head_dim], sequence b's rows are q_start[b] .. q_start[b + 1] - 1
///   q_start  [batch + 1] int32, q_start[0] = 0, host
///   blocks   [total_q, kv_heads, max_selected]; null ids: every block
///   o, lse   as in decode, rows as q
/// Query i belongs to tile i / kWindowTile of its chunk; a block that ends after c0 + kWindowTile * tile - local
/// (c0 = kv_len - q_len) is read from its dense page if k_window / v_window (or the map) has one, an older one as the
/// map says. Sequences with no query are allowed. Errors and the rest as in decode.
void prefill(const TensorView& q, std::span<const std::int32_t> q_start, const KvView& view, const BlockList& blocks,
             const Options& options, const TensorView& o, const TensorView& lse, Workspace& workspace, Stream& stream);

/// One line per kernel that this build has, for `rarefy inspect kernels` and the README's table.
std::vector<std::string> describe_kernels();

}  // namespace rarefy::attention
