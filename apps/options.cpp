// Shared options: parsing, model loading, context against memory.
#include "apps/options.h"

#include <omp.h>
#include <spdlog/spdlog.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "apps/machine.h"
#include "apps/progress.h"
#include "apps/pruner_option.h"
#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"

namespace rarefy::apps {

void add_model_options(CLI::App& command, ModelOptions& o) {
  command.add_option("-m,--model", o.model, "a GGUF file, or a Hugging Face folder")->required();
  command.add_option("-c,--ctx-size,--max-model-len", o.context,
                     "context length in tokens (0: the model's, if it fits)");
  command.add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--prefill-sparsity", o.prefill_sparsity, "K,V: share of blocks sealed while the prompt is read")
      ->capture_default_str();
  command.add_option("--decode-sparsity", o.decode_sparsity, "K,V: share of blocks sealed after the prompt")
      ->capture_default_str();
  command.add_option("--kv-sink", o.sink, "tokens at the start that stay dense")->capture_default_str();
  command.add_option("--kv-local", o.local, "tokens before the query that are read dense")->capture_default_str();
  command.add_option("--prefill-window", o.prefill_window, "moving, or prompt (the paper's)")->capture_default_str();
  command.add_option("--pruner", o.pruner, "calibrated, calibrated:FILE, magnitude, or channels:FILE")
      ->capture_default_str();
  command.add_option("--token-weights", o.token_weights, "of calibrated values: probe, recent, or none")
      ->capture_default_str();
  command.add_option("--block-loss", o.block_loss, "ranks blocks if S is below 1: energy, or l1")
      ->capture_default_str();
  command.add_option("--precision", o.precision, "fast, or fp32")->capture_default_str();
  command.add_option("--cache-type", o.cache_type, "f16 or bf16")->capture_default_str();
  command.add_option("-b,-u,--chunk-size,--ubatch-size", o.chunk, "prompt tokens of one step")->capture_default_str();
  command.add_option("-t,--threads", o.threads, "CPU threads (0: all)")->capture_default_str();
  command.add_flag("--json", o.json, "results as one JSON object on stdout");
}

void add_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames().front() == "help") continue;
    std::string name = "RAREFY_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname(name);
  }
}

Loaded load(const ModelOptions& options) {
  if (options.threads < 0) fail(ErrorCode::BadInput, "E_OPTION", "--threads: {} is below 0", options.threads);
  if (options.threads > 0) omp_set_num_threads(options.threads);
  require_device(parse_device(options.device));
  Progress progress("load", "tensors", 1);
  model::Model model = model::load_model(options.model);
  progress.update(1);
  files::Tokenizer tokenizer =
      model.gguf != nullptr ? files::Tokenizer::from_gguf(*model.gguf) : files::Tokenizer::from_folder(options.model);
  if (tokenizer.vocab_size() > model.config.vocab)
    fail(ErrorCode::BadFile, "E_CFG_MISMATCH", "{}: the tokenizer has {} tokens, the model {}", options.model,
         tokenizer.vocab_size(), model.config.vocab);
  return {std::move(model), std::move(tokenizer)};
}

Sparsity parse_sparsity(const std::string& option, const std::string& text) {
  float values[2] = {};
  const char* at = text.data();
  const char* end = at + text.size();
  for (int i = 0; i < 2; ++i) {
    const auto [next, error] = std::from_chars(at, end, values[i]);
    const bool separated = i == 0 ? next != end && *next == ',' : next == end;
    if (error != std::errc{} || !separated || !(values[i] >= 0 && values[i] <= 1))
      fail(ErrorCode::BadInput, "E_OPTION", "{}: '{}' is not K,V with both in [0, 1]", option, text);
    at = next + 1;
  }
  return {values[0], values[1]};
}

