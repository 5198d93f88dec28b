// Statistics of q and k at random positions, and what follows from them.
#include "rarefy/train/calibrate.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "rarefy/base/check.h"
#include "rarefy/engine/engine.h"
#include "rarefy/train/channel_order.h"

namespace rarefy::train {
namespace {

constexpr std::int64_t kSkip = 64;         // the first tokens attract all queries and look like no others
constexpr std::int64_t kProbesFrom = 256;  // probes come from queries with some past
constexpr std::int64_t kSampleEvery = 4;   // keys that swaps are judged on

/// What one layer collects while the tokens pass. Channels as in the file.
struct LayerStatistics {
  std::vector<double> key_energy, query_energy;  // [kv_heads, head_dim] sums of squares
  std::vector<float> samples;                    // [rows][kv_heads, head_dim]
  std::vector<float> probes;                     // [rows][q_heads, head_dim]
};

class Collector {
 public:
  Collector(const model::Config& config, const ops::Rope& rope, const CalibrateOptions& options, std::int64_t count)
      : config_(config),
        rope_(rope),
        options_(options),
        count_(count),
        layers_(static_cast<std::size_t>(config.layers)) {
    const auto heads = static_cast<std::size_t>(config.kv_heads) * config.head_dim;
    for (LayerStatistics& layer : layers_) {
      layer.key_energy.assign(heads, 0);
      layer.query_energy.assign(heads, 0);
    }
  }

  /// Rotates each token to a random position of the context and adds it up.
  void add(int layer, std::int64_t begin, const TensorView& q, const TensorView& k) {
    const std::int64_t rows = q.shape[0];
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
    std::mt19937_64 random(options_.seed + static_cast<std::uint64_t>(layer) * 1000003 +
                           static_cast<std::uint64_t>(begin));
    for (std::int32_t& position : positions)
      position = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(options_.context));
    std::vector<float> table(static_cast<std::size_t>(rows * config_.rotary));
    std::vector<float> q_out(static_cast<std::size_t>(q.shape.elements())),
        k_out(static_cast<std::size_t>(k.shape.elements()));
    const TensorView table_view = make_view(table.data(), {rows, 2, config_.rotary / 2});
    ops::rope_table(positions, rope_, table_view, stream_);
    ops::rope(q, table_view, rope_.layout, nullptr, config_.kv_heads, make_view(q_out.data(), q.shape), stream_);
    ops::rope(k, table_view, rope_.layout, nullptr, config_.kv_heads, make_view(k_out.data(), k.shape), stream_);
    for (std::int64_t i = 0; i < rows; ++i)
      add_token(layers_[static_cast<std::size_t>(layer)], begin + i, q_out.data() + i * q_size(),
                k_out.data() + i * k_size());
  }

  std::vector<LayerStatistics>& layers() { return layers_; }
  std::int64_t q_size() const { return std::int64_t{config_.q_heads} * config_.head_dim; }
  std::int64_t k_size() const { return std::int64_t{config_.kv_heads} * config_.head_dim; }

 private:
  void add_token(LayerStatistics& s, std::int64_t token, const float* q, const float* k) {
    const std::int64_t dim = config_.head_dim, group = config_.group();
    for (std::int64_t head = 0; head < config_.q_heads; ++head)
      for (std::int64_t c = 0; c < dim; ++c) {
        const double x = q[head * dim + c];
        s.query_energy[static_cast<std::size_t>(head / group * dim + c)] += x * x;
      }
    if (token >= kSkip) {
      for (std::int64_t i = 0; i < k_size(); ++i)
        s.key_energy[static_cast<std::size_t>(i)] += static_cast<double>(k[i]) * k[i];
      if (token % kSampleEvery == 0) s.samples.insert(s.samples.end(), k, k + k_size());
    }
    const std::int64_t every = std::max<std::int64_t>(1, (count_ - kProbesFrom) / options_.probes);
    const bool probe = token >= kProbesFrom && (token - kProbesFrom) % every == 0;
    if (probe && static_cast<std::int64_t>(s.probes.size()) < options_.probes * q_size())
      s.probes.insert(s.probes.end(), q, q + q_size());
  }

