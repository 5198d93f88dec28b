// The main path: project, rotate, append, attend, settle, feed forward.
#include "rarefy/model/layer.h"

#include "rarefy/ops/rms_norm.h"
#include "rarefy/ops/scale.h"
#include "rarefy/ops/silu_mul.h"

namespace rarefy::model {
namespace {

std::int64_t float_bytes(std::int64_t count) { return count * static_cast<std::int64_t>(sizeof(float)); }

/// The same data seen as [rows, columns].
TensorView flat(const TensorView& view) {
  const std::int64_t rows = view.shape[0];
  return {view.data, view.dtype, {rows, rows == 0 ? 0 : view.shape.elements() / rows}, view.device};
}

void norm_heads(const TensorView& x, const std::vector<float>& weight, float eps, Stream& stream) {
  if (weight.empty()) return;
  const TensorView heads{x.data, x.dtype, {x.shape[0] * x.shape[1], x.shape[2]}, x.device};
  ops::rms_norm(heads, make_view(const_cast<float*>(weight.data()), {x.shape[2]}), eps, heads, stream);
}

}  // namespace

Activations::Activations(const Config& c, std::int64_t max_rows)
    : config_(c),
      max_rows_(max_rows),
      normed_(float_bytes(max_rows * c.hidden)),
      q_(float_bytes(max_rows * c.q_heads * c.head_dim)),
      k_(float_bytes(max_rows * c.kv_heads * c.head_dim)),
      v_(float_bytes(max_rows * c.kv_heads * c.head_dim)),
      q_rotated_(float_bytes(max_rows * c.q_heads * c.head_dim)),
      k_rotated_(float_bytes(max_rows * c.kv_heads * c.head_dim)),
      attended_(float_bytes(max_rows * c.q_heads * c.head_dim)),
      gate_(float_bytes(max_rows * c.intermediate)),
      up_(float_bytes(max_rows * c.intermediate)) {}

Activations::Rows Activations::rows(std::int64_t n) const {
  const Config& c = config_;
  CHECK(n <= max_rows_, "a step of {} rows, at most {} were planned", n, max_rows_);
  const Shape q_shape{n, c.q_heads, c.head_dim}, kv_shape{n, c.kv_heads, c.head_dim};
  return {make_view(normed_.as<float>(), {n, c.hidden}),
          make_view(q_.as<float>(), q_shape),
          make_view(k_.as<float>(), kv_shape),
          make_view(v_.as<float>(), kv_shape),
          make_view(q_rotated_.as<float>(), q_shape),
          make_view(k_rotated_.as<float>(), kv_shape),
          make_view(attended_.as<float>(), q_shape),
          make_view(gate_.as<float>(), {n, c.intermediate}),
          make_view(up_.as<float>(), {n, c.intermediate})};
}

void layer_forward(const LayerWeights& w, int layer, const std::int32_t* order, const PassContext& pass,
                   const Activations& activations, KvCache& cache, const TensorView& hidden) {
  const Config& c = pass.config;
  Stream& stream = pass.stream;
  const Activations::Rows a = activations.rows(hidden.shape[0]);
  const auto norm = [&](const std::vector<float>& weight) {
    ops::rms_norm(hidden, make_view(const_cast<float*>(weight.data()), {c.hidden}), c.rms_eps, a.normed, stream);
  };
  const auto product = [&](const TensorView& x, std::initializer_list<ops::LinearWeight> weights, bool accumulate,
                           std::initializer_list<TensorView> y) {
    ops::linear(x, {weights.begin(), weights.size()}, pass.precision, accumulate, {y.begin(), y.size()}, pass.workspace,
                stream);
  };

  norm(w.attention_norm);
  product(a.normed, {w.q, w.k, w.v}, false, {flat(a.q), flat(a.k), flat(a.v)});
  norm_heads(a.q, w.q_norm, c.rms_eps, stream);
  norm_heads(a.k, w.k_norm, c.rms_eps, stream);
  if (pass.observer) pass.observer(layer, a.q, a.k);
  ops::rope(a.q, pass.rope_table, c.rope_layout, order, c.kv_heads, a.q_rotated, stream);
  ops::rope(a.k, pass.rope_table, c.rope_layout, order, c.kv_heads, a.k_rotated, stream);

  cache.append(layer, a.q_rotated, a.k_rotated, a.v, stream);  // into dense pages; blocks that are due are sealed
  const BlockList blocks;                                      // every block; a selector will choose here
  cache.fetch(layer, blocks, stream);
  const TensorView no_lse;
  if (pass.step.decode)
    attention::decode(a.q_rotated, cache.view(layer), blocks, pass.attention, a.attended, no_lse, pass.workspace,
                      stream);
  else
    attention::prefill(a.q_rotated, pass.step.q_start, cache.view(layer), blocks, pass.attention, a.attended, no_lse,
                       pass.workspace, stream);
  cache.settle(layer, stream);  // dense pages that no later query reads go back

  ops::scale(a.attended, c.residual_scale, stream);
  product(flat(a.attended), {w.o}, true, {hidden});
  norm(w.ffn_norm);
  product(a.normed, {w.gate, w.up}, false, {a.gate, a.up});
  ops::silu_mul(a.gate, a.up, a.gate, stream);
  ops::scale(a.gate, c.residual_scale, stream);
  product(a.gate, {w.down}, true, {hidden});
}

}  // namespace rarefy::model
