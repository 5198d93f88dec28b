// Alternation of prompt chunks and decode steps.
#include "rarefy/engine/scheduler.h"

#include <algorithm>

namespace rarefy::engine {

void Scheduler::admit() {
  prefilling_.push_back(waiting_.front());
  waiting_.pop_front();
}

void Scheduler::prefill_done(RequestState* request) {
  std::erase(prefilling_, request);
  decoding_.push_back(request);
}

void Scheduler::remove(RequestState* request) {
  std::erase(waiting_, request);
  std::erase(prefilling_, request);
  std::erase(decoding_, request);
}

Batch Scheduler::next_batch() {
  const bool decode = !decoding_.empty() && (prefilling_.empty() || decode_next_);
  decode_next_ = !decode;
  if (decode) return decode_batch();
  return prefilling_.empty() ? Batch{} : prefill_batch();
}

Batch Scheduler::prefill_batch() const {
  RequestState* request = prefilling_.front();
  const std::int64_t count = std::min(chunk_, request->prompt_left());
  const bool last = count == request->prompt_left();
  Batch batch;
  batch.requests = {request};
  batch.sequences = {{request->sequence, static_cast<std::int32_t>(count), last ? Phase::PrefillEnd : Phase::Prefill,
                      static_cast<std::int64_t>(request->request.prompt.size())}};
  batch.q_start = {0, static_cast<std::int32_t>(count)};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = request->computed + i;
    batch.tokens.push_back(request->request.prompt[static_cast<std::size_t>(position)]);
    batch.positions.push_back(static_cast<std::int32_t>(position));
  }
  if (last) batch.logit_rows = {static_cast<std::int32_t>(count - 1)};
  return batch;
}

Batch Scheduler::decode_batch() const {
  Batch batch;
  batch.decode = true;
  batch.q_start = {0};
  for (RequestState* request : decoding_) {
    const auto row = static_cast<std::int32_t>(batch.tokens.size());
    const auto position = request->request.prompt.size() + request->generated.size() - 1;
    batch.requests.push_back(request);
    batch.sequences.push_back({request->sequence, 1, Phase::Decode, 0});
    batch.tokens.push_back(request->generated.back());
    batch.positions.push_back(static_cast<std::int32_t>(position));
    batch.q_start.push_back(row + 1);
    batch.logit_rows.push_back(row);
  }
  return batch;
}

}  // namespace rarefy::engine