  const model::Config& config_;
  const ops::Rope& rope_;
  const CalibrateOptions& options_;
  std::int64_t count_;
  std::vector<LayerStatistics> layers_;
  Stream stream_;
};

/// Order and weights of one KV head.
void order_head(const LayerStatistics& s, int head, int kv_heads, int head_dim, std::int64_t count,
                const CalibrateOptions& options, std::uint64_t seed, std::int32_t* order_out, float* weights_out) {
  const auto dim = static_cast<std::size_t>(head_dim), base = static_cast<std::size_t>(head) * dim;
  std::vector<double> weight(dim), energy(dim);
  for (std::size_t c = 0; c < dim; ++c) {
    weight[c] = std::sqrt(std::max(s.query_energy[base + c] / static_cast<double>(count), 1e-20));
    energy[c] = s.key_energy[base + c] * weight[c] * weight[c];
  }
  const std::size_t row = dim * static_cast<std::size_t>(kv_heads);
  std::vector<float> samples;
  for (std::size_t at = base; at < s.samples.size(); at += row)
    for (std::size_t c = 0; c < dim; ++c) samples.push_back(s.samples[at + c] * static_cast<float>(weight[c]));
  std::vector<std::int32_t> order = deal_channels(energy);
  improve_order(order, samples, options.swaps, seed);
  for (std::size_t i = 0; i < dim; ++i) {
    order_out[i] = order[i];
    weights_out[i] = static_cast<float>(weight[static_cast<std::size_t>(order[i])]);
  }
}

}  // namespace

Calibration calibration_of(const model::Model& model) {
  Calibration c;
  c.layers = model.config.layers;
  c.q_heads = model.config.q_heads;
  c.kv_heads = model.config.kv_heads;
  c.head_dim = model.config.head_dim;
  c.model_hash = model.hash;
  return c;
}

Calibration calibrate(const model::Model& model, std::span<const files::TokenId> tokens,
                      const CalibrateOptions& options, const engine::Progress& progress) {
  const model::Config& config = model.config;
  tokens = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(options.tokens)));
  const auto count = static_cast<std::int64_t>(tokens.size());
  constexpr std::int64_t kLeast = 512;
  if (count < kLeast)
    fail(ErrorCode::BadInput, "E_CAL_TEXT", "calibration needs at least {} tokens of text, got {}", kLeast, count);
  CHECK(options.context >= 1 && options.context <= INT32_MAX && options.probes > 0 && options.swaps >= 0,
        "calibration with a context of {}, {} probes, {} swaps", options.context, options.probes, options.swaps);

  engine::EngineConfig dense;
  dense.context = std::max(count, options.context);  // LongRoPE chooses its factors by the context that will be served
  dense.chunk = 512;
  CacheConfig cache_config = engine::cache_config(config, dense);
  cache_config.max_tokens = count;
  KvCache cache(cache_config, dense.pruner);
  model::Transformer transformer(model, engine::transformer_options(dense));
  Collector collector(config, transformer.rope(), options, count);
  const SequenceId sequence = *cache.add();
  transformer.observe(
      [&](int layer, const TensorView& q, const TensorView& k) { collector.add(layer, cache.length(sequence), q, k); });
  engine::feed(transformer, cache, sequence, tokens, count, true, progress);

  Calibration out = calibration_of(model);
  const auto dim = static_cast<std::size_t>(config.head_dim);
  out.probes = static_cast<int>(static_cast<std::int64_t>(collector.layers()[0].probes.size()) / collector.q_size());
  out.order.resize(static_cast<std::size_t>(config.layers) * config.kv_heads * dim);
  out.weights.resize(out.order.size());
  out.queries.resize(static_cast<std::size_t>(config.layers) * config.q_heads * out.probes * dim);
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < config.layers * config.kv_heads; ++i)
    order_head(collector.layers()[static_cast<std::size_t>(i / config.kv_heads)], i % config.kv_heads, config.kv_heads,
               config.head_dim, count, options, options.seed + static_cast<std::uint64_t>(i),
               out.order.data() + static_cast<std::size_t>(i) * dim,
               out.weights.data() + static_cast<std::size_t>(i) * dim);
  for (int layer = 0; layer < config.layers; ++layer)
    for (int head = 0; head < config.q_heads; ++head) {
      const std::int32_t* order =
          out.order.data() + (static_cast<std::size_t>(layer) * config.kv_heads + head / config.group()) * dim;
      float* to = out.queries.data() + (static_cast<std::size_t>(layer) * config.q_heads + head) * out.probes * dim;
      for (int probe = 0; probe < out.probes; ++probe) {
        const float* from = collector.layers()[static_cast<std::size_t>(layer)].probes.data() +
                            probe * collector.q_size() + std::int64_t{head} * config.head_dim;
        for (std::size_t c = 0; c < dim; ++c) to[static_cast<std::size_t>(probe) * dim + c] = from[order[c]];
      }
    }
  return out;
}

}  // namespace rarefy::train
