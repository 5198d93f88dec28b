// The pruner of a cache: the strategy that says, per block, what a seal keeps.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rarefy/base/dtype.h"
#include "rarefy/format24/prune.h"

namespace rarefy {

/// One block about to be sealed, as the pruner sees it. Dense pages in the layout of format24/layout.h.
struct SealBlock {
  int layer = 0;
  int kv_head = 0;
  std::int64_t block = 0;  // index in its sequence
  DType dtype = DType::F16;
  int head_dim = 0;
  const std::byte* k = nullptr;          // dense page, null if the block's keys are sealed already
  const std::byte* v = nullptr;          // dense page, null if the block's values are sealed already
  const float* token_weights = nullptr;  // [64] expected attention weights w_t, null: all equal
};

/// Immutable and safe to call from several threads at once.
class Pruner {
 public:
  virtual ~Pruner() = default;
  virtual bool needs_scratch() const { return false; }
  /// The rule and its inputs for one side of one block. Pointers in the result stay valid while the pruner lives, or
  /// until `scratch` ([64, head_dim] bytes, null unless `needs_scratch`) is used for another block.
  virtual format24::PruneInput keys(const SealBlock& block, std::uint8_t* scratch) const = 0;
  virtual format24::PruneInput values(const SealBlock& block, std::uint8_t* scratch) const = 0;
};

}  // namespace rarefy
