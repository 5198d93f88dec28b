// A decoder: embedding, layers, output head, over one KV cache.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "rarefy/model/layer.h"
#include "rarefy/model/step.h"
#include "rarefy/model/weights.h"

namespace rarefy::model {

struct TransformerOptions {
  Precision precision = Precision::Fast;
  std::int64_t context = 0;     // tokens of the longest sequence: LongRoPE chooses its factors by it
  std::int64_t max_rows = 512;  // tokens of the largest step
  int local = 256;              // tokens before a query's tile that prefill reads dense
  // [layers, kv_heads, head_dim] channel orders in which the cache holds q and k; empty: Hugging Face's order
  // everywhere.
  std::vector<std::int32_t> channel_order;
};

/// Runs steps of one model. Holds scratch memory, no state of any sequence. One step at a time.
class Transformer {
 public:
  /// `model` must outlive the transformer. Throws BadInput if the channel order is not made of permutations.
  Transformer(const Model& model, TransformerOptions options, Device device = kCpu);

  const Model& model() const { return model_; }
  const TransformerOptions& options() const { return options_; }
  const ops::Rope& rope() const { return rope_; }
  /// Calibration looks at what passes; an empty observer ends that.
  void observe(Observer observer) { observer_ = std::move(observer); }

  /// Runs one step that `cache.begin_step` has announced, and ends it.
  ///   logit_rows  rows of the step whose next-token logits are wanted, ascending
  ///   logits      [logit_rows.size(), vocab] float32
  /// Throws BadInput (shapes, a token outside the vocabulary, more rows than max_rows).
  void forward(const Step& step, KvCache& cache, std::span<const std::int32_t> logit_rows, const TensorView& logits);

 private:
  const Model& model_;
  TransformerOptions options_;
  ops::Rope rope_;
  Buffer rope_table_;  // [max_rows, 2, rotary / 2]
  Activations activations_;
  Buffer hidden_;
  Buffer last_;  // [logit rows, hidden] normed rows for the output head
  Workspace workspace_;
  Stream stream_;
  Observer observer_;
};

}  // namespace rarefy::model
