// Forward pass and sampling of one batch.
#include "rarefy/engine/runner.h"

namespace rarefy::engine {

std::vector<Sampled> Runner::step(const Batch& batch, KvCache& cache) {
  const std::int64_t vocab = transformer_.model().config.vocab;
  const auto rows = static_cast<std::int64_t>(batch.logit_rows.size());
  if (logits_.size() < rows * vocab * 4) logits_ = Buffer(rows * vocab * 4);
  transformer_.forward({batch.tokens, batch.positions, batch.q_start, batch.decode}, cache, batch.logit_rows,
                       make_view(logits_.as<float>(), {rows, vocab}));

  std::vector<Sampled> out;
  for (std::int64_t row = 0; row < rows; ++row) {
    RequestState* request = batch.requests[static_cast<std::size_t>(row)];
    Sampled sampled{request, std::nullopt, {}};
    try {
      const std::span<const float> logits(logits_.as<float>() + row * vocab, static_cast<std::size_t>(vocab));
      sampled.token = ops::sample(logits, request->request.sampling, request->generated.size());
    } catch (const Error& error) {
      sampled.error = error.what();
    }
    out.push_back(std::move(sampled));
  }
  return out;
}

}  // namespace rarefy::engine
