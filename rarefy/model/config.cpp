// The table of families, and config from GGUF metadata; config.json is in config_json.cpp.
#include "rarefy/model/config.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"
#include "rarefy/model/config_internal.h"

namespace rarefy::model {
namespace {

using ops::RopeLayout;

constexpr Family kFamilies[] = {
    {"Llama 3, SmolLM2", "llama", "llama", RopeLayout::Interleaved, false, false, false},
    {"Mistral", "mistral", "mistral", RopeLayout::Interleaved, false, false, false},
    {"Qwen 2.5", "qwen2", "qwen2", RopeLayout::Halves, true, false, false},
    {"Qwen 3", "qwen3", "qwen3", RopeLayout::Halves, false, true, false},
    {"MiniCPM 4.1", "minicpm", "minicpm", RopeLayout::Interleaved, false, false, true},
};

/// Typed keys "<architecture>.<key>" of one file, with errors that name both.
class Keys {
 public:
  Keys(const files::Gguf& file, std::string_view architecture)
      : file_(file), prefix_(fmt::format("{}.", architecture)) {}

  std::int64_t integer(std::string_view key) const {
    const auto value = file_.integer(prefix_ + std::string(key));
    if (!value) fail(ErrorCode::BadFile, "E_CFG_KEY", "{}: metadata key '{}{}' is missing", file_.name(), prefix_, key);
    return *value;
  }
  std::int64_t integer_or(std::string_view key, std::int64_t fallback) const {
    return file_.integer(prefix_ + std::string(key)).value_or(fallback);
  }
  double number_or(std::string_view key, double fallback) const {
    return file_.number(prefix_ + std::string(key)).value_or(fallback);
  }
  const std::string* string(std::string_view key) const { return file_.string(prefix_ + std::string(key)); }

 private:
  const files::Gguf& file_;
  std::string prefix_;
};

std::vector<double> factors_from_tensor(const files::Gguf& file, std::string_view name) {
  const files::TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) return {};
  if (tensor->dtype != DType::F32 || tensor->shape.size() != 1)
    fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: tensor '{}' must be a row of F32, is {} of {} dimensions", file.name(),
         name, to_string(tensor->dtype), tensor->shape.size());
  std::vector<double> factors;
  for (std::int64_t i = 0; i < tensor->shape[0]; ++i) {
    float value;
    std::memcpy(&value, tensor->data + i * 4, 4);
    factors.push_back(value);
  }
  return factors;
}

}  // namespace

const Family& find_family(std::string_view name, std::string_view Family::*key, const std::string& file) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.*key == name) return family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.*key);
  }
  fail(ErrorCode::Unsupported, "E_CFG_ARCH", "{}: unknown architecture '{}' (known: {})", file, name, known);
}

void validate(Config& config, const std::string& file) {
  const auto in_range = [&](const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high)
      fail(ErrorCode::BadFile, "E_CFG_RANGE", "{}: {} is {}, must be in [{}, {}]", file, key, value, low, high);
  };
  in_range("number of layers", config.layers, 1, 1024);
  in_range("hidden size", config.hidden, 1, 1 << 20);
  in_range("intermediate size", config.intermediate, 1, 1 << 22);
  in_range("number of attention heads", config.q_heads, 1, 1 << 12);
  in_range("number of KV heads", config.kv_heads, 1, 1 << 12);
  in_range("vocabulary size", config.vocab, 1, 1 << 24);
  in_range("context length", config.max_context, 1, std::int64_t{1} << 31);
  if (config.q_heads % config.kv_heads != 0)
    fail(ErrorCode::BadFile, "E_CFG_SHAPE", "{}: {} attention heads are not a multiple of {} KV heads", file,
         config.q_heads, config.kv_heads);
  if (config.head_dim == 0) {
    if (config.hidden % config.q_heads != 0)
      fail(ErrorCode::BadFile, "E_CFG_SHAPE", "{}: hidden size {} is not a multiple of {} attention heads", file,
           config.hidden, config.q_heads);
    config.head_dim = config.hidden / config.q_heads;
  }
  if (config.head_dim != 64 && config.head_dim != 128)
    fail(ErrorCode::Unsupported, "E_CFG_SHAPE", "{}: head_dim {} is not supported (64 and 128 are)", file,
         config.head_dim);
  if (config.rotary == 0) config.rotary = config.head_dim;
  if (config.rotary % 2 != 0 || config.rotary < 2 || config.rotary > config.head_dim)
    fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: {} rotated channels of a head of {}", file, config.rotary,
         config.head_dim);
  const auto positive = [&](const char* key, double value) {
    if (!std::isfinite(value) || !(value > 0))
      fail(ErrorCode::BadFile, "E_CFG_RANGE", "{}: {} is {}, must be finite and above 0", file, key, value);
  };
  positive("rope theta", config.rope_theta);
  positive("RMS epsilon", config.rms_eps);
  positive("embedding scale", config.embedding_scale);
  positive("residual scale", config.residual_scale);
  positive("logit scale", config.logit_scale);
  positive("rope scale", config.rope_scale);
  for (const auto* factors : {&config.rope_factors, &config.long_factors}) {
    if (!factors->empty() && static_cast<int>(factors->size()) != config.rotary / 2)
      fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: {} rope factors for {} rotated pairs", file, factors->size(),
           config.rotary / 2);
    for (const double factor : *factors)
      if (!std::isfinite(factor) || !(factor > 0))
        fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: rope factor {} must be finite and above 0", file, factor);
  }
}

