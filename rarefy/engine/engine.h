// The engine: requests in, text out, one step at a time.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rarefy/cache/kv_cache.h"
#include "rarefy/cache/pruners.h"
#include "rarefy/engine/request.h"
#include "rarefy/engine/runner.h"
#include "rarefy/engine/scheduler.h"
#include "rarefy/model/transformer.h"

namespace rarefy::engine {

/// Everything that a user chooses about how a model runs.
struct EngineConfig {
  std::int64_t context = 4096;  // tokens of one sequence, prompt and answer
  int parallel = 1;             // sequences at once, at most ops::kMaxDecodeRows
  std::int64_t chunk = 512;     // prompt tokens of one step
  Precision precision = Precision::Fast;
  DType cache_dtype = DType::F16;
  int sink = 64;
  int local = 256;
  Sparsity prefill, decode;
  PrefillWindow window = PrefillWindow::Moving;
  format24::LossKind loss = format24::LossKind::L1;
  std::shared_ptr<const Pruner> pruner = std::make_shared<MagnitudePruner>();
  TokenWeights token_weights = TokenWeights::None;
  SimulatedCache simulated = SimulatedCache::None;
  std::shared_ptr<const Calibration> calibration;  // its channel order is used; null: Hugging Face's order
  Device device;
};

/// The plans that follow from a configuration.
CacheConfig cache_config(const model::Config& model, const EngineConfig& config);
model::TransformerOptions transformer_options(const EngineConfig& config);

/// What happened to one request in one step.
struct Event {
  RequestId id = 0;
  std::int64_t prompt_done = 0;  // prompt tokens in the cache so far
  std::string text;              // may be empty: characters and stop strings are held back until they are certain
  std::vector<files::TokenId> tokens;
  FinishReason reason = FinishReason::None;
  std::string error;
  Timing timing;  // complete once finished
};

/// Serves requests on one model. Not thread-safe; a request's tokens do not depend on the other requests.
class Engine {
 public:
  /// `model` and `tokenizer` must outlive the engine. Throws BadInput (config), OutOfMemory, Unsupported.
  Engine(const model::Model& model, const files::Tokenizer& tokenizer, EngineConfig config);

  /// Takes a request. Throws BadInput: E_PROMPT_EMPTY, E_CONTEXT (gives prompt length, asked-for tokens, context),
  /// E_TOKEN_RANGE, E_STOP_EMPTY, sampling values out of range, `continues` of a request that is not kept.
  RequestId add(Request request);
  /// Runs one step; events of the requests it touched. Nothing to do: no events.
  std::vector<Event> step();
  bool idle() const { return scheduler_.idle(); }
  /// Ends a request at once, or gives a kept one's cache back. Unknown ids are ignored.
  void release(RequestId id);

  const KvCache& cache() const { return cache_; }
  /// Cache of one request; it must be running or kept.
  CacheStats stats(RequestId id) const;
  const EngineConfig& config() const { return config_; }

 private:
  void admit();  ///< gives waiting requests a sequence, a continued request's own where that is possible
  RequestState* reusable(const RequestState& request) const;
  Event advance(const Sampled& sampled);
  void finish(RequestState& request, FinishReason reason, Event& event);

  const files::Tokenizer& tokenizer_;
  EngineConfig config_;
  KvCache cache_;
  model::Transformer transformer_;
  Scheduler scheduler_;
  Runner runner_;
  std::map<RequestId, std::unique_ptr<RequestState>> requests_;
  RequestId next_id_ = 1;
};

}  // namespace rarefy::engine
