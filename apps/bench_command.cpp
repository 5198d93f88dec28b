// `rarefy bench`: prompt processing and generation at several depths, in the form of llama-bench's rows.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "rarefy/base/check.h"
#include "rarefy/engine/feed.h"
#include "rarefy/ops/sample.h"

namespace rarefy::apps {
namespace {

struct BenchOptions {
  ModelOptions model;
  std::int64_t prompt = 512, generate = 64;
  std::vector<std::int64_t> depths = {0};
  int repetitions = 3;
  std::string format = "md";
};

struct Row {
  std::string test;
  std::int64_t depth;
  Sparsity prefill, decode;
  double mean, deviation;  // tokens per second
  std::int64_t kv_bytes;
};

/// Tokens per second of `repetitions` timed calls, each of `tokens` tokens.
template <typename Body>
std::pair<double, double> rates(int repetitions, std::int64_t tokens, Body body) {
  std::vector<double> rate;
  for (int i = 0; i < repetitions; ++i) {
    const std::chrono::duration<double> time = body();
    rate.push_back(static_cast<double>(tokens) / time.count());
  }
  double mean = 0, variance = 0;
  for (const double x : rate) mean += x / repetitions;
  for (const double x : rate) variance += (x - mean) * (x - mean) / std::max(1, repetitions - 1);
  return {mean, std::sqrt(variance)};
}

/// One model with one cache configuration; the context grows from depth to depth.
class Bench {
 public:
  Bench(const model::Model& model, const engine::EngineConfig& config, const BenchOptions& options)
      : model_(model),
        config_(config),
        options_(options),
        cache_(engine::cache_config(model.config, config), config.pruner),
        transformer_(model, engine::transformer_options(config)),
        base_(*cache_.add()) {}

  void run(std::vector<Row>& rows) {
    Progress progress("bench", "tokens", options_.depths.back());
    for (const std::int64_t depth : options_.depths) {
      if (depth > cache_.length(base_)) {
        const std::int64_t from = cache_.length(base_);
        engine::feed(transformer_, cache_, base_, tokens(depth - from - std::min(kEnd, depth - from)), depth, false,
                     [&](std::int64_t done) { progress.update(from + done); });
      }
      const SequenceId context = *cache_.fork(base_);
      if (depth > 0) engine::feed(transformer_, cache_, context, tokens(depth - cache_.length(base_)), depth, true);
      if (options_.prompt > 0) add(rows, fmt::format("pp{}", options_.prompt), depth, context, options_.prompt, true);
      if (options_.generate > 0)
        add(rows, fmt::format("tg{}", options_.generate), depth, context, options_.generate, false);
      cache_.free(context);
    }
  }

 private:
  static constexpr std::int64_t kEnd = 64;  // tokens of the context's last chunk, after which it is sealed

  std::vector<files::TokenId> tokens(std::int64_t count) {
    std::vector<files::TokenId> out(static_cast<std::size_t>(count));
    for (files::TokenId& token : out)
      token = static_cast<files::TokenId>(random_() % static_cast<std::uint64_t>(model_.config.vocab));
    return out;
  }

  void add(std::vector<Row>& rows, const std::string& test, std::int64_t depth, SequenceId context, std::int64_t count,
           bool prompt) {
    std::int64_t kv_bytes = 0;
    const auto once = [&] {
      const SequenceId sequence = *cache_.fork(context);
      const auto input = tokens(count);
      const auto start = std::chrono::steady_clock::now();
      if (prompt)
        engine::feed(transformer_, cache_, sequence, input, depth + count, true);
      else
        generate(sequence, input.front(), count);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      const CacheStats stats = cache_.stats(sequence);
      kv_bytes = stats.k_bytes + stats.v_bytes;
      cache_.free(sequence);
      return time;
    };
    once();  // warm-up
    const auto [mean, deviation] = rates(options_.repetitions, count, once);
    rows.push_back({test, depth, config_.prefill, config_.decode, mean, deviation, kv_bytes});
  }

  void generate(SequenceId sequence, files::TokenId token, std::int64_t count) {
    std::vector<float> logits(static_cast<std::size_t>(model_.config.vocab));
    const std::int32_t row = 0, q_start[] = {0, 1};
    for (std::int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<std::int32_t>(cache_.length(sequence));
      const StepSequence step{sequence, 1, Phase::Decode, 0};
      if (!cache_.begin_step({&step, 1})) fail(ErrorCode::OutOfMemory, "E_PAGES", "no cache page left");
      transformer_.forward({{&token, 1}, {&position, 1}, q_start, true}, cache_, {&row, 1},
                           make_view(logits.data(), {1, model_.config.vocab}));
      token = ops::sample(logits, {}, 0);
    }
  }

