// Sealing on vectors for the rules of the product: lanes are channels (values) or groups of a token (keys).
#include <cmath>
#include <cstring>
#include <limits>

#include "rarefy/base/convert.h"
#include "rarefy/format24/compress_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/format24/compress_fast.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::format24::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMaxDim = 128;
// At most 16 lanes: a token of head_dim 64 has 16 groups.
using F = hn::CappedTag<float, 16>;
using I = hn::RebindToSigned<F>;
using VF = hn::Vec<F>;

/// What the rule decides for one group per lane.
struct Choices {
  VF first, second, loss;
  hn::Vec<I> code;  // i0 | i1 << 2
};

/// |x|, NaN as infinity.
HWY_INLINE VF magnitude(VF x) {
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(F(), std::numeric_limits<float>::infinity()), hn::Abs(x));
}

HWY_INLINE Choices choose_largest(const VF (&x)[4], const VF (&weight)[4], LossKind kind) {
  const F f;
  const I i;
  VF score[4];
  for (int n = 0; n < 4; ++n) score[n] = hn::Mul(magnitude(x[n]), weight[n]);
  hn::Mask<I> keep[4];
  VF loss = hn::Zero(f);
  for (int n = 0; n < 4; ++n) {
    auto rank = hn::Zero(i);  // how many come before it
    for (int m = 0; m < 4; ++m) {
      if (m == n) continue;
      const auto before = m < n ? hn::Ge(score[m], score[n]) : hn::Gt(score[m], score[n]);
      rank = hn::Sub(rank, hn::BitCast(i, hn::VecFromMask(f, before)));
    }
    keep[n] = hn::Lt(rank, hn::Set(i, 2));
    const VF scaled = hn::Mul(x[n], weight[n]);
    const VF term = kind == LossKind::L1 ? magnitude(x[n]) : hn::Mul(scaled, scaled);
    loss = hn::Add(loss, hn::IfThenZeroElse(hn::RebindMask(f, keep[n]), term));
  }
  const auto pick = [&](const auto& tag, auto k, auto yes, auto no) {
    return hn::IfThenElse(hn::RebindMask(tag, k), yes, no);
  };
  const auto low = pick(i, keep[0], hn::Zero(i), pick(i, keep[1], hn::Set(i, 1), hn::Set(i, 2)));
  const auto high = pick(i, keep[3], hn::Set(i, 3), pick(i, keep[2], hn::Set(i, 2), hn::Set(i, 1)));
  return {pick(f, keep[0], x[0], pick(f, keep[1], x[1], x[2])), pick(f, keep[3], x[3], pick(f, keep[2], x[2], x[1])),
          loss, hn::Or(low, hn::ShiftLeft<2>(high))};
}

HWY_INLINE Choices choose_pair(const VF (&v)[4], const VF (&w)[4], const VF (&inverse)[4], LossKind kind) {
  constexpr int kPairs[6][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 3, 1, 2}, {1, 2, 0, 3}, {1, 3, 0, 2}, {2, 3, 0, 1}};
  const F f;
  const I i;
  VF a[4], size[4];
  for (int n = 0; n < 4; ++n) {
    a[n] = hn::Mul(w[n], v[n]);
    size[n] = magnitude(v[n]);
  }
  const VF quarter = hn::Set(f, 0.25f);
  VF least = hn::Set(f, std::numeric_limits<float>::infinity());
  VF left = hn::Add(a[2], a[3]), v0 = v[0], v1 = v[1], u0 = inverse[0], u1 = inverse[1],
     dropped = hn::Add(size[2], size[3]);
  auto code = hn::Set(i, 0 | 1 << 2);
  for (const auto& p : kPairs) {
    const VF x = a[p[2]], y = a[p[3]], sum = hn::Add(x, y);
    const VF cost = hn::Add(hn::Add(hn::Mul(x, x), hn::Mul(y, y)), hn::Mul(hn::Mul(sum, sum), quarter));
    const auto better = hn::Lt(cost, least);
    least = hn::IfThenElse(better, cost, least);
    left = hn::IfThenElse(better, sum, left);
    v0 = hn::IfThenElse(better, v[p[0]], v0);
    v1 = hn::IfThenElse(better, v[p[1]], v1);
    u0 = hn::IfThenElse(better, inverse[p[0]], u0);
    u1 = hn::IfThenElse(better, inverse[p[1]], u1);
    dropped = hn::IfThenElse(better, hn::Add(size[p[2]], size[p[3]]), dropped);
    code = hn::IfThenElse(hn::RebindMask(i, better), hn::Set(i, p[0] | p[1] << 2), code);
  }
  const VF share = hn::Mul(left, quarter);
  return {hn::Add(v0, hn::Mul(share, u0)), hn::Add(v1, hn::Mul(share, u1)), kind == LossKind::Energy ? least : dropped,
          code};
}

template <typename T>
void load_row(const CompressJob& job, int token, int head_dim, float* out) {
  alignas(64) T row[kMaxDim];
  for (int c = 0; c < head_dim; c += 8) std::memcpy(row + c, job.dense + dense_offset(token, c), 16);
  convert(row, head_dim, out);
}