Config config_from_gguf(const files::Gguf& file) {
  const std::string* architecture = file.string("general.architecture");
  if (architecture == nullptr)
    fail(ErrorCode::BadFile, "E_CFG_KEY", "{}: metadata key 'general.architecture' is missing", file.name());
  Config config;
  config.family = &find_family(*architecture, &Family::gguf, file.name());
  const Keys keys(file, *architecture);
  if (const std::string* name = file.string("general.name")) config.name = *name;

  const auto small = [&](std::string_view key, std::int64_t value) {
    if (value < 0 || value > INT32_MAX)
      fail(ErrorCode::BadFile, "E_CFG_RANGE", "{}: '{}.{}' is {}", file.name(), *architecture, key, value);
    return static_cast<int>(value);
  };
  config.layers = small("block_count", keys.integer("block_count"));
  config.hidden = small("embedding_length", keys.integer("embedding_length"));
  config.intermediate = small("feed_forward_length", keys.integer("feed_forward_length"));
  config.q_heads = small("attention.head_count", keys.integer("attention.head_count"));
  config.kv_heads = small("attention.head_count_kv", keys.integer_or("attention.head_count_kv", config.q_heads));
  config.head_dim = small("attention.key_length", keys.integer_or("attention.key_length", 0));
  config.rotary = small("rope.dimension_count", keys.integer_or("rope.dimension_count", 0));
  config.max_context = keys.integer("context_length");
  config.rms_eps = static_cast<float>(keys.number_or("attention.layer_norm_rms_epsilon", 1e-5));
  config.rope_theta = keys.number_or("rope.freq_base", 10000);
  config.rope_layout = config.family->gguf_rope;
  if (const auto* tokens = file.strings("tokenizer.ggml.tokens")) {
    config.vocab = small("vocab", static_cast<std::int64_t>(tokens->size()));
  } else {
    config.vocab = small("vocab_size", keys.integer("vocab_size"));
  }
  if (config.family->mup) {
    config.embedding_scale = static_cast<float>(keys.number_or("embedding_scale", 12));
    config.residual_scale =
        static_cast<float>(keys.number_or("residual_scale", 1.4 / std::sqrt(std::max(config.layers, 1))));
    config.logit_scale = static_cast<float>(keys.number_or("logit_scale", config.hidden / 256.0));
  }

  config.rope_factors = factors_from_tensor(file, "rope_freqs.weight");
  if (config.rope_factors.empty()) config.rope_factors = factors_from_tensor(file, "rope_factors_short.weight");
  config.long_factors = factors_from_tensor(file, "rope_factors_long.weight");
  config.original_context = keys.integer_or("rope.scaling.original_context_length", config.max_context);
  config.rope_scale = static_cast<float>(keys.number_or("rope.scaling.attn_factor", 1));
  const std::string* scaling = keys.string("rope.scaling.type");
  if (scaling != nullptr && *scaling != "none" && *scaling != "linear" && *scaling != "longrope")
    fail(ErrorCode::Unsupported, "E_CFG_ROPE",
         "{}: unknown rope scaling '{}' (known: none, linear, longrope, and llama3 through rope_freqs.weight)",
         file.name(), *scaling);
  validate(config, file.name());
  if (scaling != nullptr && *scaling == "linear") {
    config.rope_factors.assign(static_cast<std::size_t>(config.rotary / 2), keys.number_or("rope.scaling.factor", 1));
    validate(config, file.name());
  }
  return config;
}

ops::Rope make_rope(const Config& config, std::int64_t context) {
  ops::Rope rope;
  rope.layout = config.rope_layout;
  rope.scale = config.rope_scale;
  const bool use_long = !config.long_factors.empty() && context > config.original_context;
  const std::vector<double>& factors = use_long ? config.long_factors : config.rope_factors;
  const int pairs = config.rotary / 2;
  for (int i = 0; i < pairs; ++i) {
    const double frequency = std::pow(config.rope_theta, -static_cast<double>(i) / pairs);
    rope.inv_freq.push_back(factors.empty() ? frequency : frequency / factors[static_cast<std::size_t>(i)]);
  }
  return rope;
}

std::vector<std::int32_t> natural_order(const Config& config) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(config.head_dim));
  std::iota(order.begin(), order.end(), 0);
  if (config.rope_layout == ops::RopeLayout::Halves) return order;
  // Interleaved files hold pair i at channels 2i and 2i + 1; Hugging Face has it at i and i + rotary / 2.
  for (int i = 0; i < config.rotary / 2; ++i) {
    order[static_cast<std::size_t>(i)] = 2 * i;
    order[static_cast<std::size_t>(i + config.rotary / 2)] = 2 * i + 1;
  }
  return order;
}

}  // namespace rarefy::model
