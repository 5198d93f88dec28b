// A request's life: add, wait for a slot, prompt in chunks, one token per step, end.
#include "rarefy/engine/engine.h"

#include <algorithm>

#include "rarefy/base/check.h"

namespace rarefy::engine {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::None:
      return "none";
    case FinishReason::End:
      return "end";
    case FinishReason::Stop:
      return "stop";
    case FinishReason::Length:
      return "length";
    case FinishReason::Context:
      return "context";
    case FinishReason::Failed:
      return "failed";
  }
  return "?";
}

CacheConfig cache_config(const model::Config& model, const EngineConfig& config) {
  CacheConfig cache;
  cache.layers = model.layers;
  cache.q_heads = model.q_heads;
  cache.kv_heads = model.kv_heads;
  cache.head_dim = model.head_dim;
  cache.dtype = config.cache_dtype;
  cache.max_sequences = config.parallel;
  cache.max_tokens = config.context;
  cache.max_chunk = config.chunk;
  cache.sink = config.sink;
  cache.local = config.local;
  cache.prefill = config.prefill;
  cache.decode = config.decode;
  cache.window = config.window;
  cache.loss = config.loss;
  cache.token_weights = config.token_weights;
  cache.calibration = config.calibration;
  cache.simulated = config.simulated;
  cache.device = config.device;
  return cache;
}

model::TransformerOptions transformer_options(const EngineConfig& config) {
  return {config.precision, config.context, std::max<std::int64_t>(config.chunk, config.parallel), config.local,
          config.calibration != nullptr ? config.calibration->order : std::vector<std::int32_t>{}};
}

namespace {

EngineConfig checked(EngineConfig config, const model::Model& model) {
  CHECK(config.context >= 1 && config.context <= model.config.max_context,
        "context of {} tokens: the model was made for {}", config.context, model.config.max_context);
  CHECK(config.parallel >= 1 && config.parallel <= ops::kMaxDecodeRows, "{} sequences at once, must be 1 to {}",
        config.parallel, ops::kMaxDecodeRows);
  CHECK(config.chunk >= 1 && config.chunk <= 1 << 20, "chunk of {} tokens, must be 1 to {}", config.chunk, 1 << 20);
  config.chunk = std::min(config.chunk, config.context);
  return config;
}

}  // namespace

Engine::Engine(const model::Model& model, const files::Tokenizer& tokenizer, EngineConfig config)
    : tokenizer_(tokenizer),
      config_(checked(std::move(config), model)),
      cache_(cache_config(model.config, config_), config_.pruner),
      transformer_(model, transformer_options(config_), config_.device),
      scheduler_(config_.chunk),
      runner_(transformer_) {}

RequestId Engine::add(Request request) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) fail(ErrorCode::BadInput, "E_PROMPT_EMPTY", "the prompt has no tokens");
  const std::int64_t asked = std::max<std::int64_t>(request.max_tokens, 0);
  if (prompt >= config_.context + (asked == 0) || asked > config_.context - prompt)
    fail(ErrorCode::BadInput, "E_CONTEXT", "a prompt of {} tokens and {} to generate do not fit a context of {} tokens",
         prompt, request.max_tokens < 0 ? "at least 1" : fmt::format("{}", asked), config_.context);
  for (std::size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= transformer_.model().config.vocab)
      fail(ErrorCode::BadInput, "E_TOKEN_RANGE", "prompt token {} is {}, must be in [0, {})", i, request.prompt[i],
           transformer_.model().config.vocab);
  ops::check_sampling(request.sampling);
  if (request.continues) {
    const auto kept = requests_.find(*request.continues);
    CHECK(kept != requests_.end() && kept->second->request.keep && kept->second->reason != FinishReason::None,
          "request {} was not kept", *request.continues);
  }

  auto state = std::make_unique<RequestState>();
  state->id = next_id_++;
  state->text = TextStream(request.stop);
  state->timing.added = std::chrono::steady_clock::now();
  state->request = std::move(request);
  scheduler_.enqueue(state.get());
  return requests_.emplace(state->id, std::move(state)).first->first;
}

