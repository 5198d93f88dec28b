// Tiles of prefill in float32: unpacking of pages into panels, and the product of a strip of rows with panels.
#if defined(RAREFY_ATTENTION_PREFILL_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAREFY_ATTENTION_PREFILL_TILES_INL_H_
#undef RAREFY_ATTENTION_PREFILL_TILES_INL_H_
#else
#define RAREFY_ATTENTION_PREFILL_TILES_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "rarefy/attention/params.h"
#include "rarefy/attention/simd-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace rarefy::attention::HWY_NAMESPACE {

/// The register tile of the product: kTileRows rows by kPanel columns. A panel is kPanel columns of the right-hand
/// side, one row of the reduction after the other.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = kManyRegisters ? 4 : 2;
inline constexpr int kPanel = kTileVectors * kLanes;
static_assert(64 % kPanel == 0);

/// c[kTileRows, kPanel] = (kAdd ? c : 0) + a[kTileRows, depth] b[depth, kPanel]; b is one panel, 64-byte aligned.
template <bool kAdd>
HWY_INLINE void multiply_tile(int depth, const float* a, int a_stride, const float* b, float* c, int c_stride) {
  const F32 d;
  VF acc[kTileRows][kTileVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) acc[r][v] = kAdd ? hn::Load(d, c + r * c_stride + v * kLanes) : hn::Zero(d);
#pragma GCC unroll 4
  for (int k = 0; k < depth; ++k, b += kPanel) {
    VF right[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) right[v] = hn::Load(d, b + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const VF left = hn::Set(d, a[r * a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) acc[r][v] = hn::MulAdd(left, right[v], acc[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) hn::Store(acc[r][v], d, c + r * c_stride + v * kLanes);
}

/// Puts back the zeros of a group of four: out[i] is the kept value whose index is i, else 0. The low four bits of a
/// lane of `index` are its group's metadata.
HWY_INLINE void expand4(VF first, VF second, VU index, VF out[4]) {
  const U32 du;
  const VU three = hn::Set(du, 3);
  const VU i0 = hn::And(index, three), i1 = hn::And(hn::ShiftRight<2>(index), three);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const VU at = hn::Set(du, i);
    const VF from_first = hn::IfThenElseZero(hn::RebindMask(F32(), hn::Eq(i0, at)), first);
    out[i] = hn::IfThenElse(hn::RebindMask(F32(), hn::Eq(i1, at)), second, from_first);
  }
}

/// Where column `column` (a multiple of kLanes) of row `row` lies in panels of `depth` rows.
constexpr int panel_offset(int row, int column, int depth) {
  return column / kPanel * kPanel * depth + row * kPanel + column % kPanel;
}

/// Writes a K page as panels of tokens: 64 columns, head_dim rows.
template <typename T16, int kHeadDim>
void unpack_keys(Page page, float* out) {
  const F32 d;
  constexpr int kWidth = 64;  // channels, or non-zeros, that one pass transposes
  alignas(64) std::uint16_t columns[kWidth][kBlock];
  alignas(64) std::uint32_t metadata[kHeadDim / 16][kBlock];
  if (page.sparse)
    spread_metadata(page.data + format24::nonzero_bytes(kHeadDim), kBlock / 16, kHeadDim / 64, metadata[0], kBlock);
  const int total = page.sparse ? kHeadDim / 2 : kHeadDim;
  for (int first = 0; first < total; first += kWidth) {
    const int width = std::min(kWidth, total - first);
    for (int token = 0; token < kBlock; token += 8) {
      for (int j = 0; j < width; j += 8) {
        const std::byte* rows[8];
        for (int i = 0; i < 8; ++i)
          rows[i] = page.data + (page.sparse ? format24::k_nonzero_offset(token + i, first + j, kHeadDim)
                                             : format24::dense_offset(token + i, first + j));
        transpose8x8(rows, columns[j] + token, kBlock);
      }
    }
    const auto column = [&](int j, int token)
                            HWY_ATTR { return load16<T16>(reinterpret_cast<const std::byte*>(columns[j] + token)); };
    for (int token = 0; token < kBlock; token += kLanes) {
      if (!page.sparse) {
        for (int j = 0; j < width; ++j) hn::Store(column(j, token), d, out + panel_offset(first + j, token, kHeadDim));
        continue;
      }
      for (int j = 0; j < width; j += 2) {
        const int group = (first + j) / 2;
        const VU words = hn::Load(U32(), metadata[group / 4] + token);
        VF four[4];
        expand4(column(j, token), column(j + 1, token), hn::ShiftRightSame(words, group % 4 * 4), four);
        for (int i = 0; i < 4; ++i) hn::Store(four[i], d, out + panel_offset(group * 4 + i, token, kHeadDim));
      }
    }
  }
}

/// Writes the first `tokens` tokens of a V page as panels of channels: head_dim columns, `depth` rows in all, of which
/// this block's are first_row .. first_row + 63. Tokens past the end, which may be NaN, become 0.
template <typename T16, int kHeadDim>
void unpack_values(Page page, int tokens, int first_row, int depth, float* out) {
  const F32 d;
  alignas(64) std::uint32_t metadata[kBlock / 16][kHeadDim];
  if (page.sparse)
    spread_metadata(page.data + format24::nonzero_bytes(kHeadDim), kHeadDim / 16, 1, metadata[0], kHeadDim);
  const auto store = [&](VF value, int token, int c) HWY_ATTR {
    hn::Store(token < tokens ? value : hn::Zero(d), d, out + panel_offset(first_row + token, c, depth));
  };
  for (int c = 0; c < kHeadDim; c += kLanes) {
    const std::byte* panel = page.data + c / 64 * (page.sparse ? kBlock / 2 * 128 : kBlock * 128);
    const auto load = [&](int row) HWY_ATTR { return load_row<T16>(panel + row / 8 * 1024, row % 8, c % 64); };
    if (!page.sparse) {
      for (int t = 0; t < kBlock; ++t) store(load(t), t, c);
      continue;
    }
    for (int group = 0; group < kBlock / 4; ++group) {
      const VU words = hn::Load(U32(), metadata[group / 4] + c);
      VF four[4];
      expand4(load(group * 2), load(group * 2 + 1), hn::ShiftRightSame(words, group % 4 * 4), four);
      for (int i = 0; i < 4; ++i) store(four[i], group * 4 + i, c);
    }
  }
}

}  // namespace rarefy::attention::HWY_NAMESPACE
#endif  // HWY_SCALAR
HWY_AFTER_NAMESPACE();
#endif  // include guard
