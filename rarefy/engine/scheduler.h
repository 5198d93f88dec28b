// Which tokens of which requests the next step computes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rarefy/engine/request.h"

namespace rarefy::engine {

/// One step: a chunk of one prompt, or one token of every request that generates.
struct Batch {
  std::vector<RequestState*> requests;
  std::vector<StepSequence> sequences;
  std::vector<std::int32_t> tokens, positions, q_start;
  std::vector<std::int32_t> logit_rows;  // last row of every request that gets a token from this step
  bool decode = false;

  bool empty() const { return requests.empty(); }
};

/// Static admission: a request starts when a sequence slot is free and runs to its end. Prompts go one chunk at a time,
/// in order of arrival; while others generate, chunks and decode steps alternate so that no stream stands still.
class Scheduler {
 public:
  explicit Scheduler(std::int64_t chunk) : chunk_(chunk) {}

  void enqueue(RequestState* request) { waiting_.push_back(request); }
  /// The next request without a sequence, or null.
  RequestState* next_waiting() const { return waiting_.empty() ? nullptr : waiting_.front(); }
  /// The front waiting request has a sequence now.
  void admit();
  Batch next_batch();
  /// Drops a request wherever it is.
  void remove(RequestState* request);
  bool is_waiting(const RequestState* request) const {
    return std::find(waiting_.begin(), waiting_.end(), request) != waiting_.end();
  }
  bool idle() const { return waiting_.empty() && prefilling_.empty() && decoding_.empty(); }
  /// A prompt is in the cache: its request generates from now on.
  void prefill_done(RequestState* request);

 private:
  Batch prefill_batch() const;
  Batch decode_batch() const;

  std::int64_t chunk_;
  std::deque<RequestState*> waiting_, prefilling_;
  std::vector<RequestState*> decoding_;
  bool decode_next_ = false;
};

}  // namespace rarefy::engine
