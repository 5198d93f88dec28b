// The engine on the real model: requests alone and together, reasons to stop, errors, continued caches.
#include "rarefy/engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"
#include "tests/model_fixture.h"

namespace rarefy::engine {
namespace {

struct Loaded {
  model::Model model = model::load_model(testing::model_path());
  files::Tokenizer tokenizer = files::Tokenizer::from_gguf(files::Gguf(testing::model_path()));
};

const Loaded& loaded() {
  static const Loaded value;
  return value;
}

EngineConfig config_of(int parallel = 1) {
  EngineConfig config;
  config.context = 1024;
  config.parallel = parallel;
  config.chunk = 128;
  config.decode = {1, 1};
  return config;
}

Request request_of(const std::string& text, std::int64_t tokens = 12) {
  Request request;
  request.prompt = loaded().tokenizer.encode(text);
  request.max_tokens = tokens;
  return request;
}

struct Answer {
  std::string text;
  std::vector<files::TokenId> tokens;
  FinishReason reason = FinishReason::None;
  std::string error;
};

std::map<RequestId, Answer> run(Engine& engine) {
  std::map<RequestId, Answer> answers;
  while (!engine.idle())
    for (const Event& event : engine.step()) {
      Answer& a = answers[event.id];
      a.text += event.text;
      a.tokens.insert(a.tokens.end(), event.tokens.begin(), event.tokens.end());
      a.reason = event.reason;
      a.error = event.error;
    }
  return answers;
}

Answer one(Request request, const EngineConfig& config = config_of()) {
  Engine engine(loaded().model, loaded().tokenizer, config);
  const RequestId id = engine.add(std::move(request));
  return run(engine)[id];
}

std::string error_id(const std::function<void()>& body) {
  try {
    body();
    return "none";
  } catch (const Error& e) {
    return e.id();
  }
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "The river number " + std::to_string(i) + " flows through a valley of grey stones. ";
  return text;
}

TEST(SlowEngine, AnswersAndIsDeterministic) {
  SKIP_WITHOUT_MODEL();
  const Answer a = one(request_of("The capital of France is"));
  EXPECT_EQ(a.reason, FinishReason::Length);
  EXPECT_NE(a.text.find("Paris"), std::string::npos) << a.text;
  EXPECT_EQ(one(request_of("The capital of France is")).tokens, a.tokens);
  Request warm = request_of("The capital of France is");
  warm.sampling = {.temperature = 1, .seed = 5};
  EXPECT_EQ(one(warm).tokens, one(warm).tokens);
}

TEST(SlowEngine, ARequestDoesNotDependOnItsNeighbours) {
  SKIP_WITHOUT_MODEL();
  const std::vector<std::string> prompts = {"Once upon a time", long_text(), "1, 2, 3, 4,"};
  Engine engine(loaded().model, loaded().tokenizer, config_of(3));
  std::vector<RequestId> ids;
  for (const std::string& prompt : prompts) ids.push_back(engine.add(request_of(prompt, 20)));
  auto together = run(engine);
  for (std::size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(together[ids[i]].tokens, one(request_of(prompts[i], 20), config_of(3)).tokens) << prompts[i];
  EXPECT_EQ(engine.cache().dense_pages_used(), 0);
  EXPECT_EQ(engine.cache().sparse_pages_used(), 0);
}

TEST(SlowEngine, NoTraceOfTheLastConversation) {
  SKIP_WITHOUT_MODEL();
  Engine engine(loaded().model, loaded().tokenizer, config_of());
  engine.add(request_of(long_text(), 5));
  run(engine);
  const RequestId id = engine.add(request_of("Once upon a time", 12));
  EXPECT_EQ(run(engine)[id].tokens, one(request_of("Once upon a time", 12)).tokens);
}

TEST(SlowEngine, MoreRequestsThanSlotsWaitTheirTurn) {
  SKIP_WITHOUT_MODEL();
  Engine engine(loaded().model, loaded().tokenizer, config_of(2));
  for (int i = 0; i < 5; ++i) engine.add(request_of("Hello number " + std::to_string(i), 3));
  const auto answers = run(engine);
  EXPECT_EQ(answers.size(), 5u);
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.reason, FinishReason::Length);
}

TEST(SlowEngine, ReasonsToStop) {
  SKIP_WITHOUT_MODEL();
  Request stop = request_of("The capital of France is", 50);
  stop.stop = {"Par"};
  const Answer stopped = one(stop);
  EXPECT_EQ(stopped.reason, FinishReason::Stop);
  EXPECT_EQ(stopped.text, " ");
  EngineConfig tiny = config_of();
  tiny.context = 16;
  EXPECT_EQ(one(request_of("The capital of France is", -1), tiny).reason, FinishReason::Context);
  EXPECT_EQ(one(request_of("The capital of France is", 0)).reason, FinishReason::Length);
  EXPECT_EQ(one(request_of("The capital of France is", 0)).tokens.size(), 0u);
}

TEST(SlowEngine, BadRequests) {
  SKIP_WITHOUT_MODEL();
  Engine engine(loaded().model, loaded().tokenizer, config_of());
  EXPECT_EQ(error_id([&] { engine.add({}); }), "E_PROMPT_EMPTY");
  Request request = request_of("x");
  request.prompt = {-1};
  EXPECT_EQ(error_id([&] { engine.add(request); }), "E_TOKEN_RANGE");
  request.prompt = {49152};
  EXPECT_EQ(error_id([&] { engine.add(request); }), "E_TOKEN_RANGE");
  request.prompt.assign(1025, 1);
  EXPECT_EQ(error_id([&] { engine.add(request); }), "E_CONTEXT");
  request = request_of("x", 1024);
  EXPECT_EQ(error_id([&] { engine.add(request); }), "E_CONTEXT");
  request = request_of("x");
  request.stop = {""};
  EXPECT_EQ(error_id([&] { engine.add(request); }), "E_STOP_EMPTY");
  request = request_of("x");
  request.sampling.temperature = std::nanf("");
  EXPECT_NE(error_id([&] { engine.add(request); }), "none");
  request = request_of("x");
  request.continues = 99;
  EXPECT_NE(error_id([&] { engine.add(request); }), "none");
  EXPECT_TRUE(engine.idle());
}

TEST(SlowEngine, AContinuedCacheGivesTheSameAnswer) {
  SKIP_WITHOUT_MODEL();
  EngineConfig dense = config_of();
  dense.decode = {};
  Engine engine(loaded().model, loaded().tokenizer, dense);
  Request first = request_of("My name is Ada. Your name is", 8);
  first.keep = true;
  const RequestId id = engine.add(first);
  const Answer answer = run(engine)[id];
  Request second = first;
  second.prompt.insert(second.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  const auto more = loaded().tokenizer.encode(" And my name is");
  second.prompt.insert(second.prompt.end(), more.begin(), more.end());
  Request fresh = second;
  second.continues = id;
  const RequestId next = engine.add(second);
  const Answer continued = run(engine)[next];
  EXPECT_EQ(continued.tokens, one(fresh, dense).tokens);
  // A prompt that does not begin with the kept tokens is computed from the start.
  Request other = request_of("Something else", 4);
  other.continues = next;
  const RequestId last = engine.add(other);
  EXPECT_EQ(run(engine)[last].tokens, one(request_of("Something else", 4), dense).tokens);
}

TEST(SlowEngine, AKeptCacheDoesNotBlockForEver) {
  SKIP_WITHOUT_MODEL();
  Engine engine(loaded().model, loaded().tokenizer, config_of());
  Request first = request_of("Hello", 2);
  first.keep = true;
  const RequestId kept = engine.add(first);
  run(engine);
  const RequestId id = engine.add(request_of("Hello", 2));
  EXPECT_EQ(run(engine)[id].reason, FinishReason::Failed);
  engine.release(kept);
  const RequestId again = engine.add(request_of("Hello", 2));
  EXPECT_EQ(run(engine)[again].reason, FinishReason::Length);
}

}  // namespace
}  // namespace rarefy::engine
