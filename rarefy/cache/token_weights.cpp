// Expected attention of a block's tokens.
#include "rarefy/cache/token_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rarefy/base/convert.h"

namespace rarefy {
namespace {

using format24::kBlock;

constexpr int kMaxHeadDim = 128;

/// Keys with tokens innermost: sums over channels then keep their order and still vectorise.
class Transposed {
 public:
  explicit Transposed(const KeyPage& keys)
      : dim_(keys.head_dim), scale_(1 / std::sqrt(static_cast<float>(keys.head_dim))) {
    keys.dtype == DType::F16 ? read<Half>(keys) : read<BFloat16>(keys);
  }

  /// score[t] = q . k_t / sqrt(d)
  void scores(const float* q, float (&score)[kBlock]) const {
    std::fill_n(score, kBlock, 0.f);
    for (int c = 0; c < dim_; ++c)
      for (int t = 0; t < kBlock; ++t) score[t] += q[c] * keys_[c][t];
    for (float& s : score) s *= scale_;
  }

 private:
  template <typename T>
  void read(const KeyPage& keys) {
    for (int token = 0; token < kBlock; ++token)
      for (int chunk = 0; chunk < dim_; chunk += 8) {
        float row[8] = {};  // slots past the end may hold anything
        if (token < keys.tokens)
          convert(reinterpret_cast<const T*>(keys.data + format24::dense_offset(token, chunk)), 8, row);
        for (int i = 0; i < 8; ++i) keys_[chunk + i][token] = row[i];
      }
  }
  int dim_;
  float scale_;
  float keys_[kMaxHeadDim][kBlock];
};

/// log of the sum of exp over the first `tokens` scores.
float log_sum(const float (&score)[kBlock], int tokens) {
  const float top = *std::max_element(score, score + tokens);
  float sum = 0;
  for (int t = 0; t < tokens; ++t) sum += std::exp(score[t] - top);
  return top + std::log(sum);
}

template <typename Body>
void each_query(std::span<const QuerySet> queries, Body body) {
  std::int64_t index = 0;
  for (const QuerySet& set : queries)
    for (std::int64_t i = 0; i < set.count; ++i) body(set.rows + i * set.stride, index++);
}

}  // namespace

void add_log_sums(const KeyPage& keys, std::span<const QuerySet> queries, float* lse) {
  const Transposed transposed(keys);
  each_query(queries, [&](const float* q, std::int64_t i) {
    float score[kBlock];
    transposed.scores(q, score);
    const float block = log_sum(score, keys.tokens);
    const float high = std::max(lse[i], block), low = std::min(lse[i], block);
    lse[i] = high + std::log1p(std::exp(low - high));
  });
}

void expected_attention(const KeyPage& keys, std::span<const QuerySet> queries, const float* lse, float* mass) {
  const Transposed transposed(keys);
  std::fill_n(mass, kBlock, 0.f);
  std::int64_t count = 0;
  each_query(queries, [&](const float* q, std::int64_t i) {
    float score[kBlock];
    transposed.scores(q, score);
    const float all = lse != nullptr ? lse[i] : log_sum(score, keys.tokens);
    for (int t = 0; t < keys.tokens; ++t) mass[t] += std::exp(score[t] - all);
    ++count;
  });
  for (int t = 0; t < keys.tokens; ++t) mass[t] = count > 0 ? mass[t] / static_cast<float>(count) : 1.f / kBlock;
}

void weights_of(const float* mass, float mean, float* w) {
  for (int t = 0; t < kBlock; ++t) w[t] = mean > 0 ? std::sqrt(std::max(1.f, mass[t] / mean)) : 1.f;
}

}  // namespace rarefy
