// A request and everything the engine knows about it while it lives.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rarefy/cache/kv_cache.h"
#include "rarefy/engine/text_stream.h"
#include "rarefy/ops/sample.h"

namespace rarefy::engine {

using RequestId = std::int64_t;

/// What a user asks for.
struct Request {
  std::vector<files::TokenId> prompt;  // not empty
  std::int64_t max_tokens = -1;        // -1: until the model or the context ends
  ops::SamplingParams sampling;
  std::vector<std::string> stop;       // generation ends before the first of these; none may be empty
  bool ignore_end = false;             // go on after the model's end tokens (benchmarks)
  std::optional<RequestId> continues;  // a kept request whose tokens begin this prompt: its cache is used again
  bool keep = false;                   // keep the cache after the end, for `continues` or `release`
};

/// Why generation ended. Context: no room for another token. Failed: `Event::error` says why; other requests go on.
enum class FinishReason { None, End, Stop, Length, Context, Failed };

const char* to_string(FinishReason reason);

struct Timing {
  std::chrono::steady_clock::time_point added, first_token, last_token;
};

/// One request inside the engine.
struct RequestState {
  RequestId id = 0;
  Request request;
  SequenceId sequence = 0;
  std::int64_t computed = 0;  // prompt tokens whose keys and values are in the cache
  std::int64_t reused = 0;    // of these, those taken over from another request
  std::vector<files::TokenId> generated;
  TextStream text;
  Timing timing;
  FinishReason reason = FinishReason::None;

  std::int64_t prompt_left() const { return static_cast<std::int64_t>(request.prompt.size()) - computed; }
};

}  // namespace rarefy::engine