template <typename T>
float seal_keys(int head_dim, const CompressJob& job, LossKind kind) {
  const F f;
  alignas(64) float weight[kMaxDim], row[kMaxDim], kept[kMaxDim / 2], loss[kMaxDim / 4];
  alignas(64) std::int32_t code[kMaxDim / 4];
  const float* given = job.prune.rule == PruneRule::Calibrated ? job.prune.channel_weights : nullptr;
  for (int c = 0; c < head_dim; ++c) weight[c] = given != nullptr ? given[c] : 1;
  auto* words =
      job.sparse == nullptr ? nullptr : reinterpret_cast<std::uint32_t*>(job.sparse + nonzero_bytes(head_dim));
  float total = 0;
  for (int token = 0; token < kBlock; ++token) {
    load_row<T>(job, token, head_dim, row);
    for (int g = 0; g < head_dim / 4; g += static_cast<int>(hn::Lanes(f))) {
      VF x[4], w[4];
      hn::LoadInterleaved4(f, row + 4 * g, x[0], x[1], x[2], x[3]);
      hn::LoadInterleaved4(f, weight + 4 * g, w[0], w[1], w[2], w[3]);
      const Choices c = choose_largest(x, w, kind);
      hn::StoreInterleaved2(c.first, c.second, f, kept + 2 * g);
      hn::Store(c.loss, f, loss + g);
      hn::Store(c.code, I(), code + g);
    }
    float row_loss = 0;
    for (int g = 0; g < head_dim / 4; ++g) row_loss += loss[g];
    total += row_loss;
    if (job.sparse == nullptr) continue;
    alignas(64) T out[kMaxDim / 2];
    convert(kept, head_dim / 2, out);
    for (int j = 0; j < head_dim / 2; j += 8)
      std::memcpy(job.sparse + k_nonzero_offset(token, j, head_dim), out + j, 16);
    for (int g = 0; g < head_dim / 4; g += 4) {
      const MetadataPlace place = metadata_place(token, g, head_dim);
      words[place.word] |= static_cast<std::uint32_t>(code[g] | code[g + 1] << 4 | code[g + 2] << 8 | code[g + 3] << 12)
                           << place.shift;
    }
  }
  return total;
}

template <typename T>
float seal_values(int head_dim, const CompressJob& job, LossKind kind) {
  const F f;
  const bool pairs = job.prune.rule == PruneRule::Calibrated;
  const float* given = pairs ? job.prune.token_weights : nullptr;
  alignas(64) float rows[4][kMaxDim], kept[2][kMaxDim], loss[kMaxDim] = {};
  alignas(64) std::int32_t code[4][kMaxDim];
  auto* words =
      job.sparse == nullptr ? nullptr : reinterpret_cast<std::uint32_t*>(job.sparse + nonzero_bytes(head_dim));
  for (int group = 0; group < kBlock / 4; ++group) {
    VF w[4], inverse[4];
    for (int n = 0; n < 4; ++n) {
      load_row<T>(job, 4 * group + n, head_dim, rows[n]);
      w[n] = hn::Set(f, given != nullptr ? given[4 * group + n] : 1.f);
      inverse[n] = hn::Div(hn::Set(f, 1.f), w[n]);
    }
    for (int c = 0; c < head_dim; c += static_cast<int>(hn::Lanes(f))) {
      const VF x[4] = {hn::Load(f, rows[0] + c), hn::Load(f, rows[1] + c), hn::Load(f, rows[2] + c),
                       hn::Load(f, rows[3] + c)};
      const Choices choice = pairs ? choose_pair(x, w, inverse, kind) : choose_largest(x, w, kind);
      hn::Store(choice.first, f, kept[0] + c);
      hn::Store(choice.second, f, kept[1] + c);
      hn::Store(hn::Add(hn::Load(f, loss + c), choice.loss), f, loss + c);
      hn::Store(choice.code, I(), code[group % 4] + c);
    }
    if (job.sparse == nullptr) continue;
    for (int z = 0; z < 2; ++z) {
      alignas(64) T out[kMaxDim];
      convert(kept[z], head_dim, out);
      for (int c = 0; c < head_dim; c += 8) std::memcpy(job.sparse + v_nonzero_offset(2 * group + z, c), out + c, 16);
    }
    if (group % 4 != 3) continue;
    for (int c = 0; c < head_dim; ++c) {
      const MetadataPlace place = v_metadata_place(c, group - 3);
      words[place.word] |= static_cast<std::uint32_t>(code[0][c] | code[1][c] << 4 | code[2][c] << 8 | code[3][c] << 12)
                           << place.shift;
    }
  }
  float total = 0;
  for (int c = 0; c < head_dim; ++c) total += loss[c];
  return total;
}

float seal_page(Side side, DType dtype, int head_dim, const CompressJob& job, LossKind kind) {
  if (job.sparse != nullptr)
    std::memset(job.sparse + nonzero_bytes(head_dim), 0, static_cast<std::size_t>(metadata_bytes(head_dim)));
  if (side == Side::K)
    return dtype == DType::F16 ? seal_keys<Half>(head_dim, job, kind) : seal_keys<BFloat16>(head_dim, job, kind);
  return dtype == DType::F16 ? seal_values<Half>(head_dim, job, kind) : seal_values<BFloat16>(head_dim, job, kind);
}

}  // namespace rarefy::format24::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::format24 {
HWY_EXPORT(seal_page);

namespace cpu {

bool has_fast_rule(Side side, int head_dim, const PruneInput& prune) {
  if (prune.rule == PruneRule::Magnitude) return true;
  if (prune.rule != PruneRule::Calibrated) return false;
  if (side == Side::V || prune.channel_weights == nullptr) return true;
  for (int c = 0; c < head_dim; ++c)  // weight 0 masks a channel: the plain version's business
    if (!(prune.channel_weights[c] > 0) || !std::isfinite(prune.channel_weights[c])) return false;
  return true;
}

float compress_page_fast(Side side, DType dtype, int head_dim, const CompressJob& job, LossKind kind) {
  return HWY_DYNAMIC_DISPATCH(seal_page)(side, dtype, head_dim, job, kind);
}

}  // namespace cpu
}  // namespace rarefy::format24
#endif
