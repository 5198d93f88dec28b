// How far one next-token distribution lies from another.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace rarefy::eval {

/// log softmax of `logits` [vocab] into `out` [vocab], float32, sums in float64.
void log_softmax(std::span<const float> logits, std::span<float> out);

/// Comparison over positions, as llama.cpp's perplexity tool reports it.
struct Divergence {
  std::int64_t tokens = 0;
  double kl_mean = 0;    // mean over positions of KL(reference || other), nats
  double kl_stderr = 0;  // standard error of that mean
  double kl_p99 = 0;     // 99th percentile
  double top1 = 0;       // share of positions with the same most likely token
  double ppl = 0;        // perplexity of `other` on the text
  double ppl_reference = 0;
};

/// Compares logits row by row: row i predicts targets[i]; a row whose target is -1 counts for KL only.
///   reference, other  [rows, vocab] float32;  targets [rows]
Divergence compare(std::span<const float> reference, std::span<const float> other, std::int64_t vocab,
                   std::span<const std::int32_t> targets);

}  // namespace rarefy::eval
