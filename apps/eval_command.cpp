// `rarefy eval`: what a sealed cache does to a model's answers.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "rarefy/base/check.h"
#include "rarefy/eval/needle.h"
#include "rarefy/eval/perplexity.h"

namespace rarefy::apps {
namespace {

struct PerplexityOptions {
  ModelOptions model;
  std::string file, simulate = "none";
  std::int64_t tail = 512;
};

void perplexity(const PerplexityOptions& o) {
  const std::string text = read_text(o.file);
  const Loaded loaded = load(o.model);
  std::vector<files::TokenId> tokens = encode_raw(loaded.tokenizer, text);
  const std::int64_t wanted = o.model.context > 0 ? o.model.context : static_cast<std::int64_t>(tokens.size());
  if (static_cast<std::int64_t>(tokens.size()) < wanted)
    fail(ErrorCode::BadInput, "E_TEXT_SHORT", "{}: has {} tokens, --ctx-size asks for {}", o.file, tokens.size(),
         wanted);
  tokens.resize(static_cast<std::size_t>(wanted));
  engine::EngineConfig config = engine_config(o.model, loaded, wanted);
  config.simulated = choose<SimulatedCache>(
      "--simulate-cache", o.simulate,
      {{"none", SimulatedCache::None}, {"q8_0", SimulatedCache::Q8_0}, {"q4_1", SimulatedCache::Q4_1}});
  Progress progress("perplexity", "tokens", 2 * (wanted - o.tail));
  const eval::PerplexityResult r =
      eval::perplexity(loaded.model, config, tokens, o.tail, [&](std::int64_t done) { progress.update(done); });
  progress.clear();
  const eval::Divergence& d = r.divergence;
  if (o.model.json) {
    std::cout << nlohmann::json{{"tokens", d.tokens},
                                {"kl_mean", d.kl_mean},
                                {"kl_stderr", d.kl_stderr},
                                {"kl_p99", d.kl_p99},
                                {"top1", d.top1},
                                {"ppl", d.ppl},
                                {"ppl_dense", d.ppl_reference},
                                {"kv_bytes", r.kv_bytes},
                                {"kv_bytes_dense", r.kv_bytes_dense}}
              << '\n';
    return;
  }
  fmt::print(
      "| tokens scored | KL mean | KL p99 | same top token | perplexity | dense | KV | dense |\n"
      "|---:|---:|---:|---:|---:|---:|---:|---:|\n"
      "| {} | {:.5f} ± {:.5f} | {:.4f} | {:.1f} % | {:.3f} | {:.3f} | {} | {} |\n",
      d.tokens, d.kl_mean, d.kl_stderr, d.kl_p99, 100 * d.top1, d.ppl, d.ppl_reference, human_bytes(r.kv_bytes),
      human_bytes(r.kv_bytes_dense));
}

struct NeedleOptions {
  ModelOptions model;
  std::string file;
  int needles = 12;
  std::uint64_t seed = 42;
};

nlohmann::json to_json(const eval::NeedleSummary& s) {
  return {{"needles", s.needles},
          {"right", s.right},
          {"right_dense", s.right_dense},
          {"dlogp_mean", s.dlogp_mean},
          {"dlogp_worst", s.dlogp_worst}};
}

void needle(const NeedleOptions& o) {
  const std::string text = read_text(o.file);
  const Loaded loaded = load(o.model);
  const std::vector<files::TokenId> tokens = loaded.tokenizer.encode(text);
  const std::int64_t context = o.model.context > 0 ? o.model.context : static_cast<std::int64_t>(tokens.size());
  const engine::EngineConfig config = engine_config(o.model, loaded, context);
  Progress progress("needle", "needles", o.needles);
  const auto results = eval::needle(loaded.model, loaded.tokenizer, config, tokens, context, o.needles, o.seed,
                                    [&](int done) { progress.update(done); });
  progress.clear();
  const auto aware = eval::summarise(results, &eval::NeedleResult::aware),
             agnostic = eval::summarise(results, &eval::NeedleResult::agnostic);
  if (o.model.json) {
    std::cout << nlohmann::json{{"aware", to_json(aware)}, {"agnostic", to_json(agnostic)}} << '\n';
    return;
  }
  fmt::print(
      "| question | needles | right | right, dense | mean change of log p | worst |\n|---|---:|---:|---:|---:|---:|\n");
  for (const auto& [name, s] :
       {std::pair{"in the prompt (aware)", aware}, std::pair{"second turn (agnostic)", agnostic}})
    fmt::print("| {} | {} | {} | {} | {:.3f} | {:.3f} |\n", name, s.needles, s.right, s.right_dense, s.dlogp_mean,
               s.dlogp_worst);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "quality of a sealed cache");
  command->require_subcommand(1);
  CLI::App* ppl = command->add_subcommand("perplexity", "next-token distribution against the dense cache");
  const auto options = std::make_shared<PerplexityOptions>();
  add_model_options(*ppl, options->model);
  ppl->add_option("-f,--file", options->file, "text; its first --ctx-size tokens are used")->required();
  ppl->add_option("--tail", options->tail, "tokens at the end that are scored")->capture_default_str();
  ppl->add_option("--simulate-cache", options->simulate,
                  "rounds keys and values as a q8_0 or q4_1 cache would (to compare; no bytes saved)")
      ->capture_default_str();
  add_environment(*ppl);
  ppl->callback([options] { perplexity(*options); });

  CLI::App* needles = command->add_subcommand("needle", "facts hidden in a text, asked before and after it was sealed");
  const auto needle_options = std::make_shared<NeedleOptions>();
  add_model_options(*needles, needle_options->model);
  needles->add_option("-f,--file", needle_options->file, "text that hides the needles")->required();
  needles->add_option("--needles", needle_options->needles, "needles, one per run")->capture_default_str();
  needles->add_option("--seed", needle_options->seed, "of keys and numbers")->capture_default_str();
  add_environment(*needles);
  needles->callback([needle_options] { needle(*needle_options); });
}

}  // namespace rarefy::apps
