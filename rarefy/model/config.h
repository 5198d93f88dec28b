// The shape of a model: what GGUF metadata and config.json say, for every family, in one struct.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "rarefy/ops/rope.h"

namespace rarefy::files {
class Gguf;
}

namespace rarefy::model {

/// A family of models: what differs between decoders of the Llama kind, as flags. Rows of one table (config.cpp).
struct Family {
  std::string_view name;          // for people
  std::string_view gguf;          // general.architecture
  std::string_view hugging_face;  // model_type
  ops::RopeLayout gguf_rope;      // llama-like GGUF files store q and k rows permuted for interleaved rotation
  bool qkv_bias;
  bool qk_norm;
  bool mup;  // MiniCPM's scales of embedding, residual and logits
};

struct Config {
  const Family* family = nullptr;
  std::string name;  // of the model, for people
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  std::int64_t max_context = 0;  // positions that the model was made for
  float rms_eps = 0;
  float embedding_scale = 1;
  float residual_scale = 1;  // of what attention and feed-forward add to the hidden state
  float logit_scale = 1;     // logits are divided by it
  ops::RopeLayout rope_layout = ops::RopeLayout::Halves;
  double rope_theta = 10000;
  int rotary = 0;                    // rotated channels of a head
  std::vector<double> rope_factors;  // [rotary / 2] by which inverse frequencies are divided; empty: none
  std::vector<double> long_factors;  // LongRoPE's, for contexts above `original_context`; empty: rope_factors always
  std::int64_t original_context = 0;
  float rope_scale = 1;  // LongRoPE's factor on q and k

  int group() const { return q_heads / kv_heads; }
};

/// Reads and validates. Throws BadFile (E_CFG_RANGE, E_CFG_SHAPE, E_CFG_ROPE, E_CFG_KEY: the message names file and
/// key) or Unsupported (E_CFG_ARCH, listing the known families).
Config config_from_gguf(const files::Gguf& file);
/// From `config.json` in `folder`. Custom code that a config names (auto_map) is never run: no code path exists.
Config config_from_folder(const std::filesystem::path& folder);

/// Angles for a context of `context` tokens (LongRoPE chooses its factors by it).
ops::Rope make_rope(const Config& config, std::int64_t context);

/// The channel order in which Hugging Face's models see a head: the file's own unless GGUF permuted it. [head_dim]
std::vector<std::int32_t> natural_order(const Config& config);

}  // namespace rarefy::model
