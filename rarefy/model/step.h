// What one forward pass computes: the tokens of some sequences, as plain views.
#pragma once
#include <cstdint>
#include <span>

namespace rarefy::model {

/// Rows are the tokens of all sequences of the step, one sequence after the other, in the order of KvCache::begin_step.
struct Step {
  std::span<const std::int32_t> tokens;     // [total_q]
  std::span<const std::int32_t> positions;  // [total_q] each token's own, from 0
  std::span<const std::int32_t> q_start;    // [batch + 1]
  bool decode = false;                      // one token per sequence
};

}  // namespace rarefy::model
