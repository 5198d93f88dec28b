// Sealing on the CPU: a page to float rows, the rule on four lanes at once, non-zeros and metadata out.
#include "rarefy/format24/compress_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "rarefy/base/convert.h"

namespace rarefy::format24::cpu {
namespace {

constexpr int kMaxHeadDim = 128;

/// What a rule decides for one group of four.
struct Choice {
  int first, second;  // kept indices, ascending
  float value[2];     // written in their place
  float loss;
};

/// |x|, NaN as infinity: it is kept and stays visible.
float magnitude(float x) { return std::isnan(x) ? std::numeric_limits<float>::infinity() : std::fabs(x); }

/// Indices of the two largest scores, ties to the lower index.
void top_two(const float (&score)[4], int& first, int& second) {
  int best = 0;
  for (int i = 1; i < 4; ++i)
    if (score[i] > score[best]) best = i;
  int next = best == 0 ? 1 : 0;
  for (int i = next + 1; i < 4; ++i)
    if (i != best && score[i] > score[next]) next = i;
  first = best < next ? best : next;
  second = best < next ? next : best;
}

/// Keeps the two largest |x| * weight (weight 0: the value is masked out). Equation 2; with weights, pruning.md 1.
Choice choose_largest(const float (&x)[4], const float (&weight)[4], LossKind kind) {
  float score[4];
  for (int i = 0; i < 4; ++i) score[i] = weight[i] == 0 ? 0 : magnitude(x[i]) * weight[i];
  Choice c;
  top_two(score, c.first, c.second);
  c.value[0] = weight[c.first] == 0 ? 0 : x[c.first];
  c.value[1] = weight[c.second] == 0 ? 0 : x[c.second];
  c.loss = 0;
  for (int i = 0; i < 4; ++i) {
    if ((i == c.first || i == c.second) && weight[i] != 0) continue;
    const float w = weight[i] == 0 ? 1 : weight[i];
    c.loss += kind == LossKind::L1 ? magnitude(x[i]) : x[i] * w * (x[i] * w);
  }
  return c;
}

/// Explicit mask: what it keeps, at most two; the rest of the pair is filled with dropped places that store zero.
Choice choose_masked(const float (&x)[4], const bool (&keep)[4], LossKind kind) {
  Choice c{};
  int chosen[2], count = 0;
  for (int i = 0; i < 4; ++i)
    if (keep[i]) chosen[count++] = i;
  for (int i = 0; i < 4 && count < 2; ++i)
    if (!keep[i]) chosen[count++] = i;
  c.first = std::min(chosen[0], chosen[1]);
  c.second = std::max(chosen[0], chosen[1]);
  c.value[0] = keep[c.first] ? x[c.first] : 0;
  c.value[1] = keep[c.second] ? x[c.second] : 0;
  for (int i = 0; i < 4; ++i)
    if (!keep[i]) c.loss += kind == LossKind::L1 ? magnitude(x[i]) : x[i] * x[i];
  return c;
}

constexpr int kPairs[6][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 3, 1, 2}, {1, 2, 0, 3}, {1, 3, 0, 2}, {2, 3, 0, 1}};

/// The pair whose loss costs least, its remainder shared out over what stays: pruning.md 2.
Choice choose_pair(const float (&v)[4], const float (&w)[4], LossKind kind) {
  float a[4];
  for (int i = 0; i < 4; ++i) a[i] = w[i] * v[i];
  int best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (int p = 0; p < 6; ++p) {
    const float x = a[kPairs[p][2]], y = a[kPairs[p][3]];
    const float sum = x + y;
    const float cost = x * x + y * y + sum * sum * 0.25f;
    if (cost < least) {
      least = cost;
      best = p;
    }
  }
  const int* pair = kPairs[best];
  const float share = (a[pair[2]] + a[pair[3]]) * 0.25f;
  Choice c;
  c.first = pair[0];
  c.second = pair[1];
  c.value[0] = v[c.first] + share * (1 / w[c.first]);  // a reciprocal serves all channels of a token
  c.value[1] = v[c.second] + share * (1 / w[c.second]);
  c.loss = kind == LossKind::Energy ? least : magnitude(v[pair[2]]) + magnitude(v[pair[3]]);
  return c;
}

Choice choose(Side side, const PruneInput& prune, LossKind kind, const float (&x)[4], int token, int channel,
              int head_dim) {
  // Where element i of the group lies: along channels for keys, along tokens for values.
  const auto token_of = [&](int i) { return side == Side::K ? token : token + i; };
  const auto channel_of = [&](int i) { return side == Side::K ? channel + i : channel; };
  float weight[4] = {1, 1, 1, 1};
  switch (prune.rule) {
    case PruneRule::Magnitude:
      return choose_largest(x, weight, kind);
    case PruneRule::Calibrated:
      if (side == Side::K) {
        if (prune.channel_weights != nullptr)
          for (int i = 0; i < 4; ++i) weight[i] = prune.channel_weights[channel + i];
        return choose_largest(x, weight, kind);
      }
      if (prune.token_weights != nullptr)
        for (int i = 0; i < 4; ++i) weight[i] = prune.token_weights[token + i];
      return choose_pair(x, weight, kind);
    case PruneRule::Channels:
      for (int i = 0; i < 4; ++i) weight[i] = prune.channels[channel_of(i)] != 0 ? 1.f : 0.f;
      return choose_largest(x, weight, kind);
    case PruneRule::Elements:
      break;
  }
  bool keep[4];
  for (int i = 0; i < 4; ++i) keep[i] = prune.elements[token_of(i) * head_dim + channel_of(i)] != 0;
  return choose_masked(x, keep, kind);
}

template <typename T>
float compress_typed(Side side, int head_dim, const CompressJob& job, LossKind kind) {
  float values[kBlock * kMaxHeadDim];
  for (int token = 0; token < kBlock; ++token)
    for (int chunk = 0; chunk < head_dim; chunk += 8)
      convert(reinterpret_cast<const T*>(job.dense + dense_offset(token, chunk)), 8, values + token * head_dim + chunk);

  std::uint32_t* words = nullptr;  // null: only the loss is wanted
  if (job.sparse != nullptr) {
    words = reinterpret_cast<std::uint32_t*>(job.sparse + nonzero_bytes(head_dim));
    std::memset(words, 0, static_cast<std::size_t>(metadata_bytes(head_dim)));
  }
  const int rows = side == Side::K ? kBlock : head_dim;
  const int reduction = side == Side::K ? head_dim : kBlock;
  const int stride = side == Side::K ? 1 : head_dim;
  float loss = 0;
  for (int row = 0; row < rows; ++row) {
    float row_loss = 0;
    for (int group = 0; group < reduction / 4; ++group) {
      const int token = side == Side::K ? row : group * 4, channel = side == Side::K ? group * 4 : row;
      const float* at = values + token * head_dim + channel;
      const float x[4] = {at[0], at[stride], at[2 * stride], at[3 * stride]};
      const Choice c = choose(side, job.prune, kind, x, token, channel, head_dim);
      row_loss += c.loss;
      if (words == nullptr) continue;
      for (int z = 0; z < 2; ++z) {
        const T value = from_float<T>(c.value[z]);
        const int offset =
            side == Side::K ? k_nonzero_offset(row, group * 2 + z, head_dim) : v_nonzero_offset(group * 2 + z, row);
        std::memcpy(job.sparse + offset, &value, 2);
      }
      const MetadataPlace place = metadata_place(row, group, reduction);
      words[place.word] |= static_cast<std::uint32_t>(c.first | c.second << 2) << place.shift;
    }
    loss += row_loss;
  }
  return loss;
}

}  // namespace

float compress_page(Side side, DType dtype, int head_dim, const CompressJob& job, LossKind kind) {
  return dtype == DType::F16 ? compress_typed<Half>(side, head_dim, job, kind)
                             : compress_typed<BFloat16>(side, head_dim, job, kind);
}

}  // namespace rarefy::format24::cpu
