// One block of decode: scores from a dense or 2:4 K page, weighted values from a dense or 2:4 V page.
#if defined(RAREFY_ATTENTION_DECODE_PAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAREFY_ATTENTION_DECODE_PAGES_INL_H_
#undef RAREFY_ATTENTION_DECODE_PAGES_INL_H_
#else
#define RAREFY_ATTENTION_DECODE_PAGES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "hwy/highway.h"
#include "rarefy/attention/params.h"
#include "rarefy/attention/simd-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace rarefy::attention::HWY_NAMESPACE {

/// What the queries of a group share of a sparse K and V page: lanes run along tokens for K (its rows are transposed,
/// so that a lookup of q by lane replaces every sum over lanes) and along channels for V.
template <int kHeadDim>
struct SparsePage {
  alignas(64) std::uint16_t k_nonzeros[kHeadDim / 2][kBlock];
  alignas(64) std::uint32_t k_metadata[kHeadDim / 16][kBlock];  // four groups in the low half
  alignas(64) std::uint32_t v_metadata[kBlock / 16][kHeadDim];
};

/// A page that is read soon. Pages lie at random places, where the hardware's prefetcher starts anew on each: plain
/// reads reach 9 of 24 GB/s (one Zen 4 core). Each kernel asks for the next block's page while it computes this one;
/// into L2, because requests from L1 are too few in flight (T0: 10 GB/s, T1: 19 GB/s).
struct Ahead {
  const std::byte* page = nullptr;  // null: nothing
  int bytes = 0;

  /// Asks for part `part` of `parts`.
  HWY_INLINE void fetch(int part, int parts) const {
    if (page == nullptr) return;
    for (int line = part * (bytes / 64) / parts; line < (part + 1) * (bytes / 64) / parts; ++line)
      __builtin_prefetch(page + line * 64, 0, 2);
  }
};

template <int kHeadDim>
void prepare_keys(const std::byte* page, SparsePage<kHeadDim>& out) {
  spread_metadata(page + format24::nonzero_bytes(kHeadDim), kBlock / 16, kHeadDim / 64, out.k_metadata[0], kBlock);
  for (int token = 0; token < kBlock; token += 8) {
    for (int j = 0; j < kHeadDim / 2; j += 8) {
      const std::byte* rows[8];
      for (int i = 0; i < 8; ++i) rows[i] = page + format24::k_nonzero_offset(token + i, j, kHeadDim);
      transpose8x8(rows, out.k_nonzeros[j] + token, kBlock);
    }
  }
}

template <int kHeadDim>
void prepare_values(const std::byte* page, SparsePage<kHeadDim>& out) {
  spread_metadata(page + format24::nonzero_bytes(kHeadDim), kHeadDim / 16, 1, out.v_metadata[0], kHeadDim);
}

/// scores[g][t] = q[g] . k[t], all 64 tokens.
template <typename T16, int kHeadDim, int kQueries>
HWY_INLINE void dense_scores(const float (*q)[kHeadDim], const std::byte* page, float (*scores)[kBlock],
                             const Ahead& ahead) {
  const F32 d;
  // Tokens at once: their accumulators, one key and the queries must fit into the registers.
  constexpr int kTokens = kManyRegisters || kQueries <= 3 ? 4 : 2;
  for (int t8 = 0; t8 < kBlock; t8 += 8) {
    ahead.fetch(t8 / 8, kBlock / 8);
    const std::byte* rows = page + t8 * 128;
#pragma GCC unroll 8
    for (int t = 0; t < 8; t += kTokens) {
      VF acc[kTokens][kQueries];
#pragma GCC unroll 4
      for (int i = 0; i < kTokens; ++i)
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; ++g) acc[i][g] = hn::Zero(d);
#pragma GCC unroll 32
      for (int c = 0; c < kHeadDim; c += kLanes) {
        VF query[kQueries];
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; ++g) query[g] = hn::Load(d, q[g] + c);
#pragma GCC unroll 4
        for (int i = 0; i < kTokens; ++i) {
          const VF key = load_row<T16>(rows + c / 64 * (kBlock * 128), t + i, c % 64);
#pragma GCC unroll 4
          for (int g = 0; g < kQueries; ++g) acc[i][g] = hn::MulAdd(key, query[g], acc[i][g]);
        }
      }
      if constexpr (kTokens == 4) {
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; ++g) {
          float* to = scores[g] + t8 + t;
          sum4(acc[0][g], acc[1][g], acc[2][g], acc[3][g], to, to + 2);
        }
      } else {
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; g += 2)
          sum4(acc[0][g], acc[1][g], acc[0][g + 1], acc[1][g + 1], scores[g] + t8 + t, scores[g + 1] + t8 + t);
      }
    }
  }
}

