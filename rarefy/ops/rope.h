// Rotary position embedding, written in the channel order of the cache.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"

namespace rarefy::ops {

/// Which channels form a rotated pair: (i, i + rotary/2) as in Hugging Face's files, or (2 i, 2 i + 1) as in GGUF's
/// llama.
enum class RopeLayout { Halves, Interleaved };

/// Angles of one model: position p turns pair i by p * inv_freq[i]; the result is scaled by `scale` (LongRoPE's
/// mscale).
struct Rope {
  RopeLayout layout = RopeLayout::Halves;
  std::vector<double> inv_freq;  // [rotary / 2]; channels from rotary on are copied
  float scale = 1;
};

/// The widest head that `rope` takes.
inline constexpr std::int64_t kMaxRopeHeadDim = 512;

/// table[t, 0, i] = scale * cos(positions[t] * inv_freq[i]),  table[t, 1, i] the same with sin
///   positions  [tokens]                 int32, on the stream's device
///   table      [tokens, 2, rotary / 2]  float32
/// Computed in float64, once per step: q and k of every head and layer read the same table. Zero tokens do nothing.
/// Throws BadInput (shapes), Unsupported (device).
void rope_table(std::span<const std::int32_t> positions, const Rope& rope, const TensorView& table, Stream& stream);

/// y[t, h, i] = rotated(x[t, h])[order[h / group, i]]   (Su et al. 2021, equation 34; order: pruning.md 1)
///   where a pair (a, b) of `layout` becomes (a cos - b sin, b cos + a sin); channels from rotary on are copied
///   x          [tokens, heads, head_dim]   float32, on CUDA F16 and BF16 too
///   table      [tokens, 2, rotary / 2]     float32, from rope_table; rotary <= head_dim
///   order      [kv_heads, head_dim]        int32 permutations of the channels, null: the file's own (on CUDA on the
///                                          device, and trusted)
///   y          [tokens, heads, head_dim]   as x, not x
/// group = heads / kv_heads. Zero tokens do nothing. Throws BadInput (shapes, heads not a multiple of kv_heads, an
/// order entry outside the head), Unsupported (device, head_dim above kMaxRopeHeadDim).
void rope(const TensorView& x, const TensorView& table, RopeLayout layout, const std::int32_t* order,
          std::int64_t kv_heads, const TensorView& y, Stream& stream);

}  // namespace rarefy::ops
