// Binding of tensors to their places in a decoder, by the names of GGUF and of Hugging Face.
#include "rarefy/model/weights.h"

#include <functional>

#include "rarefy/base/check.h"
#include "rarefy/base/quant.h"
#include "rarefy/files/gguf.h"
#include "rarefy/files/safetensors.h"

namespace rarefy::model {
namespace {

using files::TensorInfo;

/// The two naming schemes of one decoder's tensors; {} is the layer.
struct Names {
  const char *embedding, *output_norm, *output;
  const char *attention_norm, *ffn_norm, *q_norm, *k_norm;
  const char *q, *k, *v, *o, *gate, *up, *down;
};

constexpr Names kGgufNames = {
    "token_embd",         "output_norm",        "output",        "blk.{}.attn_norm", "blk.{}.ffn_norm",
    "blk.{}.attn_q_norm", "blk.{}.attn_k_norm", "blk.{}.attn_q", "blk.{}.attn_k",    "blk.{}.attn_v",
    "blk.{}.attn_output", "blk.{}.ffn_gate",    "blk.{}.ffn_up", "blk.{}.ffn_down"};

constexpr Names kHuggingFaceNames = {"model.embed_tokens",
                                     "model.norm",
                                     "lm_head",
                                     "model.layers.{}.input_layernorm",
                                     "model.layers.{}.post_attention_layernorm",
                                     "model.layers.{}.self_attn.q_norm",
                                     "model.layers.{}.self_attn.k_norm",
                                     "model.layers.{}.self_attn.q_proj",
                                     "model.layers.{}.self_attn.k_proj",
                                     "model.layers.{}.self_attn.v_proj",
                                     "model.layers.{}.self_attn.o_proj",
                                     "model.layers.{}.mlp.gate_proj",
                                     "model.layers.{}.mlp.up_proj",
                                     "model.layers.{}.mlp.down_proj"};

/// FNV-1a over what identifies a model: enough to tell two models apart, cheap on files of many gigabytes.
class Fingerprint {
 public:
  void add(const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      hash_ = (hash_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3ull;
  }
  void add(const TensorInfo& tensor) {
    add(tensor.name.data(), tensor.name.size());
    const auto type = static_cast<std::uint64_t>(tensor.dtype);
    add(&type, sizeof type);
    for (const std::int64_t dim : tensor.shape) add(&dim, sizeof dim);
    constexpr std::int64_t kSample = 256;  // bytes at both ends and in the middle
    for (const std::int64_t at : {std::int64_t{0}, tensor.bytes / 2, tensor.bytes - kSample}) {
      const std::int64_t begin = std::max<std::int64_t>(0, at);
      add(tensor.data + begin, static_cast<std::size_t>(std::min(kSample, tensor.bytes - begin)));
    }
  }
  std::string hex() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
};

class Binder {
 public:
  Binder(std::string file, std::function<const TensorInfo*(const std::string&)> find, Model& model)
      : file_(std::move(file)), find_(std::move(find)), model_(model) {}

  const TensorInfo* optional(const std::string& name) {
    const TensorInfo* tensor = find_(name);
    if (tensor != nullptr) {
      fingerprint_.add(*tensor);
      model_.bytes += tensor->bytes;
      std::int64_t elements = 1;
      for (const std::int64_t dim : tensor->shape) elements *= dim;
      model_.parameters += elements;
    }
    return tensor;
  }

  ops::LinearWeight matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    return as_matrix(required(name + ".weight"), out, in);
  }

  ops::LinearWeight as_matrix(const TensorInfo& tensor, std::int64_t out, std::int64_t in) const {
    if (tensor.shape.size() != 2 || tensor.shape[0] != out || tensor.shape[1] != in)
      fail(ErrorCode::BadFile, "E_CFG_MISMATCH", "{}: tensor '{}' has shape {}, the configuration wants [{}, {}]",
           file_, tensor.name, text(tensor.shape), out, in);
    return {tensor.data, tensor.dtype, out, in, nullptr};
  }

  std::vector<float> vector(const std::string& name, std::int64_t size) { return as_vector(required(name), size); }

