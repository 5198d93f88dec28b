// Calibration of a model: one dense pass over some text, from which channel orders, weights and probe queries follow.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "rarefy/cache/calibration.h"
#include "rarefy/engine/feed.h"
#include "rarefy/model/weights.h"

namespace rarefy::train {

struct CalibrateOptions {
  std::int64_t context = 8192;  // positions are spread over it, or slow channels are judged at short distances only
  std::int64_t tokens = 2048;   // of the text that are used at most: memory does not grow with the text
  int probes = 48;              // per query head
  int swaps = 4000;             // per KV head
  std::uint64_t seed = 1;
};

/// Shape and name of a model's calibration, without content: what load_calibration compares with.
Calibration calibration_of(const model::Model& model);

/// Calibrates on `tokens` (pruning.md 1 and 4). The same tokens and seed give the same calibration.
///   progress  tokens done, of min(tokens.size(), options.tokens)
/// Throws BadInput (E_CAL_TEXT) if there are fewer than 512 tokens.
Calibration calibrate(const model::Model& model, std::span<const files::TokenId> tokens,
                      const CalibrateOptions& options, const engine::Progress& progress = {});

/// English prose, technical text, code and a list, written for Rarefy: the text that calibration uses if none is given.
std::string_view builtin_text();

}  // namespace rarefy::train
