// Config from a Hugging Face folder's config.json.
#include <algorithm>
#include <cmath>

#include "rarefy/base/check.h"
#include "rarefy/files/json.h"
#include "rarefy/model/config.h"
#include "rarefy/model/config_internal.h"

namespace rarefy::model {
namespace {

using files::JsonObject;

int size_of(const JsonObject& json, const char* key) {
  const std::int64_t value = json.integer(key);
  if (value < 0 || value > INT32_MAX)
    fail(ErrorCode::BadFile, "E_CFG_RANGE", "{}: {} is {}, must be in [1, {}]", json.name(), key, value, INT32_MAX);
  return static_cast<int>(value);
}

std::vector<double> factors(const JsonObject& scaling, const char* key) {
  std::vector<double> out;
  for (const auto& value : scaling.array(key)) {
    if (!value.is_number())
      fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: {} holds something that is no number", scaling.name(), key);
    out.push_back(value.get<double>());
  }
  return out;
}

/// Llama 3.1: long waves are stretched by `factor`, short ones stay, in between they are mixed (Meta's rope scaling).
std::vector<double> llama3_factors(const JsonObject& scaling, const Config& config) {
  const double factor = scaling.number("factor"), low = scaling.number("low_freq_factor"),
               high = scaling.number("high_freq_factor"),
               original = static_cast<double>(scaling.integer("original_max_position_embeddings"));
  if (!(factor > 0) || !(low > 0) || !(high > low) || !(original > 0))
    fail(ErrorCode::BadFile, "E_CFG_ROPE",
         "{}: factor {}, low_freq_factor {}, high_freq_factor {}, original context {}", scaling.name(), factor, low,
         high, original);
  std::vector<double> out;
  const int pairs = config.rotary / 2;
  for (int i = 0; i < pairs; ++i) {
    const double wave = 2 * M_PI * std::pow(config.rope_theta, static_cast<double>(i) / pairs);
    const double smooth = std::clamp((original / wave - low) / (high - low), 0.0, 1.0);
    out.push_back(1 / ((1 - smooth) / factor + smooth));
  }
  return out;
}

void read_rope(const JsonObject& json, Config& config) {
  config.original_context = config.max_context;
  if (!json.has("rope_scaling")) return;
  const JsonObject scaling = json.object("rope_scaling");
  const std::string type =
      scaling.has("rope_type") ? scaling.string("rope_type") : scaling.string_if("type").value_or("");
  if (type == "default") return;
  if (type == "linear") {
    config.rope_factors.assign(static_cast<std::size_t>(config.rotary / 2), scaling.number("factor"));
  } else if (type == "llama3") {
    config.rope_factors = llama3_factors(scaling, config);
  } else if (type == "longrope") {
    config.rope_factors = factors(scaling, "short_factor");
    config.long_factors = factors(scaling, "long_factor");
    config.original_context = scaling.integer("original_max_position_embeddings");
    if (config.original_context < 2)
      fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: original_max_position_embeddings is {}", scaling.name(),
           config.original_context);
    const double stretch = static_cast<double>(config.max_context) / static_cast<double>(config.original_context);
    if (stretch > 1)
      config.rope_scale =
          static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(config.original_context))));
  } else if (type.empty()) {
    fail(ErrorCode::BadFile, "E_CFG_ROPE", "{}: rope_type is missing (known: default, linear, llama3, longrope)",
         scaling.name());
  } else {
    fail(ErrorCode::Unsupported, "E_CFG_ROPE", "{}: unknown rope_type '{}' (known: default, linear, llama3, longrope)",
         scaling.name(), type);
  }
}

}  // namespace

Config config_from_folder(const std::filesystem::path& folder) {
  const nlohmann::json root = files::read_json(folder / "config.json");
  const JsonObject json(root, (folder / "config.json").string());
  Config config;
  config.family = &find_family(json.string("model_type"), &Family::hugging_face, json.name());
  config.name = json.string_if("_name_or_path").value_or(folder.filename().string());
  config.layers = size_of(json, "num_hidden_layers");
  config.hidden = size_of(json, "hidden_size");
  config.intermediate = size_of(json, "intermediate_size");
  config.q_heads = size_of(json, "num_attention_heads");
  config.kv_heads = json.has("num_key_value_heads") ? size_of(json, "num_key_value_heads") : config.q_heads;
  config.head_dim = json.has("head_dim") ? size_of(json, "head_dim") : 0;
  config.vocab = size_of(json, "vocab_size");
  config.max_context = json.integer("max_position_embeddings");
  config.rms_eps = static_cast<float>(json.number("rms_norm_eps"));
  config.rope_theta = json.number_if("rope_theta").value_or(10000);
  if (config.family->mup) {
    config.embedding_scale = static_cast<float>(json.number_if("scale_emb").value_or(1));
    config.residual_scale = static_cast<float>(json.number_if("scale_depth").value_or(std::sqrt(config.layers)) /
                                               std::sqrt(std::max(config.layers, 1)));
    config.logit_scale =
        json.has("dim_model_base") ? static_cast<float>(config.hidden / json.number("dim_model_base")) : 1.f;
  }
  validate(config, json.name());
  read_rope(json, config);
  validate(config, json.name());
  return config;
}

}  // namespace rarefy::model
