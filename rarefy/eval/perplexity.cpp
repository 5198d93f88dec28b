// One dense and one sealed pass over the same text.
#include "rarefy/eval/perplexity.h"

#include <algorithm>

#include "rarefy/base/check.h"

namespace rarefy::eval {
namespace {

struct Scored {
  std::vector<float> logits;
  CacheStats stats;
};

Scored score_tail(const model::Model& model, const engine::EngineConfig& config, std::span<const files::TokenId> tokens,
                  std::int64_t tail, const engine::Progress& progress) {
  const auto context = static_cast<std::int64_t>(tokens.size()) - tail;
  engine::EngineConfig one = config;
  one.parallel = 1;
  one.chunk = std::max(one.chunk, tail);
  KvCache cache(engine::cache_config(model.config, one), one.pruner);
  model::Transformer transformer(model, engine::transformer_options(one));
  const SequenceId sequence = *cache.add();
  engine::feed(transformer, cache, sequence, tokens.first(static_cast<std::size_t>(context)), context, true, progress);
  Scored out;
  out.stats = cache.stats(sequence);
  out.logits = engine::score(transformer, cache, sequence, tokens.last(static_cast<std::size_t>(tail)));
  return out;
}

}  // namespace

PerplexityResult perplexity(const model::Model& model, const engine::EngineConfig& config,
                            std::span<const files::TokenId> tokens, std::int64_t tail,
                            const engine::Progress& progress) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  CHECK(tail > 0 && tail < count, "tail of {} tokens, must be 1 to {}", tail, count - 1);
  CHECK(count <= config.context, "a text of {} tokens does not fit a context of {}", count, config.context);
  engine::EngineConfig dense = config;
  dense.prefill = dense.decode = {};
  dense.simulated = SimulatedCache::None;
  const Scored reference = score_tail(model, dense, tokens, tail, progress);
  const Scored sealed = score_tail(model, config, tokens, tail, [&](std::int64_t done) {
    if (progress) progress(count - tail + done);
  });
  std::vector<std::int32_t> targets(tokens.end() - tail + 1, tokens.end());
  targets.push_back(-1);
  PerplexityResult result;
  result.divergence = compare(reference.logits, sealed.logits, model.config.vocab, targets);
  result.kv_bytes = sealed.stats.k_bytes + sealed.stats.v_bytes;
  result.kv_bytes_dense = reference.stats.k_bytes + reference.stats.v_bytes;
  return result;
}

}  // namespace rarefy::eval
