// The pruners that Rarefy has: magnitude, explicit masks, channel masks, calibrated weights.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "rarefy/cache/pruner.h"
#include "rarefy/format24/layout.h"

namespace rarefy {

/// The paper's rule: the two largest magnitudes of each group (HieraSparse, equation 2).
class MagnitudePruner final : public Pruner {
 public:
  format24::PruneInput keys(const SealBlock& block, std::uint8_t* scratch) const override;
  format24::PruneInput values(const SealBlock& block, std::uint8_t* scratch) const override;
};

/// Any element mask: `mask` fills [64, head_dim] bytes, 1 = keep, at most two of each group of four.
class ElementMaskPruner final : public Pruner {
 public:
  using Mask = std::function<void(format24::Side side, const SealBlock& block, std::uint8_t* elements)>;
  explicit ElementMaskPruner(Mask mask) : mask_(std::move(mask)) {}
  bool needs_scratch() const override { return true; }
  format24::PruneInput keys(const SealBlock& block, std::uint8_t* scratch) const override;
  format24::PruneInput values(const SealBlock& block, std::uint8_t* scratch) const override;

 private:
  Mask mask_;
};

/// Channel masks of the keys (ThinK, LeanK): masked channels count as zero, magnitude decides among the rest. Values:
/// magnitude.
class ChannelMaskPruner final : public Pruner {
 public:
  /// `keep` [layers, kv_heads, head_dim], 1 = keep, in channel order. Throws BadInput (size).
  ChannelMaskPruner(int layers, int kv_heads, int head_dim, std::vector<std::uint8_t> keep);
  format24::PruneInput keys(const SealBlock& block, std::uint8_t* scratch) const override;
  format24::PruneInput values(const SealBlock& block, std::uint8_t* scratch) const override;

 private:
  int kv_heads_;
  int head_dim_;
  std::vector<std::uint8_t> keep_;
};

/// Channel weights for keys; token weights and the shared-out remainder for values (pruning.md 1 and 2).
class CalibratedPruner final : public Pruner {
 public:
  /// `weights` [layers, kv_heads, head_dim]: u_c in channel order. Throws BadInput (size, a weight that is not
  /// positive).
  CalibratedPruner(int layers, int kv_heads, int head_dim, std::vector<float> weights);
  format24::PruneInput keys(const SealBlock& block, std::uint8_t* scratch) const override;
  format24::PruneInput values(const SealBlock& block, std::uint8_t* scratch) const override;

 private:
  int kv_heads_;
  int head_dim_;
  std::vector<float> weights_;
};

}  // namespace rarefy
