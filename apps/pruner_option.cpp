// The pruner of a run, and the calibration file that it may need.
#include "apps/pruner_option.h"

#include <spdlog/spdlog.h>

#include <cstdlib>

#include "apps/progress.h"
#include "rarefy/base/check.h"
#include "rarefy/base/quant.h"
#include "rarefy/files/safetensors.h"
#include "rarefy/train/calibrate.h"

namespace rarefy::apps {
namespace {

/// "channels:FILE": a safetensors file whose tensor `keep` [layers, kv_heads, head_dim] (F32, not 0 = keep) masks key
/// channels in Hugging Face's channel order.
std::shared_ptr<const Pruner> channel_mask(const std::string& path, const model::Config& model) {
  const files::Safetensors file(path);
  const files::TensorInfo* keep = file.find("keep");
  const std::vector<std::int64_t> shape = {model.layers, model.kv_heads, model.head_dim};
  if (keep == nullptr || keep->dtype != DType::F32 || keep->shape != shape)
    fail(ErrorCode::BadFile, "E_CHANNEL_MASK", "{}: needs a tensor 'keep' of F32 [{}, {}, {}]", file.name(),
         model.layers, model.kv_heads, model.head_dim);
  std::vector<float> values(static_cast<std::size_t>(keep->bytes) / sizeof(float));
  dequantize(keep->dtype, keep->data, static_cast<std::int64_t>(values.size()), values.data());
  std::vector<std::uint8_t> mask;
  for (const float value : values) mask.push_back(value != 0);
  return std::make_shared<ChannelMaskPruner>(model.layers, model.kv_heads, model.head_dim, std::move(mask));
}

Calibration load_or_make(const Loaded& loaded) {
  const std::filesystem::path path = calibration_path(loaded.model);
  if (std::filesystem::exists(path)) return load_calibration(path, train::calibration_of(loaded.model));
  spdlog::info("calibrating {} once; kept in {}", loaded.model.config.name, path.string());
  Calibration calibration = calibrate_model(loaded, "", loaded.model.config.max_context);
  try {
    std::filesystem::create_directories(path.parent_path());
    save_calibration(calibration, path);
  } catch (const std::exception&
               error) {  // a folder that cannot be written costs the next run half a minute, not this one its result
    spdlog::warn("the calibration cannot be kept: {}", error.what());
  }
  return calibration;
}

}  // namespace

std::filesystem::path calibration_path(const model::Model& model) {
  std::filesystem::path folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0)
    folder = cache;
  else if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0)
    folder = std::filesystem::path(home) / ".cache";
  else
    folder = std::filesystem::temp_directory_path();
  return folder / "rarefy" / (model.hash + ".calibration");
}

Calibration calibrate_model(const Loaded& loaded, const std::string& text, std::int64_t context) {
  train::CalibrateOptions options;
  options.context = context;
  std::string_view source = text.empty() ? train::builtin_text() : std::string_view(text);
  // Memory must not grow with the text; no vocabulary needs 32 bytes a token.
  source = source.substr(0, static_cast<std::size_t>(options.tokens) * 32);
  const std::vector<files::TokenId> tokens = encode_raw(loaded.tokenizer, std::string(source));
  Progress progress("calibrate", "tokens", std::min(options.tokens, static_cast<std::int64_t>(tokens.size())));
  return train::calibrate(loaded.model, tokens, options, [&](std::int64_t done) { progress.update(done); });
}

void choose_pruner(const ModelOptions& o, const Loaded& loaded, engine::EngineConfig& config) {
  const model::Config& model = loaded.model.config;
  config.loss = choose<format24::LossKind>("--block-loss", o.block_loss,
                                           {{"energy", format24::LossKind::Energy}, {"l1", format24::LossKind::L1}});
  const auto weights = choose<TokenWeights>(
      "--token-weights", o.token_weights,
      {{"probe", TokenWeights::Probe}, {"recent", TokenWeights::Recent}, {"none", TokenWeights::None}});
  if (o.pruner == "magnitude") return;
  constexpr std::string_view kChannels = "channels:", kCalibrated = "calibrated:";
  if (o.pruner.starts_with(kChannels)) {
    config.pruner = channel_mask(o.pruner.substr(kChannels.size()), model);
    return;
  }
  if (o.pruner != "calibrated" && !o.pruner.starts_with(kCalibrated))
    fail(ErrorCode::BadInput, "E_OPTION",
         "--pruner: unknown pruner '{}' (known: calibrated, calibrated:FILE, magnitude, channels:FILE)", o.pruner);
  const bool seals = config.decode.k > 0 || config.decode.v > 0;
  if (!seals) return;
  config.calibration = std::make_shared<const Calibration>(
      o.pruner == "calibrated"
          ? load_or_make(loaded)
          : load_calibration(o.pruner.substr(kCalibrated.size()), train::calibration_of(loaded.model)));
  config.pruner =
      std::make_shared<CalibratedPruner>(model.layers, model.kv_heads, model.head_dim, config.calibration->weights);
  config.token_weights = weights;
}

}  // namespace rarefy::apps
