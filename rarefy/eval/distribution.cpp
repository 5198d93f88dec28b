// KL divergence, agreement and perplexity from logits.
#include "rarefy/eval/distribution.h"

#include <algorithm>
#include <cmath>

#include "rarefy/base/check.h"

namespace rarefy::eval {

void log_softmax(std::span<const float> logits, std::span<float> out) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  const double shift = top + std::log(sum);
  for (std::size_t i = 0; i < logits.size(); ++i) out[i] = static_cast<float>(logits[i] - shift);
}

Divergence compare(std::span<const float> reference, std::span<const float> other, std::int64_t vocab,
                   std::span<const std::int32_t> targets) {
  const std::size_t rows = targets.size(), width = static_cast<std::size_t>(vocab);
  CHECK(rows > 0 && reference.size() == rows * width && other.size() == rows * width,
        "compare: {} and {} logits for {} rows of {}", reference.size(), other.size(), rows, vocab);
  std::vector<double> kl(rows), nll(rows), nll_reference(rows);
  std::vector<std::uint8_t> same(rows);
#pragma omp parallel
  {
    std::vector<float> p(width), q(width);
#pragma omp for
    for (std::size_t row = 0; row < rows; ++row) {
      log_softmax(reference.subspan(row * width, width), p);
      log_softmax(other.subspan(row * width, width), q);
      double sum = 0;
      for (std::size_t i = 0; i < width; ++i)
        sum += std::exp(static_cast<double>(p[i])) * (static_cast<double>(p[i]) - q[i]);
      kl[row] = sum;
      same[row] = std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
      if (targets[row] >= 0) {
        nll[row] = -q[static_cast<std::size_t>(targets[row])];
        nll_reference[row] = -p[static_cast<std::size_t>(targets[row])];
      }
    }
  }
  Divergence out;
  out.tokens = static_cast<std::int64_t>(rows);
  std::int64_t scored = 0;
  double nll_sum = 0, nll_reference_sum = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    out.kl_mean += kl[row] / static_cast<double>(rows);
    out.top1 += same[row] / static_cast<double>(rows);
    if (targets[row] < 0) continue;
    ++scored;
    nll_sum += nll[row];
    nll_reference_sum += nll_reference[row];
  }
  double variance = 0;
  for (const double x : kl) variance += (x - out.kl_mean) * (x - out.kl_mean);
  if (rows > 1) out.kl_stderr = std::sqrt(variance / static_cast<double>(rows - 1) / static_cast<double>(rows));
  std::sort(kl.begin(), kl.end());
  out.kl_p99 = kl[std::min(rows - 1, static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(rows))) - 1)];
  if (scored > 0) {
    out.ppl = std::exp(nll_sum / static_cast<double>(scored));
    out.ppl_reference = std::exp(nll_reference_sum / static_cast<double>(scored));
  }
  return out;
}

}  // namespace rarefy::eval
