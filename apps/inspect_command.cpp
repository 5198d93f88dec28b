// `rarefy inspect`: model, tensors, kernels, cache layout and compression, without running anything.
#include <fmt/format.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "rarefy/attention/attention.h"
#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"
#include "rarefy/files/safetensors.h"
#include "rarefy/format24/layout.h"

namespace rarefy::apps {
namespace {

struct InspectOptions {
  std::string what, model;
  std::string sparsity = "0,1";
  std::int64_t context = 0;
  bool check_tensors = false;
};

void inspect_model(const InspectOptions& o) {
  ModelOptions options;
  options.model = o.model;
  const Loaded loaded = load(options);
  const model::Config& c = loaded.model.config;
  fmt::print(
      "name        {}\nfamily      {}\nlayers      {}\nhidden      {}\nintermediate {}\nheads       {} query, {} KV "
      "(group {})\nhead_dim    {}\nvocab       {}\ncontext     {}\nrope        {} pairs, theta {}{}\noutput      "
      "{}\nparameters  {}\nweights     {}\nhash        {}\ntokenizer   {}\n",
      c.name, c.family->name, c.layers, c.hidden, c.intermediate, c.q_heads, c.kv_heads, c.group(), c.head_dim, c.vocab,
      c.max_context, c.rotary / 2, c.rope_theta, c.rope_factors.empty() ? "" : ", scaled",
      loaded.model.tied ? "tied to the embedding" : "own matrix", loaded.model.parameters,
      human_bytes(loaded.model.bytes), loaded.model.hash, loaded.tokenizer.describe());
}

void inspect_tensors(const InspectOptions& o) {
  // The readers keep the mapping alive only while they live, so tensors are printed from inside.
  const auto print = [&](const files::TensorInfo& tensor) {
    std::string shape;
    for (const std::int64_t dim : tensor.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", dim);
    fmt::print("{:<48} {:<5} [{}] {}", tensor.name, to_string(tensor.dtype), shape, human_bytes(tensor.bytes));
    if (o.check_tensors) fmt::print("  not finite: {}", files::count_nonfinite(tensor));
    fmt::print("\n");
  };
  if (std::filesystem::is_directory(o.model)) {
    const files::SafetensorsFolder folder(o.model);
    for (const files::Safetensors& shard : folder.shards())
      for (const files::TensorInfo& tensor : shard.tensors()) print(tensor);
  } else {
    const files::Gguf file(o.model);
    for (const files::TensorInfo& tensor : file.tensors()) print(tensor);
  }
}

void inspect_cache(const InspectOptions& o) {
  const model::Model model = model::load_model(o.model);
  const model::Config& c = model.config;
  const Sparsity s = parse_sparsity("--sparsity", o.sparsity);
  const std::int64_t tokens = o.context > 0 ? o.context : c.max_context;
  const double per_side = static_cast<double>(c.layers) * c.kv_heads * c.head_dim * 2 * static_cast<double>(tokens);
  const double map = 2.0 * c.layers * c.kv_heads * 4 * static_cast<double>((tokens + kBlock - 1) / kBlock);
  const double stored = per_side * 2 * (1 - 0.21875 * (s.k + s.v));
  fmt::print("block       {} tokens\ndense page  {} B\nsparse page {} B = {} non-zeros + {} metadata\n", kBlock,
             format24::dense_page_bytes(c.head_dim), format24::sparse_page_bytes(c.head_dim),
             format24::nonzero_bytes(c.head_dim), format24::metadata_bytes(c.head_dim));
  fmt::print("{} tokens at S_K = {}, S_V = {}: {} dense, {} stored, {} of maps\n", tokens, s.k, s.v,
             human_bytes(static_cast<std::int64_t>(2 * per_side)), human_bytes(static_cast<std::int64_t>(stored)),
             human_bytes(static_cast<std::int64_t>(map)));
  fmt::print("compression = 1 / (1 - 0.21875 ({} + {})) = {:.3f}x; with the map {:.3f}x\n", s.k, s.v,
             2 * per_side / stored, 2 * per_side / (stored + map));
}

void inspect(const InspectOptions& o) {
  if (o.what == "kernels") {
    for (const std::string& kernel : attention::describe_kernels()) std::cout << kernel << '\n';
    return;
  }
  if (o.model.empty()) fail(ErrorCode::BadInput, "E_OPTION", "inspect {}: --model is missing", o.what);
  if (o.what == "model") inspect_model(o);
  if (o.what == "tensors") inspect_tensors(o);
  if (o.what == "cache") inspect_cache(o);
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "model, tensors, kernels, or cache layout and compression");
  const auto options = std::make_shared<InspectOptions>();
  command->add_option("what", options->what)
      ->check(CLI::IsMember({"model", "tensors", "kernels", "cache"}))
      ->required();
  command->add_option("-m,--model", options->model, "a GGUF file, or a Hugging Face folder");
  command->add_option("--sparsity", options->sparsity, "K,V of the compression shown")->capture_default_str();
  command->add_option("-c,--ctx-size", options->context, "tokens of the cache shown (0: the model's context)");
  command->add_flag("--check-tensors", options->check_tensors, "count values that are not finite");
  add_environment(*command);
  command->callback([options] { inspect(*options); });
}

}  // namespace rarefy::apps
