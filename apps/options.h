// Options that several commands share, and what they mean for the engine.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "rarefy/base/check.h"
#include "rarefy/engine/engine.h"
#include "rarefy/files/tokenizer.h"
#include "rarefy/model/weights.h"

namespace rarefy::apps {

/// As written on the command line (reference: README, "Options").
struct ModelOptions {
  std::string model;
  std::int64_t context = 0;  // 0: what the model was made for, or what the memory holds
  std::string device = "cpu";
  std::string prefill_sparsity = "0,0";
  std::string decode_sparsity = "1,1";
  int sink = 64;
  int local = 256;
  std::string prefill_window = "moving";
  std::string pruner = "calibrated";
  std::string token_weights = "recent";
  std::string block_loss = "energy";
  std::string precision = "fast";
  std::string cache_type = "f16";
  std::int64_t chunk = 512;
  int threads = 0;
  bool json = false;
};

void add_model_options(CLI::App& command, ModelOptions& options);

/// Makes every option of `command` readable from RAREFY_<LONG_NAME> too.
void add_environment(CLI::App& command);

struct Loaded {
  model::Model model;
  files::Tokenizer tokenizer;
};

/// Loads model and tokenizer with a progress line.
Loaded load(const ModelOptions& options);

/// The value that `text` names. Throws BadInput naming the option and the known values.
template <typename T>
T choose(const char* option, const std::string& text, std::initializer_list<std::pair<const char*, T>> known) {
  std::string names;
  for (const auto& [name, value] : known) {
    if (text == name) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  fail(ErrorCode::BadInput, "E_OPTION", "{}: unknown value '{}' (known: {})", option, text, names);
}

/// Parses "K,V". Throws BadInput naming the option.
Sparsity parse_sparsity(const std::string& option, const std::string& text);

/// The engine's configuration; resolves the context against the model and the machine's memory.
///   needed  tokens that the command needs at least
/// Throws BadInput (E_CONTEXT, E_MEMORY saying what would fit, bad values naming the option).
engine::EngineConfig engine_config(const ModelOptions& options, const Loaded& loaded, std::int64_t needed);

/// Reads a whole text file; warns at which byte it stops being UTF-8. Throws NotFound, Io.
std::string read_text(const std::string& path);

/// Token ids of raw text, with the model's begin-of-sequence token if it expects one.
std::vector<files::TokenId> encode_raw(const files::Tokenizer& tokenizer, const std::string& text);

}  // namespace rarefy::apps
