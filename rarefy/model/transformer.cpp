// The forward pass of a decoder.
#include "rarefy/model/transformer.h"

#include <cmath>
#include <cstring>

#include "rarefy/ops/embedding.h"
#include "rarefy/ops/rms_norm.h"
#include "rarefy/ops/scale.h"

namespace rarefy::model {
namespace {

std::vector<std::int32_t> default_order(const Config& c) {
  const std::vector<std::int32_t> head = natural_order(c);
  std::vector<std::int32_t> order;
  for (int i = 0; i < c.layers * c.kv_heads; ++i) order.insert(order.end(), head.begin(), head.end());
  return order;
}

void check_order(const Config& c, const std::vector<std::int32_t>& order) {
  const auto size = static_cast<std::size_t>(c.layers) * c.kv_heads * c.head_dim;
  CHECK(order.size() == size, "channel order has {} entries, {} are needed", order.size(), size);
  for (std::size_t row = 0; row < size; row += static_cast<std::size_t>(c.head_dim)) {
    std::vector<bool> seen(static_cast<std::size_t>(c.head_dim));
    for (int i = 0; i < c.head_dim; ++i) {
      const std::int32_t channel = order[row + static_cast<std::size_t>(i)];
      CHECK(channel >= 0 && channel < c.head_dim && !seen[static_cast<std::size_t>(channel)],
            "channel order of layer {}, KV head {} is not a permutation", row / c.head_dim / c.kv_heads,
            row / c.head_dim % c.kv_heads);
      seen[static_cast<std::size_t>(channel)] = true;
    }
  }
}

}  // namespace

Transformer::Transformer(const Model& model, TransformerOptions options, Device device)
    : model_(model),
      options_(std::move(options)),
      rope_(make_rope(model.config, options_.context)),
      rope_table_(options_.max_rows * model.config.rotary * 4),
      activations_(model.config, options_.max_rows),
      hidden_(options_.max_rows * model.config.hidden * 4),
      workspace_(device),
      stream_(device) {
  CHECK(device.is_cpu(), "device '{}': models run on the CPU only so far", to_string(device));
  if (options_.channel_order.empty()) options_.channel_order = default_order(model.config);
  check_order(model.config, options_.channel_order);
}

void Transformer::forward(const Step& step, KvCache& cache, std::span<const std::int32_t> logit_rows,
                          const TensorView& logits) {
  const Config& c = model_.config;
  const auto rows = static_cast<std::int64_t>(step.tokens.size());
  const auto wanted = static_cast<std::int64_t>(logit_rows.size());
  CHECK(rows > 0 && rows <= options_.max_rows, "a step of {} tokens, must be 1 to {}", rows, options_.max_rows);
  CHECK(step.positions.size() == step.tokens.size(), "{} positions for {} tokens", step.positions.size(), rows);
  check_tensor("logits", logits, DType::F32, {wanted, c.vocab}, stream_.device());

  const TensorView hidden = make_view(hidden_.as<float>(), {rows, c.hidden});
  ops::embedding(step.tokens.data(), rows, model_.embedding, c.embedding_scale, hidden, stream_);
  const TensorView rope_table = make_view(rope_table_.as<float>(), {rows, 2, c.rotary / 2});
  ops::rope_table(step.positions, rope_, rope_table, stream_);
  const attention::Options attention{.scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                     .local = options_.local,
                                     .precision = options_.precision,
                                     .version = attention::Version::Fast};
  const PassContext pass{c, step, rope_table, attention, options_.precision, workspace_, stream_, observer_};
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::int32_t* order = options_.channel_order.data() + std::int64_t{layer} * c.kv_heads * c.head_dim;
    layer_forward(model_.layers[static_cast<std::size_t>(layer)], layer, order, pass, activations_, cache, hidden);
  }
  cache.end_step();
  if (wanted == 0) return;

  if (last_.size() < wanted * c.hidden * 4) last_ = Buffer(wanted * c.hidden * 4);
  float* last = last_.as<float>();
  for (std::int64_t i = 0; i < wanted; ++i) {
    const std::int32_t row = logit_rows[static_cast<std::size_t>(i)];
    CHECK(row >= 0 && row < rows, "logits of row {} of a step of {}", row, rows);
    std::memcpy(last + i * c.hidden, hidden_.as<float>() + row * std::int64_t{c.hidden},
                static_cast<std::size_t>(c.hidden) * 4);
  }
  const TensorView normed = make_view(last, {wanted, c.hidden});
  ops::rms_norm(normed, make_view(const_cast<float*>(model_.output_norm.data()), {c.hidden}), c.rms_eps, normed,
                stream_);
  ops::scale(normed, 1 / c.logit_scale, stream_);
  ops::linear(normed, {&model_.output, 1}, options_.precision, false, {&logits, 1}, workspace_, stream_);
}

}  // namespace rarefy::model
