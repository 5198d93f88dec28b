// Choice of the next token from logits.
#pragma once
#include <cstdint>
#include <span>

namespace rarefy::ops {

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: all
  float top_p = 1;        // smallest set of tokens with this much probability
  float min_p = 0;        // tokens with at least min_p times the best token's probability
  std::uint64_t seed = 0;
};

/// Throws BadInput naming the field if a value is not finite or out of range (temperature 0..100, top_k >= 0,
/// top_p in (0, 1], min_p in [0, 1]).
void check_sampling(const SamplingParams& params);

/// Token chosen from `logits` [vocab] float32: temperature, then top-k, top-p, min-p, in that order (llama.cpp's
/// terms). Deterministic: the `step`-th draw of `params.seed` comes from a counter-based generator, so a request's
/// tokens do not depend on its neighbours. Ties take the lower id; a logit of -inf is never chosen. Throws BadInput
/// (E_LOGITS) if a logit is NaN or +inf, or none is finite, and as check_sampling does.
std::int32_t sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t step);

}  // namespace rarefy::ops