  std::vector<float> as_vector(const TensorInfo& tensor, std::int64_t size) const {
    if (tensor.shape.size() != 1 || tensor.shape[0] != size)
      fail(ErrorCode::BadFile, "E_CFG_MISMATCH", "{}: tensor '{}' has shape {}, the configuration wants [{}]", file_,
           tensor.name, text(tensor.shape), size);
    std::vector<float> values(static_cast<std::size_t>(size));
    dequantize(tensor.dtype, tensor.data, size, values.data());
    return values;
  }

  std::string hash() const { return fingerprint_.hex(); }

 private:
  const TensorInfo& required(const std::string& name) {
    const TensorInfo* tensor = optional(name);
    if (tensor == nullptr) fail(ErrorCode::BadFile, "E_TENSOR_MISSING", "{}: tensor '{}' is missing", file_, name);
    return *tensor;
  }
  static std::string text(const std::vector<std::int64_t>& shape) {
    std::string out;
    for (const std::int64_t dim : shape) out += fmt::format("{}{}", out.empty() ? "" : ", ", dim);
    return "[" + out + "]";
  }

  std::string file_;
  std::function<const TensorInfo*(const std::string&)> find_;
  Model& model_;
  Fingerprint fingerprint_;
};

LayerWeights bind_layer(Binder& bind, const Config& c, const Names& names, int layer) {
  const auto at = [&](const char* pattern) { return fmt::format(fmt::runtime(pattern), layer); };
  const std::int64_t q_size = std::int64_t{c.q_heads} * c.head_dim, kv_size = std::int64_t{c.kv_heads} * c.head_dim;
  LayerWeights w;
  w.attention_norm = bind.vector(at(names.attention_norm) + ".weight", c.hidden);
  w.ffn_norm = bind.vector(at(names.ffn_norm) + ".weight", c.hidden);
  w.q = bind.matrix(at(names.q), q_size, c.hidden);
  w.k = bind.matrix(at(names.k), kv_size, c.hidden);
  w.v = bind.matrix(at(names.v), kv_size, c.hidden);
  w.o = bind.matrix(at(names.o), c.hidden, q_size);
  w.gate = bind.matrix(at(names.gate), c.intermediate, c.hidden);
  w.up = bind.matrix(at(names.up), c.intermediate, c.hidden);
  w.down = bind.matrix(at(names.down), c.hidden, c.intermediate);
  if (c.family->qk_norm) {
    w.q_norm = bind.vector(at(names.q_norm) + ".weight", c.head_dim);
    w.k_norm = bind.vector(at(names.k_norm) + ".weight", c.head_dim);
  }
  if (c.family->qkv_bias) {
    w.q_bias = bind.vector(at(names.q) + ".bias", q_size);
    w.k_bias = bind.vector(at(names.k) + ".bias", kv_size);
    w.v_bias = bind.vector(at(names.v) + ".bias", kv_size);
    // A vector's storage does not move when the struct does, so the weights may point into it.
    w.q.bias = w.q_bias.data();
    w.k.bias = w.k_bias.data();
    w.v.bias = w.v_bias.data();
  }
  return w;
}

void bind_all(Model& model, const std::string& file, const Names& names,
              std::function<const TensorInfo*(const std::string&)> find) {
  const Config& c = model.config;
  Binder bind(file, std::move(find), model);
  model.embedding = bind.matrix(names.embedding, c.vocab, c.hidden);
  const TensorInfo* output = bind.optional(std::string(names.output) + ".weight");
  model.tied = output == nullptr;
  model.output = model.tied ? model.embedding : bind.as_matrix(*output, c.vocab, c.hidden);
  model.output_norm = bind.vector(std::string(names.output_norm) + ".weight", c.hidden);
  for (int layer = 0; layer < c.layers; ++layer) model.layers.push_back(bind_layer(bind, c, names, layer));
  model.hash = bind.hash();
}

}  // namespace

Model load_model(const std::filesystem::path& path) {
  Model model;
  if (std::filesystem::is_directory(path)) {
    model.config = config_from_folder(path);
    const auto folder = std::make_shared<const files::SafetensorsFolder>(path);
    bind_all(model, path.string(), kHuggingFaceNames, [&](const std::string& name) { return folder->find(name); });
    model.files = folder;
  } else {
    const auto file = std::make_shared<const files::Gguf>(path);
    model.config = config_from_gguf(*file);
    bind_all(model, path.string(), kGgufNames, [&](const std::string& name) { return file->find(name); });
    model.gguf = file;
    model.files = file;
  }
  return model;
}

}  // namespace rarefy::model