namespace {

/// Bytes that a context of `tokens` needs beside the weights: the cache's pages and the scratch rows.
std::int64_t context_bytes(const model::Config& model, const engine::EngineConfig& config, std::int64_t tokens) {
  const double dense = 2.0 * model.layers * model.kv_heads * model.head_dim * 2 * static_cast<double>(tokens);
  const double sealed = 1 - 0.21875 * (config.decode.k + config.decode.v);
  const double scratch = 16.0 * static_cast<double>(config.chunk) * (model.hidden + model.intermediate);
  return static_cast<std::int64_t>(dense * sealed * config.parallel + scratch);
}

}  // namespace

engine::EngineConfig engine_config(const ModelOptions& o, const Loaded& loaded, std::int64_t needed) {
  const model::Model& model = loaded.model;
  engine::EngineConfig config;
  config.device = parse_device(o.device);
  config.chunk = o.chunk;
  config.precision =
      choose<Precision>("--precision", o.precision, {{"fast", Precision::Fast}, {"fp32", Precision::Fp32}});
  config.cache_dtype = choose<DType>("--cache-type", o.cache_type, {{"f16", DType::F16}, {"bf16", DType::BF16}});
  config.window = choose<PrefillWindow>("--prefill-window", o.prefill_window,
                                        {{"moving", PrefillWindow::Moving}, {"prompt", PrefillWindow::Prompt}});
  config.prefill = parse_sparsity("--prefill-sparsity", o.prefill_sparsity);
  config.decode = parse_sparsity("--decode-sparsity", o.decode_sparsity);
  // A block sealed in prefill stays sealed: decode cannot have less.
  config.decode = {std::max(config.decode.k, config.prefill.k), std::max(config.decode.v, config.prefill.v)};
  config.sink = o.sink;
  config.local = o.local;

  const std::int64_t most = model.config.max_context;
  if (o.context < 0 || o.context > most)
    fail(ErrorCode::BadInput, "E_CONTEXT", "--ctx-size: {} tokens, the model was made for at most {}", o.context, most);
  // The mapped weights count too: they must stay in memory for decoding to run at its speed.
  const std::int64_t room = inspect_machine().available - model.bytes;
  std::int64_t fits = most;
  while (fits > 0 && context_bytes(model.config, config, fits) > room) fits = fits * 9 / 10;
  config.context = o.context > 0 ? o.context : std::min(most, std::max<std::int64_t>(fits, 1));
  if (config.context > fits)
    fail(ErrorCode::BadInput, "E_MEMORY",
         "--ctx-size: {} tokens need {} beside the weights, {} are free; {} tokens would fit", config.context,
         human_bytes(context_bytes(model.config, config, config.context)), human_bytes(std::max<std::int64_t>(room, 0)),
         fits);
  if (needed > config.context)
    fail(ErrorCode::BadInput, "E_CONTEXT", "{} tokens are needed, the context has {} (--ctx-size)", needed,
         config.context);
  choose_pruner(o, loaded, config);
  return config;
}

std::string read_text(const std::string& path) {
  if (!std::filesystem::exists(path)) fail(ErrorCode::NotFound, "E_FILE_MISSING", "{}: no such file", path);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.is_open() || in.bad()) fail(ErrorCode::Io, "E_READ", "{}: cannot be read", path);
  std::string out = text.str();
  for (std::size_t at = 0; at < out.size();) {
    utf8proc_int32_t character;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(out.data()) + at;
    const utf8proc_ssize_t n = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(out.size() - at), &character);
    if (n <= 0 || character == 0) {
      spdlog::warn("{}: stops being text at byte {}; its bytes are taken as they are", path, at);
      break;
    }
    at += static_cast<std::size_t>(n);
  }
  return out;
}

std::vector<files::TokenId> encode_raw(const files::Tokenizer& tokenizer, const std::string& text) {
  std::vector<files::TokenId> tokens = tokenizer.encode(text);
  if (tokenizer.adds_bos() && tokenizer.bos()) tokens.insert(tokens.begin(), *tokenizer.bos());
  return tokens;
}

}  // namespace rarefy::apps