/// The kept request whose cache `request` may take over: all its cached tokens begin the new prompt. Else null.
RequestState* Engine::reusable(const RequestState& request) const {
  if (!request.request.continues) return nullptr;
  const auto kept = requests_.find(*request.request.continues);
  if (kept == requests_.end()) return nullptr;
  const RequestState& old = *kept->second;
  std::vector<files::TokenId> cached = old.request.prompt;
  cached.insert(cached.end(), old.generated.begin(), old.generated.end());
  cached.resize(static_cast<std::size_t>(cache_.length(old.sequence)));  // the last token was never fed
  const auto& prompt = request.request.prompt;
  const bool begins = cached.size() < prompt.size() && std::equal(cached.begin(), cached.end(), prompt.begin());
  return begins ? kept->second.get() : nullptr;
}

void Engine::admit() {
  while (RequestState* request = scheduler_.next_waiting()) {
    if (RequestState* old = reusable(*request)) {
      request->sequence = old->sequence;
      request->computed = request->reused = cache_.length(old->sequence);
      requests_.erase(old->id);
    } else {
      if (request->request.continues) release(*request->request.continues);
      const auto sequence = cache_.add();
      if (!sequence) return;
      request->sequence = *sequence;
    }
    scheduler_.admit();
  }
}

std::vector<Event> Engine::step() {
  admit();
  const Batch batch = scheduler_.next_batch();
  if (batch.empty()) {
    RequestState* waiting = scheduler_.next_waiting();
    if (waiting == nullptr) return {};
    Event event{.id = waiting->id, .error = "every sequence is kept by a finished request"};
    finish(*waiting, FinishReason::Failed, event);
    return {event};
  }
  std::vector<Event> events;
  if (!cache_.begin_step(batch.sequences)) {
    // The pools are planned for every admitted request, so this is a configuration with fewer pages: end the newest.
    RequestState& newest = *batch.requests.back();
    Event event{.id = newest.id, .error = "out of cache pages"};
    finish(newest, FinishReason::Failed, event);
    return {event};
  }
  const std::vector<Sampled> sampled = runner_.step(batch, cache_);
  if (!batch.decode) {
    RequestState& request = *batch.requests.front();
    request.computed += static_cast<std::int64_t>(batch.tokens.size());
    if (sampled.empty()) return {Event{.id = request.id, .prompt_done = request.computed}};
    scheduler_.prefill_done(&request);
  }
  for (const Sampled& one : sampled) events.push_back(advance(one));
  return events;
}

Event Engine::advance(const Sampled& sampled) {
  RequestState& request = *sampled.request;
  Event event{.id = request.id, .prompt_done = request.computed};
  if (!sampled.token) {
    event.error = sampled.error;
    finish(request, FinishReason::Failed, event);
    return event;
  }
  const files::TokenId token = *sampled.token;
  const auto now = std::chrono::steady_clock::now();
  if (request.generated.empty()) request.timing.first_token = now;
  request.timing.last_token = now;
  if (request.request.max_tokens == 0) {
    finish(request, FinishReason::Length, event);
    return event;
  }
  const auto& ends = tokenizer_.ends();
  if (!request.request.ignore_end && std::find(ends.begin(), ends.end(), token) != ends.end()) {
    finish(request, FinishReason::End, event);
    return event;
  }
  request.generated.push_back(token);
  event.tokens.push_back(token);
  event.text = request.text.push(tokenizer_.decode(token));
  const auto generated = static_cast<std::int64_t>(request.generated.size());
  if (request.text.stopped())
    finish(request, FinishReason::Stop, event);
  else if (generated == request.request.max_tokens)
    finish(request, FinishReason::Length, event);
  else if (static_cast<std::int64_t>(request.request.prompt.size()) + generated >= config_.context)
    finish(request, FinishReason::Context, event);
  return event;
}

void Engine::finish(RequestState& request, FinishReason reason, Event& event) {
  request.reason = event.reason = reason;
  event.text += request.text.finish();
  event.timing = request.timing;
  if (!request.request.keep || reason == FinishReason::Failed)
    release(request.id);
  else
    scheduler_.remove(&request);
}

void Engine::release(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  RequestState& request = *found->second;
  const bool waiting = scheduler_.is_waiting(&request);
  scheduler_.remove(&request);
  if (!waiting) cache_.free(request.sequence);
  requests_.erase(found);
}

CacheStats Engine::stats(RequestId id) const {
  const auto found = requests_.find(id);
  CHECK(found != requests_.end(), "request {} is unknown", id);
  return cache_.stats(found->second->sequence);
}

}  // namespace rarefy::engine
