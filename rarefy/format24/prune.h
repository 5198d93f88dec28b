// The pruner: which two of four values a seal keeps, and what it writes in their place.
#pragma once
#include <cstdint>

namespace rarefy::format24 {

/// Magnitude: the two largest |x| of each group (HieraSparse, equation 2). Calibrated: pruning.md 1 and 2.
/// Elements: an explicit mask. Channels: a channel mask (ThinK, LeanK), then magnitude.
enum class PruneRule : std::uint8_t { Magnitude, Calibrated, Elements, Channels };

/// How much a block loses. L1: sum of the dropped |x| (equation 2c). Energy: predicted squared error of the output, the
/// sum over groups of the rule's own cost (pruning.md 5, "S below 1"). Float32 sums in a fixed order.
enum class LossKind : std::uint8_t { L1, Energy };

/// What the pruner knows about one page beside its values. Pointers may be null where the rule does not use them.
struct PruneInput {
  PruneRule rule = PruneRule::Magnitude;
  const float* channel_weights =
      nullptr;                           // [head_dim] u_c of this KV head, in channel order; Calibrated, keys; null: 1
  const float* token_weights = nullptr;  // [64] w_t >= 1, Calibrated, values; null: 1
  const std::uint8_t* elements = nullptr;  // [64, head_dim] 1 = keep, at most two per group; Elements
  const std::uint8_t* channels = nullptr;  // [head_dim] 1 = keep; Channels
};

}  // namespace rarefy::format24
