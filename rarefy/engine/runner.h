// Runs one batch on the model: forward pass, then a token for every request that gets one.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "rarefy/engine/scheduler.h"
#include "rarefy/model/transformer.h"

namespace rarefy::engine {

/// What one request got from a step: a token, or the reason why it cannot go on (its neighbours can).
struct Sampled {
  RequestState* request = nullptr;
  std::optional<files::TokenId> token;
  std::string error;
};

class Runner {
 public:
  explicit Runner(model::Transformer& transformer) : transformer_(transformer) {}

  /// One entry per logit row of the batch. `cache.begin_step` was called for the batch's sequences.
  std::vector<Sampled> step(const Batch& batch, KvCache& cache);

 private:
  model::Transformer& transformer_;
  Buffer logits_;
};

}  // namespace rarefy::engine
