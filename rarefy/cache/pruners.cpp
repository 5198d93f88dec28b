// What each pruner tells the compressor.
#include "rarefy/cache/pruners.h"

#include <cmath>

#include "rarefy/base/check.h"
#include "rarefy/format24/layout.h"

namespace rarefy {

using format24::PruneInput;
using format24::PruneRule;

PruneInput MagnitudePruner::keys(const SealBlock&, std::uint8_t*) const { return {}; }
PruneInput MagnitudePruner::values(const SealBlock&, std::uint8_t*) const { return {}; }

PruneInput ElementMaskPruner::keys(const SealBlock& block, std::uint8_t* scratch) const {
  mask_(format24::Side::K, block, scratch);
  return {.rule = PruneRule::Elements, .elements = scratch};
}

PruneInput ElementMaskPruner::values(const SealBlock& block, std::uint8_t* scratch) const {
  mask_(format24::Side::V, block, scratch);
  return {.rule = PruneRule::Elements, .elements = scratch};
}

ChannelMaskPruner::ChannelMaskPruner(int layers, int kv_heads, int head_dim, std::vector<std::uint8_t> keep)
    : kv_heads_(kv_heads), head_dim_(head_dim), keep_(std::move(keep)) {
  CHECK(keep_.size() == static_cast<std::size_t>(layers) * kv_heads * head_dim,
        "channel mask of {} entries, {} layers of {} KV heads of {} channels need {}", keep_.size(), layers, kv_heads,
        head_dim, static_cast<std::size_t>(layers) * kv_heads * head_dim);
}

PruneInput ChannelMaskPruner::keys(const SealBlock& block, std::uint8_t*) const {
  return {
      .rule = PruneRule::Channels,
      .channels = keep_.data() + (static_cast<std::ptrdiff_t>(block.layer) * kv_heads_ + block.kv_head) * head_dim_};
}

PruneInput ChannelMaskPruner::values(const SealBlock&, std::uint8_t*) const { return {}; }

CalibratedPruner::CalibratedPruner(int layers, int kv_heads, int head_dim, std::vector<float> weights)
    : kv_heads_(kv_heads), head_dim_(head_dim), weights_(std::move(weights)) {
  CHECK(weights_.size() == static_cast<std::size_t>(layers) * kv_heads * head_dim,
        "{} channel weights, {} layers of {} KV heads of {} channels need {}", weights_.size(), layers, kv_heads,
        head_dim, static_cast<std::size_t>(layers) * kv_heads * head_dim);
  for (const float weight : weights_) CHECK(std::isfinite(weight) && weight > 0, "channel weight {}", weight);
}

PruneInput CalibratedPruner::keys(const SealBlock& block, std::uint8_t*) const {
  const float* head =
      weights_.data() + (static_cast<std::ptrdiff_t>(block.layer) * kv_heads_ + block.kv_head) * head_dim_;
  return {.rule = PruneRule::Calibrated, .channel_weights = head};
}

PruneInput CalibratedPruner::values(const SealBlock& block, std::uint8_t*) const {
  return {.rule = PruneRule::Calibrated, .token_weights = block.token_weights};
}

}  // namespace rarefy
