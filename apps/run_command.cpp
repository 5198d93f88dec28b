// `rarefy run`: continue a prompt, or chat in the terminal.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "rarefy/base/check.h"
#include "rarefy/files/chat_template.h"

namespace rarefy::apps {
namespace {

struct RunOptions {
  ModelOptions model;
  std::string prompt, file, system;
  bool chat = false;
  std::int64_t max_tokens = -1;
  ops::SamplingParams sampling;
  std::vector<std::string> stop;
};

/// What one answer cost.
struct Report {
  std::string text;
  std::int64_t prompt_tokens = 0, reused = 0, generated = 0;
  double ttft = 0, tpot = 0;  // seconds
  engine::FinishReason reason = engine::FinishReason::None;
  CacheStats cache;
};

double seconds(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Runs one request to its end, streaming its text to `out` (may be null).
Report answer(engine::Engine& engine, engine::Request request, std::FILE* out, engine::RequestId& id) {
  Report report;
  report.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  request.keep = true;  // its cache is read for the numbers, or continued
  Progress progress("prefill", "tokens", report.prompt_tokens);
  id = engine.add(std::move(request));
  engine::Timing timing;
  while (report.reason == engine::FinishReason::None && !interrupted()) {
    for (engine::Event& event : engine.step()) {
      if (event.reason == engine::FinishReason::Failed)
        fail(ErrorCode::BadInput, "E_REQUEST", "the request failed: {}", event.error);
      if (event.tokens.empty() && event.reason == engine::FinishReason::None)
        progress.update(event.prompt_done);
      else
        progress.clear();
      report.generated += static_cast<std::int64_t>(event.tokens.size());
      report.text += event.text;
      report.reason = event.reason;
      timing = event.timing;
      if (out != nullptr && !event.text.empty()) {
        std::fwrite(event.text.data(), 1, event.text.size(), out);
        std::fflush(out);
      }
    }
  }
  progress.clear();
  report.cache = engine.stats(id);
  if (report.reason != engine::FinishReason::None) {
    report.ttft = seconds(timing.added, timing.first_token);
    if (report.generated > 1)
      report.tpot = seconds(timing.first_token, timing.last_token) / static_cast<double>(report.generated - 1);
  }
  return report;
}

double ratio(const CacheStats& s) {
  const std::int64_t stored = s.k_bytes + s.v_bytes;
  return stored == 0 ? 1 : 2.0 * static_cast<double>(s.dense_bytes) / static_cast<double>(stored);
}

void print_numbers(const Report& r) {
  fmt::print(stderr,
             "\nprompt {} tokens ({} reused)  TTFT {:.2f} s  {:.1f} tokens/s | generated {}  TPOT {:.1f} ms  {:.1f} "
             "tokens/s | finish: {}\n",
             r.prompt_tokens, r.reused, r.ttft, r.ttft > 0 ? static_cast<double>(r.prompt_tokens) / r.ttft : 0.0,
             r.generated, r.tpot * 1e3, r.tpot > 0 ? 1 / r.tpot : 0.0, to_string(r.reason));
  const CacheStats& s = r.cache;
  fmt::print(stderr, "KV cache: K {} of {} dense, V {} of {}, ratio {:.2f}x | blocks {}, sealed K {} V {}, map {}\n",
             human_bytes(s.k_bytes), human_bytes(s.dense_bytes), human_bytes(s.v_bytes), human_bytes(s.dense_bytes),
             ratio(s), s.blocks, s.sealed_k, s.sealed_v, human_bytes(s.map_bytes));
}

void print_json(const Report& r) {
  const CacheStats& s = r.cache;
  const nlohmann::json out = {{"text", r.text},
                              {"finish", to_string(r.reason)},
                              {"prompt_tokens", r.prompt_tokens},
                              {"generated_tokens", r.generated},
                              {"ttft_s", r.ttft},
                              {"prompt_tokens_per_s", r.ttft > 0 ? static_cast<double>(r.prompt_tokens) / r.ttft : 0.0},
                              {"tpot_s", r.tpot},
                              {"tokens_per_s", r.tpot > 0 ? 1 / r.tpot : 0.0},
                              {"kv",
                               {{"k_bytes", s.k_bytes},
                                {"v_bytes", s.v_bytes},
                                {"dense_bytes_per_side", s.dense_bytes},
                                {"map_bytes", s.map_bytes},
                                {"ratio", ratio(s)},
                                {"blocks", s.blocks},
                                {"sealed_k", s.sealed_k},
                                {"sealed_v", s.sealed_v}}}};
  std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

void chat(engine::Engine& engine, const files::Tokenizer& tokenizer, const RunOptions& o) {
  const files::ChatFormat format = files::detect_chat_format(tokenizer.chat_template(), tokenizer);
  std::vector<files::ChatMessage> messages;
  if (!o.system.empty()) messages.push_back({"system", o.system});
  std::optional<engine::RequestId> last;
  fmt::print(stderr, "chat ({}); an empty line or Ctrl-D ends it\n", to_string(format));
  while (!interrupted()) {
    fmt::print(stderr, "> ");
    std::string line;
    if (!std::getline(std::cin, line) || line.empty()) break;
    messages.push_back({"user", line});
    engine::Request request;
    request.prompt = files::render_chat(format, tokenizer, messages);
    request.max_tokens = o.max_tokens;
    request.sampling = o.sampling;
    request.stop = o.stop;
    request.continues = last;
    engine::RequestId id = 0;
    const Report report = answer(engine, std::move(request), stdout, id);
    last = id;
    std::cout << std::endl;
    print_numbers(report);
    messages.push_back({"assistant", report.text});
  }
}

int run(const RunOptions& o) {
  const int sources = !o.prompt.empty() + !o.file.empty() + o.chat;
  if (sources != 1)
    fail(ErrorCode::BadInput, "E_OPTION", "give one of --prompt, --file and --chat ({} were given)", sources);
  if (o.max_tokens < -1) fail(ErrorCode::BadInput, "E_OPTION", "--n-predict: {} is below -1", o.max_tokens);
  ops::check_sampling(o.sampling);
  // The prompt is read first: a missing file should not cost a model load.
  const std::string text = o.file.empty() ? o.prompt : read_text(o.file);
  const Loaded loaded = load(o.model);
  handle_interrupts();
  engine::Request request;
  std::int64_t needed = 0;
  if (!o.chat) {
    request.prompt = encode_raw(loaded.tokenizer, text);
    needed = static_cast<std::int64_t>(request.prompt.size());
    if (needed == 0) fail(ErrorCode::BadInput, "E_PROMPT_EMPTY", "the prompt has no tokens");
  }
  engine::Engine engine(loaded.model, loaded.tokenizer, engine_config(o.model, loaded, 0));
  if (o.chat) {
    chat(engine, loaded.tokenizer, o);
    return interrupted() ? 130 : 0;
  }
  request.max_tokens = o.max_tokens;
  request.sampling = o.sampling;
  request.stop = o.stop;
  engine::RequestId id = 0;
  const Report report = answer(engine, std::move(request), o.model.json ? nullptr : stdout, id);
  if (o.model.json) {
    print_json(report);
  } else {
    std::cout << std::endl;
    print_numbers(report);
  }
  return interrupted() ? 130 : 0;
}

}  // namespace

void add_run_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("run", "continue a prompt, or chat");
  const auto options = std::make_shared<RunOptions>();
  add_model_options(*command, options->model);
  command->add_option("-p,--prompt", options->prompt, "text to be continued, as it is");
  command->add_option("-f,--file", options->file, "file of text to be continued, as it is");
  command->add_flag("--chat", options->chat, "chat in the terminal, in the model's format");
  command->add_option("--system", options->system, "system message of the chat");
  command->add_option("-n,--n-predict,--max-tokens", options->max_tokens, "tokens to generate (-1: until the end)")
      ->capture_default_str();
  command->add_option("--temp,--temperature", options->sampling.temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "0: all")->capture_default_str();
  command->add_option("--top-p", options->sampling.top_p)->capture_default_str();
  command->add_option("--min-p", options->sampling.min_p)->capture_default_str();
  command->add_option("--seed", options->sampling.seed)->capture_default_str();
  command->add_option("--stop", options->stop, "a text that ends generation (may be repeated)");
  add_environment(*command);
  command->callback([options, &status] { status = run(*options); });
}

}  // namespace rarefy::apps
