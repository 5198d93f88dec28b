// Prompts with a needle, and their scores under dense and sealed caches.
#include "rarefy/eval/needle.h"

#include <algorithm>
#include <array>
#include <random>

#include "rarefy/base/check.h"
#include "rarefy/eval/distribution.h"

namespace rarefy::eval {
namespace {

using files::TokenId;
using Tokens = std::vector<TokenId>;

constexpr std::array kKeys = {"lighthouse", "harbor",  "violin", "meadow", "copper", "glacier",
                              "lantern",    "orchard", "anchor", "marble", "falcon", "willow"};

/// What is fed and what is asked. Wording: RULER's niah tasks.
struct Prompt {
  Tokens body;      // instruction and text with the needle
  Tokens question;  // with the first words of the answer
  Tokens answer;
};

void append(Tokens& to, const Tokens& more) { to.insert(to.end(), more.begin(), more.end()); }

Prompt make_prompt(const files::Tokenizer& tokenizer, std::span<const TokenId> text, std::int64_t context, double depth,
                   const std::string& key, const std::string& number) {
  Prompt prompt;
  if (tokenizer.adds_bos() && tokenizer.bos()) prompt.body.push_back(*tokenizer.bos());
  append(prompt.body,
         tokenizer.encode(
             "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz "
             "you about the numbers afterwards.\n"));
  const Tokens fact = tokenizer.encode(" One of the special magic numbers for " + key + " is: " + number + ".");
  prompt.question = tokenizer.encode("\nWhat are all the special magic numbers for " + key +
                                     " mentioned in the provided text? The special magic number for " + key +
                                     " mentioned in the provided text is");
  prompt.answer = tokenizer.encode(" " + number);
  const auto room = context - static_cast<std::int64_t>(prompt.body.size() + fact.size() + prompt.question.size() +
                                                        prompt.answer.size());
  CHECK(room >= 64, "a context of {} tokens has no room for a text around the needle", context);
  if (static_cast<std::int64_t>(text.size()) < room)
    fail(ErrorCode::BadInput, "E_TEXT_SHORT", "the text has {} tokens, a context of {} needs {}", text.size(), context,
         room);
  text = text.first(static_cast<std::size_t>(room));
  // The needle stands after the first end of a sentence behind its depth.
  auto cut = static_cast<std::size_t>(depth * static_cast<double>(room));
  while (cut + 1 < text.size() && tokenizer.decode(text[cut]).find('.') == std::string::npos) ++cut;
  append(prompt.body, Tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(cut) + 1));
  append(prompt.body, fact);
  append(prompt.body, Tokens(text.begin() + static_cast<std::ptrdiff_t>(cut) + 1, text.end()));
  return prompt;
}

/// Scores the answer after `lead` (the question, or its last token) in one pass over the cache as it is.
NeedleScore score_answer(model::Transformer& transformer, KvCache& cache, SequenceId sequence,
                         std::span<const TokenId> lead, const Tokens& answer) {
  Tokens tokens(lead.begin(), lead.end());
  tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
  const std::vector<float> logits = engine::score(transformer, cache, sequence, tokens);
  const auto vocab = static_cast<std::size_t>(transformer.model().config.vocab);
  std::vector<float> log_p(vocab);
  NeedleScore out{0, true};
  for (std::size_t i = 0; i < answer.size(); ++i) {
    log_softmax(std::span(logits).subspan((lead.size() - 1 + i) * vocab, vocab), log_p);
    out.log_p += log_p[static_cast<std::size_t>(answer[i])];
    out.right = out.right && std::max_element(log_p.begin(), log_p.end()) - log_p.begin() == answer[i];
  }
  return out;
}

/// One cache configuration with room for the growing text and its two forks.
class Runner {
 public:
  Runner(const model::Model& model, engine::EngineConfig config, std::int64_t context)
      : cache_(make_cache(model, config, context)), transformer_(model, engine::transformer_options(config)) {}

  /// Feeds the body, seals, and asks in both ways.
  void run(const Prompt& prompt, NeedleScore& aware, NeedleScore& agnostic) {
    constexpr std::size_t kEnd = 64;  // the last chunk, after which a prompt is sealed
    const SequenceId text = *cache_.add();
    const auto body = std::span(prompt.body);
    const auto total = static_cast<std::int64_t>(prompt.body.size() + prompt.question.size() - 1);
    engine::feed(transformer_, cache_, text, body.first(body.size() - kEnd), total, false);
    Tokens with_question(body.end() - kEnd, body.end());
    const SequenceId asked = *cache_.fork(text);
    engine::feed(transformer_, cache_, text, with_question, static_cast<std::int64_t>(body.size()), true);
    agnostic = score_answer(transformer_, cache_, text, prompt.question, prompt.answer);
    cache_.free(text);
    with_question.insert(with_question.end(), prompt.question.begin(), prompt.question.end() - 1);
    engine::feed(transformer_, cache_, asked, with_question, total, true);
    aware = score_answer(transformer_, cache_, asked, std::span(prompt.question).last(1), prompt.answer);
    cache_.free(asked);
  }

 private:
  static KvCache make_cache(const model::Model& model, engine::EngineConfig& config, std::int64_t context) {
    config.parallel = 2;
    config.context = context;
    return KvCache(engine::cache_config(model.config, config), config.pruner);
  }
  KvCache cache_;
  model::Transformer transformer_;
};

}  // namespace

NeedleSummary summarise(std::span<const NeedleResult> results, NeedleScore NeedleResult::*way) {
  NeedleSummary out;
  out.needles = static_cast<int>(results.size());
  for (const NeedleResult& result : results) {
    const double change = (result.*way).log_p - result.dense.log_p;
    out.right += (result.*way).right;
    out.right_dense += result.dense.right;
    out.dlogp_mean += change / static_cast<double>(results.size());
    out.dlogp_worst = std::min(out.dlogp_worst, change);
  }
  return out;
}

std::vector<NeedleResult> needle(const model::Model& model, const files::Tokenizer& tokenizer,
                                 const engine::EngineConfig& config, std::span<const TokenId> text,
                                 std::int64_t context, int needles, std::uint64_t seed,
                                 const std::function<void(int needle)>& progress) {
  CHECK(needles > 0 && needles <= 10000, "{} needles", needles);
  engine::EngineConfig dense_config = config;
  dense_config.prefill = dense_config.decode = {};
  dense_config.token_weights = TokenWeights::None;
  Runner dense(model, dense_config, context), sealed(model, config, context);
  std::mt19937_64 random(seed);
  std::vector<NeedleResult> results;
  for (int i = 0; i < needles; ++i) {
    const std::string key = kKeys[random() % kKeys.size()];
    const std::string number = std::to_string(1000000 + random() % 9000000);
    NeedleResult result;
    result.depth = (i + 0.5) / needles;
    // Stretches begin where the text still has a whole context to give.
    const auto spare = static_cast<std::int64_t>(text.size()) - context;
    const std::int64_t begin = spare > 0 ? spare * i / needles : 0;
    const Prompt prompt =
        make_prompt(tokenizer, text.subspan(static_cast<std::size_t>(begin)), context, result.depth, key, number);
    NeedleScore same;  // a dense cache does not care when the question came
    dense.run(prompt, result.dense, same);
    sealed.run(prompt, result.aware, result.agnostic);
    results.push_back(result);
    if (progress) progress(i + 1);
  }
  return results;
}

}  // namespace rarefy::eval
