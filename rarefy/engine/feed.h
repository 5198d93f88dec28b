// Tokens into one sequence in chunks, without sampling: what benchmarks, evaluation and calibration share.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "rarefy/cache/kv_cache.h"
#include "rarefy/files/tokenizer.h"
#include "rarefy/model/transformer.h"

namespace rarefy::engine {

/// Called with the number of tokens done so far.
using Progress = std::function<void(std::int64_t)>;

/// Appends `tokens` to `sequence` as prompt, in chunks of the transformer's max_rows; `end`: the prompt is complete
/// (PrefillEnd).
///   prompt_len  of the whole prompt, those before and after this call included
/// Throws OutOfMemory (E_PAGES) if the cache has no page left.
void feed(model::Transformer& transformer, KvCache& cache, SequenceId sequence, std::span<const files::TokenId> tokens,
          std::int64_t prompt_len, bool end, const Progress& progress = {});

/// Appends `tokens` in one pass over the cache as it is (Phase::Decode) and gives the logits of every row:
/// [tokens, vocab] float32. At most max_rows tokens.
std::vector<float> score(model::Transformer& transformer, KvCache& cache, SequenceId sequence,
                         std::span<const files::TokenId> tokens);

}  // namespace rarefy::engine
