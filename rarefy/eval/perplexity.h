// What a sealed cache does to the next-token distribution over a long text.
#pragma once
#include <cstdint>
#include <span>

#include "rarefy/engine/engine.h"
#include "rarefy/engine/feed.h"
#include "rarefy/eval/distribution.h"

namespace rarefy::eval {

struct PerplexityResult {
  Divergence divergence;            // reference: the dense cache
  std::int64_t kv_bytes = 0;        // of the cache that was scored, K and V
  std::int64_t kv_bytes_dense = 0;  // of the dense cache
};

/// Feeds all but the last `tail` of `tokens` as prompt, seals as `config` says, and scores the last `tail` in one pass
/// over that cache; the same with a dense cache as the reference. Throws BadInput unless 0 < tail < tokens.size() and
/// the tokens fit the context.
PerplexityResult perplexity(const model::Model& model, const engine::EngineConfig& config,
                            std::span<const files::TokenId> tokens, std::int64_t tail,
                            const engine::Progress& progress = {});

}  // namespace rarefy::eval
