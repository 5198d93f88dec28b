// Rotary position embedding, written in the channel order of the cache.
#pragma once
#include <cstdint>
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

/// y[t, h, i] = rope(x[t, h], positions[t])[order[h / group, i]]   (Su et al. 2021, equation 34; order: pruning.md 1)
///   x          [tokens, heads, head_dim] float32
///   positions  [tokens]                  int32
///   order      [kv_heads, head_dim]      int32 permutations of the channels, null: the file's own; group = heads /
///   kv_heads y          [tokens, heads, head_dim] float32, not x
/// Angles are computed in float64. Zero tokens do nothing. Throws BadInput (shapes, heads not a multiple of kv_heads).
void rope(const TensorView& x, const std::int32_t* positions, const Rope& rope, const std::int32_t* order, int kv_heads,
          const TensorView& y, Stream& stream);

}  // namespace rarefy::ops