  const model::Model& model_;
  engine::EngineConfig config_;
  const BenchOptions& options_;
  KvCache cache_;
  model::Transformer transformer_;
  SequenceId base_;
  std::mt19937_64 random_{1};
};

void print(const std::vector<Row>& rows, const model::Model& model, const BenchOptions& o) {
  if (o.model.json || o.format == "json") {
    nlohmann::json out = nlohmann::json::array();
    for (const Row& r : rows)
      out.push_back({{"test", r.test},
                     {"depth", r.depth},
                     {"prefill_sparsity", {r.prefill.k, r.prefill.v}},
                     {"decode_sparsity", {r.decode.k, r.decode.v}},
                     {"t_s", r.mean},
                     {"t_s_std", r.deviation},
                     {"kv_bytes", r.kv_bytes}});
    std::cout << out.dump(1) << '\n';
    return;
  }
  const bool csv = o.format == "csv";
  fmt::print("{}", csv ? "model,size,threads,prefill,decode,test,kv_bytes,t/s,std\n"
                       : "| model | size | threads | prefill S | decode S | test | KV | t/s |\n"
                         "|---|---:|---:|---|---|---|---:|---:|\n");
  const int threads = o.model.threads > 0 ? o.model.threads : inspect_machine().threads;
  for (const Row& r : rows) {
    const std::string test = r.depth > 0 ? fmt::format("{} @ d{}", r.test, r.depth) : r.test;
    if (csv)
      fmt::print("{},{},{},{}/{},{}/{},{},{},{:.2f},{:.2f}\n", model.config.name, model.bytes, threads, r.prefill.k,
                 r.prefill.v, r.decode.k, r.decode.v, test, r.kv_bytes, r.mean, r.deviation);
    else
      fmt::print("| {} | {} | {} | {},{} | {},{} | {} | {} | {:.2f} ± {:.2f} |\n", model.config.name,
                 human_bytes(model.bytes), threads, r.prefill.k, r.prefill.v, r.decode.k, r.decode.v, test,
                 human_bytes(r.kv_bytes), r.mean, r.deviation);
  }
}

void bench(const BenchOptions& o) {
  if (o.depths.empty() || !std::is_sorted(o.depths.begin(), o.depths.end()) || o.depths.front() < 0)
    fail(ErrorCode::BadInput, "E_OPTION", "--depth: give ascending depths, none below 0");
  if (o.repetitions < 1 || o.prompt < 0 || o.generate < 0)
    fail(ErrorCode::BadInput, "E_OPTION", "--repetitions must be at least 1, --n-prompt and --n-gen at least 0");
  const Loaded loaded = load(o.model);
  const std::int64_t needed = o.depths.back() + std::max(o.prompt, o.generate);
  engine::EngineConfig config = engine_config(o.model, loaded, needed);
  config.context = needed;
  config.parallel = 3;  // the growing context, its sealed fork, and the one that is timed
  std::vector<Row> rows;
  engine::EngineConfig dense = config;
  dense.prefill = dense.decode = {};
  Bench(loaded.model, dense, o).run(rows);
  if (config.decode.k + config.decode.v > 0) Bench(loaded.model, config, o).run(rows);
  print(rows, loaded.model, o);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "speed of prompt processing (pp) and generation (tg), dense and sparse");
  const auto options = std::make_shared<BenchOptions>();
  options->model.decode_sparsity = "1,1";
  add_model_options(*command, options->model);
  command->add_option("-p,--n-prompt", options->prompt, "tokens of the prompt test (0: none)")->capture_default_str();
  command->add_option("-n,--n-gen", options->generate, "tokens of the generation test (0: none)")
      ->capture_default_str();
  command->add_option("-d,--depth,--n-depth", options->depths, "tokens in the cache before a test, ascending")
      ->delimiter(',');
  command->add_option("-r,--repetitions", options->repetitions)->capture_default_str();
  command->add_option("-o,--output", options->format)
      ->check(CLI::IsMember({"md", "csv", "json"}))
      ->capture_default_str();
  add_environment(*command);
  command->callback([options] { bench(*options); });
}

}  // namespace rarefy::apps
