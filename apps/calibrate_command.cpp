// `rarefy calibrate`: makes the calibration file of a model.
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/pruner_option.h"

namespace rarefy::apps {
namespace {

struct CalibrateCommand {
  ModelOptions model;
  std::string file, output;
};

void calibrate(const CalibrateCommand& o) {
  const std::string text = o.file.empty() ? "" : read_text(o.file);
  const Loaded loaded = load(o.model);
  const Calibration calibration =
      calibrate_model(loaded, text, o.model.context > 0 ? o.model.context : loaded.model.config.max_context);
  const std::filesystem::path path =
      o.output.empty() ? calibration_path(loaded.model) : std::filesystem::path(o.output);
  if (o.output.empty()) std::filesystem::create_directories(path.parent_path());
  save_calibration(calibration, path);
  fmt::print("{}\n", path.string());
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("calibrate", "channel orders, weights and probe queries for sealing, one file per model");
  const auto options = std::make_shared<CalibrateCommand>();
  command->add_option("-m,--model", options->model.model, "a GGUF file, or a Hugging Face folder")->required();
  command->add_option("-f,--file", options->file, "text to calibrate on (default: built-in English)");
  command->add_option("-o,--output", options->output, "file to write (default: the user's cache folder)");
  command->add_option("-c,--ctx-size", options->model.context,
                      "context over which positions are spread (0: the model's)");
  command->add_option("-t,--threads", options->model.threads, "CPU threads (0: all)");
  add_environment(*command);
  command->callback([options] { calibrate(*options); });
}

}  // namespace rarefy::apps
