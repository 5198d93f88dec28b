// One decoder layer over the KV cache: the main path of Rarefy.
#pragma once
#include <functional>
#include <vector>

#include "rarefy/attention/attention.h"
#include "rarefy/base/buffer.h"
#include "rarefy/base/workspace.h"
#include "rarefy/cache/kv_cache.h"
#include "rarefy/model/step.h"
#include "rarefy/model/weights.h"
#include "rarefy/ops/rope.h"

namespace rarefy::model {

/// Scratch rows of one step, shared by all layers; sized for the largest step.
class Activations {
 public:
  Activations(const Config& config, std::int64_t max_rows);

  /// Views of the first `rows` rows.
  struct Rows {
    TensorView normed;   // [rows, hidden]
    TensorView q, k, v;  // [rows, heads, head_dim] as the products give them
    TensorView q_rotated, k_rotated;
    TensorView attended;  // [rows, q_heads, head_dim]
    TensorView gate, up;  // [rows, intermediate]
  };
  Rows rows(std::int64_t rows) const;
  std::int64_t max_rows() const { return max_rows_; }

 private:
  Config config_;
  std::int64_t max_rows_;
  Buffer normed_, q_, k_, v_, q_rotated_, k_rotated_, attended_, gate_, up_;
};

/// Sees q and k of every layer before they are rotated, in the file's channel order.
using Observer = std::function<void(int layer, const TensorView& q, const TensorView& k)>;

/// What every layer of one pass shares.
struct PassContext {
  const Config& config;
  const Step& step;
  TensorView rope_table;  // [rows, 2, rotary / 2]
  attention::Options attention;
  Precision precision;
  Workspace& workspace;
  Stream& stream;
  const Observer& observer;  // may be empty
};

/// hidden += attention(norm(hidden)); hidden += feed_forward(norm(hidden)), over the cache that holds the past.
///   hidden  [rows, hidden] float32, in and out;   order  [kv_heads, head_dim] channel order of this layer
void layer_forward(const LayerWeights& weights, int layer, const std::int32_t* order, const PassContext& pass,
                   const Activations& activations, KvCache& cache, const TensorView& hidden);

}  // namespace rarefy::model
