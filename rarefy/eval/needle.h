// Needles in a long text (RULER's wording): does a sealed cache still hold a fact that nobody expected to be asked for?
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rarefy/engine/engine.h"
#include "rarefy/engine/feed.h"

namespace rarefy::eval {

/// Scores of one needle: log probability of the answer's tokens, and whether greedy decoding gives them all.
struct NeedleScore {
  double log_p = 0;
  bool right = false;
};

/// One needle under the dense cache and under the sealed one. Aware: the question was part of the prompt when the cache
/// was sealed. Agnostic: the text was sealed first, the question came as a second turn.
struct NeedleResult {
  double depth = 0;  // share of the text before the needle
  NeedleScore dense, aware, agnostic;
};

/// Over all needles, one way of asking: how many are right, and the sealed minus the dense log probability.
struct NeedleSummary {
  int needles = 0, right = 0, right_dense = 0;
  double dlogp_mean = 0, dlogp_worst = 0;
};
NeedleSummary summarise(std::span<const NeedleResult> results, NeedleScore NeedleResult::*way);

/// Plants `needles` needles, one per run, at depths spread over `context` tokens of `text`; keys and numbers come from
/// `seed`.
///   text  tokens of a long text, at least `context`; longer texts give every needle its own stretch
/// Throws BadInput (E_TEXT_SHORT), or if the context has no room for the question.
std::vector<NeedleResult> needle(const model::Model& model, const files::Tokenizer& tokenizer,
                                 const engine::EngineConfig& config, std::span<const files::TokenId> text,
                                 std::int64_t context, int needles, std::uint64_t seed,
                                 const std::function<void(int needle)>& progress = {});

}  // namespace rarefy::eval
