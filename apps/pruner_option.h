// What `--pruner` and its companions mean: pruner, calibration, token weights.
#pragma once
#include <filesystem>

#include "apps/options.h"

namespace rarefy::apps {

/// Where a model's calibration is kept: the user's cache folder, named by the model's hash.
std::filesystem::path calibration_path(const model::Model& model);

/// Calibrates on built-in text, or on `text` if it is not empty, with a progress line.
Calibration calibrate_model(const Loaded& loaded, const std::string& text, std::int64_t context);

/// Sets pruner, calibration, token weights and block loss of `config`. The calibration of a model is made on first use
/// if the configuration seals anything. Throws BadInput (unknown values), BadFile (a broken or foreign calibration or
/// mask), NotFound.
void choose_pruner(const ModelOptions& options, const Loaded& loaded, engine::EngineConfig& config);

}  // namespace rarefy::apps
