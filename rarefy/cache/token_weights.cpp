// Expected attention of a block's tokens.
#include "rarefy/cache/token_weights.h"

#include <algorithm>
#include <cmath>

#include "rarefy/base/convert.h"

namespace rarefy {
namespace {

using format24::kBlock;

constexpr int kMaxHeadDim = 128;

template <typename T>
void transpose(const std::byte* page, int head_dim, float (*out)[kBlock]) {
  for (int token = 0; token < kBlock; ++token)
    for (int chunk = 0; chunk < head_dim; chunk += 8) {
      float row[8];
      convert(reinterpret_cast<const T*>(page + format24::dense_offset(token, chunk)), 8, row);
      for (int i = 0; i < 8; ++i) out[chunk + i][token] = row[i];
    }
}

}  // namespace

void token_weights(DType dtype, int head_dim, const std::byte* k, std::span<const QuerySet> queries, float* w) {
  float keys[kMaxHeadDim]
            [kBlock];  // transposed: the inner loop runs over tokens, so sums keep their order and vectorise
  dtype == DType::F16 ? transpose<Half>(k, head_dim, keys) : transpose<BFloat16>(k, head_dim, keys);
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  float mass[kBlock] = {};
  for (const QuerySet& set : queries)
    for (std::int64_t i = 0; i < set.count; ++i) {
      const float* q = set.rows + i * set.stride;
      float score[kBlock] = {};
      for (int c = 0; c < head_dim; ++c)
        for (int t = 0; t < kBlock; ++t) score[t] += q[c] * keys[c][t];
      const float top = *std::max_element(score, score + kBlock);
      float sum = 0;
      for (int t = 0; t < kBlock; ++t) {
        score[t] = std::exp((score[t] - top) * scale);
        sum += score[t];
      }
      for (int t = 0; t < kBlock; ++t) mass[t] += score[t] / sum;
    }
  float mean = 0;
  for (int t = 0; t < kBlock; ++t) mean += mass[t] / kBlock;
  for (int t = 0; t < kBlock; ++t) w[t] = mean > 0 ? std::sqrt(std::max(1.f, mass[t] / mean)) : 1.f;
}

}  // namespace rarefy
