// The weights of a model, as views of its mapped files.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "rarefy/model/config.h"
#include "rarefy/ops/linear.h"

namespace rarefy::files {
class Gguf;
}

namespace rarefy::model {

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> ffn_norm;        // [hidden]
  std::vector<float> q_norm, k_norm;  // [head_dim], empty without q/k norms
  ops::LinearWeight q, k, v, o;       // [heads * head_dim, hidden], o [hidden, q_heads * head_dim]
  ops::LinearWeight gate, up, down;
  std::vector<float> q_bias, k_bias, v_bias;  // storage of the biases in q, k, v
};

/// A model ready to run: shape, weights and the mapping that keeps them alive. Immutable once loaded.
struct Model {
  Config config;
  ops::LinearWeight embedding;  // [vocab, hidden]
  ops::LinearWeight output;     // [vocab, hidden]; the embedding itself if the file has none (tied)
  bool tied = false;
  std::vector<float> output_norm;
  std::vector<LayerWeights> layers;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;  // of all weights as stored
  std::string hash;        // of shape, tensor names, types and sampled bytes: names the model for calibration files
  std::shared_ptr<const files::Gguf> gguf;  // the file, whose metadata holds the tokenizer; null for a folder
  std::shared_ptr<const void> files;        // the mapping
};

/// Loads a GGUF file, or a Hugging Face folder (config.json and safetensors). Weights stay in the mapping.
/// Throws NotFound, Io, BadFile (E_CFG_*, E_GGUF_*, E_ST_*; E_TENSOR_MISSING, E_CFG_MISMATCH name the tensor),
/// Unsupported.
Model load_model(const std::filesystem::path& path);

}  // namespace rarefy::model
