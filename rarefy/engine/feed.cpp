// Chunks and scoring passes of one sequence.
#include "rarefy/engine/feed.h"

#include <algorithm>
#include <numeric>

#include "rarefy/base/check.h"

namespace rarefy::engine {
namespace {

void run(model::Transformer& transformer, KvCache& cache, const StepSequence& sequence,
         std::span<const files::TokenId> tokens, std::span<const std::int32_t> logit_rows, const TensorView& logits) {
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(cache.length(sequence.sequence)));
  const std::int32_t q_start[] = {0, sequence.q_len};
  if (!cache.begin_step({&sequence, 1}))
    fail(ErrorCode::OutOfMemory, "E_PAGES", "no cache page left at token {}", cache.length(sequence.sequence));
  transformer.forward({tokens, positions, q_start, false}, cache, logit_rows, logits);
}

}  // namespace

void feed(model::Transformer& transformer, KvCache& cache, SequenceId sequence, std::span<const files::TokenId> tokens,
          std::int64_t prompt_len, bool end, const Progress& progress) {
  const auto chunk = static_cast<std::size_t>(transformer.options().max_rows);
  const TensorView none = make_view<float>(nullptr, {0, transformer.model().config.vocab});
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(chunk, tokens.size() - done);
    const bool last = end && done + count == tokens.size();
    run(transformer, cache,
        {sequence, static_cast<std::int32_t>(count), last ? Phase::PrefillEnd : Phase::Prefill, prompt_len},
        tokens.subspan(done, count), {}, none);
    done += count;
    if (progress) progress(static_cast<std::int64_t>(done));
  }
}

std::vector<float> score(model::Transformer& transformer, KvCache& cache, SequenceId sequence,
                         std::span<const files::TokenId> tokens) {
  const std::int64_t vocab = transformer.model().config.vocab;
  const auto count = static_cast<std::int32_t>(tokens.size());
  std::vector<std::int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(vocab));
  run(transformer, cache, {sequence, count, Phase::Decode, 0}, tokens, rows, make_view(logits.data(), {count, vocab}));
  return logits;
}

}  // namespace rarefy::engine