/// The same from a 2:4 page: each non-zero of a lane's token picks its q among the four of its group.
template <typename T16, int kHeadDim, int kQueries>
HWY_INLINE void sparse_scores(const float (*q)[kHeadDim], const SparsePage<kHeadDim>& page, float (*scores)[kBlock],
                              const Ahead& ahead) {
  const F32 d;
  const U32 du;
  constexpr int kVectors = kLanes == 16 ? 4 : 2;  // of tokens at once
  for (int t = 0; t < kBlock; t += kVectors * kLanes) {
    VF acc[kVectors][kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < kQueries; ++g) acc[i][g] = hn::Zero(d);
    for (int word = 0; word < kHeadDim / 16; ++word) {
      ahead.fetch(t / (kVectors * kLanes) * (kHeadDim / 16) + word, kBlock / (kVectors * kLanes) * (kHeadDim / 16));
      VU index[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) index[i] = hn::Load(du, page.k_metadata[word] + t + i * kLanes);
#pragma GCC unroll 4
      for (int group = 0; group < 4; ++group) {
        VF table[kQueries];
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; ++g) table[g] = hn::LoadDup128(d, q[g] + word * 16 + group * 4);
#pragma GCC unroll 2
        for (int kept = 0; kept < 2; ++kept) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) {
            const VF key = load16<T16>(
                reinterpret_cast<const std::byte*>(page.k_nonzeros[word * 8 + group * 2 + kept] + t + i * kLanes));
#pragma GCC unroll 4
            for (int g = 0; g < kQueries; ++g) acc[i][g] = hn::MulAdd(choose4(table[g], index[i]), key, acc[i][g]);
            index[i] = hn::ShiftRight<2>(index[i]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < kQueries; ++g) hn::Store(acc[i][g], d, scores[g] + t + i * kLanes);
  }
}

/// Vectors of channels at once: accumulators of kQueries queries in 16 or 32 registers.
template <int kHeadDim, int kQueries>
inline constexpr int kChannelVectors = std::min(kHeadDim / kLanes,
                                                kManyRegisters ? 4 : (kQueries == 1 ? 8 : (kQueries <= 3 ? 4 : 2)));

/// o[g] = factor[g] o[g] + sum over t < tokens of p[g][t] v[t].
template <typename T16, int kHeadDim, int kQueries>
HWY_INLINE void dense_values(const float (*p)[kBlock], const std::byte* page, int tokens, const float* factor,
                             float (*o)[kHeadDim], const Ahead& ahead) {
  const F32 d;
  constexpr int kVectors = kChannelVectors<kHeadDim, kQueries>;
#pragma GCC unroll 16
  for (int c0 = 0; c0 < kHeadDim; c0 += kVectors * kLanes) {
    VF acc[kVectors][kQueries];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < kQueries; ++g)
        acc[i][g] = hn::Mul(hn::Set(d, factor[g]), hn::Load(d, o[g] + c0 + i * kLanes));
    const std::byte* panel = page + c0 / 64 * (kBlock * 128);
    const auto add_row = [&](const std::byte* rows, int row, int token) HWY_ATTR {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        const int c = c0 % 64 + i * kLanes;
        const VF value = load_row<T16>(rows + c / 64 * (kBlock * 128), row, c % 64);
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; ++g) acc[i][g] = hn::MulAdd(hn::Set(d, p[g][token]), value, acc[i][g]);
      }
    };
    const int whole = tokens / 8 * 8;
    for (int t8 = 0; t8 < whole; t8 += 8) {
      ahead.fetch(c0 / (kVectors * kLanes) * (kBlock / 8) + t8 / 8, kHeadDim / (kVectors * kLanes) * (kBlock / 8));
#pragma GCC unroll 8
      for (int t = 0; t < 8; ++t) add_row(panel + t8 * 128, t, t8 + t);
    }
    // Never a multiplication with what lies past the end: 0 * NaN would be NaN.
    for (int t = whole; t < tokens; ++t) add_row(panel + whole * 128, t - whole, t);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < kQueries; ++g) hn::Store(acc[i][g], d, o[g] + c0 + i * kLanes);
  }
}

/// The same from a 2:4 page: each non-zero of a lane's channel picks its p among the four tokens of its group. kPartial
/// drops the non-zeros of tokens whose p is 0, which may be NaN past the end.
template <typename T16, int kHeadDim, int kQueries, bool kPartial>
HWY_INLINE void sparse_values(const float (*p)[kBlock], const std::byte* page, const SparsePage<kHeadDim>& prepared,
                              const float* factor, float (*o)[kHeadDim], const Ahead& ahead) {
  const F32 d;
  const U32 du;
  constexpr int kVectors = std::min(kHeadDim / kLanes, kManyRegisters ? 4 : 2);
#pragma GCC unroll 16
  for (int c0 = 0; c0 < kHeadDim; c0 += kVectors * kLanes) {
    VF acc[kVectors][kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < kQueries; ++g)
        acc[i][g] = hn::Mul(hn::Set(d, factor[g]), hn::Load(d, o[g] + c0 + i * kLanes));
    const std::byte* panel = page + c0 / 64 * (kBlock / 2 * 128);
    for (int word = 0; word < kBlock / 16; ++word) {
      ahead.fetch(c0 / (kVectors * kLanes) * (kBlock / 16) + word, kHeadDim / (kVectors * kLanes) * (kBlock / 16));
      VU index[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) index[i] = hn::Load(du, prepared.v_metadata[word] + c0 + i * kLanes);
      const std::byte* rows = panel + word * 8 * 128;
#pragma GCC unroll 4
      for (int group = 0; group < 4; ++group) {
        VF table[kQueries];
#pragma GCC unroll 4
        for (int g = 0; g < kQueries; ++g) table[g] = hn::LoadDup128(d, p[g] + word * 16 + group * 4);
#pragma GCC unroll 2
        for (int kept = 0; kept < 2; ++kept) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) {
            const VF value = load_row<T16>(rows, group * 2 + kept, c0 % 64 + i * kLanes);
#pragma GCC unroll 4
            for (int g = 0; g < kQueries; ++g) {
              const VF weight = choose4(table[g], index[i]);
              const VF safe = kPartial ? hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), value) : value;
              acc[i][g] = hn::MulAdd(weight, safe, acc[i][g]);
            }
            index[i] = hn::ShiftRight<2>(index[i]);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
#pragma GCC unroll 4
      for (int g = 0; g < kQueries; ++g) hn::Store(acc[i][g], d, o[g] + c0 + i * kLanes);
  }
}

}  // namespace rarefy::attention::HWY_NAMESPACE
#endif  // HWY_SCALAR
HWY_AFTER_NAMESPACE();
#endif  // include guard
