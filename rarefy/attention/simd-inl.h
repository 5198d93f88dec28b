// Vector helpers of the fast CPU kernels: loads of 16-bit rows, metadata to lanes, choice among four, exp2, sums.
#if defined(RAREFY_ATTENTION_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAREFY_ATTENTION_SIMD_INL_H_
#undef RAREFY_ATTENTION_SIMD_INL_H_
#else
#define RAREFY_ATTENTION_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "rarefy/format24/layout.h"

// Where a vector of 16 floats is one zmm register. In Highway, better targets have lower values.
#undef RAREFY_AVX512
#undef RAREFY_AVX2
#define RAREFY_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
#define RAREFY_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace rarefy::attention::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
// AVX-512 has 32 vector registers, what comes before it 16: the register tiles differ.
inline constexpr bool kManyRegisters = kLanes == 16;

/// kLanes consecutive 16-bit values as float32.
template <typename T16>
HWY_INLINE VF load16(const std::byte* at) {
  const hn::Rebind<T16, F32> d16;
  return hn::PromoteTo(F32(), hn::LoadU(d16, reinterpret_cast<const T16*>(at)));
}

/// kLanes values of row `row` (0 .. 7) of a panel of 128 B rows, from channel `channel` of the panel on. Vectors wider
/// than the swizzle's 16-byte chunks take two.
template <typename T16>
HWY_INLINE VF load_row(const std::byte* rows, int row, int channel) {
  const std::byte* low = rows + format24::swizzle128(row, channel * 2);
#if RAREFY_AVX512
  const hn::Rebind<T16, F32> d16;
  const hn::Half<decltype(d16)> half;
  const std::byte* high = rows + format24::swizzle128(row, channel * 2 + 16);
  return hn::PromoteTo(F32(), hn::Combine(d16, hn::LoadU(half, reinterpret_cast<const T16*>(high)),
                                          hn::LoadU(half, reinterpret_cast<const T16*>(low))));
#else
  static_assert(kLanes <= 8);
  return load16<T16>(low);
#endif
}

/// lane i: table[4 (i / 4) + (index[i] mod 4)]; `table` repeats the same four values.
HWY_INLINE VF choose4(VF table, VU index) {
#if RAREFY_AVX2
  return VF{_mm256_permutevar_ps(table.raw, index.raw)};
#elif RAREFY_AVX512
  return VF{_mm512_permutevar_ps(table.raw, hn::BitCast(hn::RebindToSigned<F32>(), index).raw)};
#else
  const U32 du;
  const VU byte = hn::Add(hn::Mul(hn::And(index, hn::Set(du, 3)), hn::Set(du, 0x04040404)), hn::Set(du, 0x03020100));
  return hn::BitCast(F32(), hn::TableLookupBytes(hn::BitCast(du, table), byte));
#endif
}

/// Metadata words of `tiles` tiles of 16 rows and `steps` steps of 64 values, one lane per row:
/// out[(step * 4 + j) * stride + row] holds, in its low half, the row's groups 16 step + 4 j .. + 3.
HWY_INLINE void spread_metadata(const std::byte* metadata, int tiles, int steps, std::uint32_t* out, int stride) {
  const hn::CappedTag<std::uint32_t, 8> d;
  constexpr int kRows = static_cast<int>(hn::MaxLanes(d));
  const auto* words = reinterpret_cast<const std::uint32_t*>(metadata);
  for (int tile = 0; tile < tiles; ++tile) {
    for (int step = 0; step < steps; ++step, words += 32) {
      for (int q = 0; q < 8; q += kRows) {
        hn::Vec<decltype(d)> w0, w1, w2, w3;
        hn::LoadInterleaved4(d, words + q * 4, w0, w1, w2, w3);
        std::uint32_t* low = out + step * 4 * stride + tile * 16 + q;
        hn::StoreU(w0, d, low);
        hn::StoreU(w1, d, low + stride);
        hn::StoreU(w2, d, low + 2 * stride);
        hn::StoreU(w3, d, low + 3 * stride);
        hn::StoreU(hn::ShiftRight<16>(w0), d, low + 8);
        hn::StoreU(hn::ShiftRight<16>(w1), d, low + stride + 8);
        hn::StoreU(hn::ShiftRight<16>(w2), d, low + 2 * stride + 8);
        hn::StoreU(hn::ShiftRight<16>(w3), d, low + 3 * stride + 8);
      }
    }
  }
}

/// Transposes 8 rows of 8 16-bit values: row r at rows[r], column c to out + c * stride.
HWY_INLINE void transpose8x8(const std::byte* const rows[8], std::uint16_t* out, int stride) {
  const hn::Full128<std::uint16_t> d16;
  const hn::Full128<std::uint32_t> d32;
  const hn::Full128<std::uint64_t> d64;
  hn::Vec<decltype(d16)> r[8];
  for (int i = 0; i < 8; ++i) r[i] = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(rows[i]));
  hn::Vec<decltype(d32)> pair[8];  // [2 i] columns 0-3 and [2 i + 1] columns 4-7 of rows 2 i, 2 i + 1
  for (int i = 0; i < 4; ++i) {
    pair[2 * i] = hn::BitCast(d32, hn::InterleaveLower(d16, r[2 * i], r[2 * i + 1]));
    pair[2 * i + 1] = hn::BitCast(d32, hn::InterleaveUpper(d16, r[2 * i], r[2 * i + 1]));
  }
  for (int half = 0; half < 2; ++half) {
    const auto a0 = hn::BitCast(d64, hn::InterleaveLower(d32, pair[half], pair[2 + half]));
    const auto a1 = hn::BitCast(d64, hn::InterleaveUpper(d32, pair[half], pair[2 + half]));
    const auto b0 = hn::BitCast(d64, hn::InterleaveLower(d32, pair[4 + half], pair[6 + half]));
    const auto b1 = hn::BitCast(d64, hn::InterleaveUpper(d32, pair[4 + half], pair[6 + half]));
    std::uint16_t* to = out + half * 4 * stride;
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d64, a0, b0)), d16, to);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d64, a0, b0)), d16, to + stride);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d64, a1, b1)), d16, to + 2 * stride);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d64, a1, b1)), d16, to + 3 * stride);
  }
}

/// 2^x for x <= 0, relative error 3e-7; 0 below 2^-126, NaN stays NaN. A polynomial of degree 6 that interpolates
/// (2^f - 1) / f in Chebyshev's points of [-1/2, 1/2] (5e-9), so that 2^0 is exactly 1.
HWY_INLINE VF exp2(VF x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VF round = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it leaves round(x) in the low mantissa bits
  const VF shifted = hn::Add(x, round);
  const VF f = hn::Sub(x, hn::Sub(shifted, round));
  VF p = hn::Set(d, 0.00015453162941960995f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013390863364651736f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618082557286533f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055503571142191135f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022650760568082f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471880262287f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const VF scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), scaled);
}

#if RAREFY_AVX2 || RAREFY_AVX512
HWY_INLINE __m256 lower_sum(VF v) {
#if RAREFY_AVX512
  return _mm256_add_ps(_mm512_castps512_ps256(v.raw), _mm512_extractf32x8_ps(v.raw, 1));
#else
  return v.raw;
#endif
}
#endif

/// The sums over the lanes of four vectors: a, b to ab[0 .. 1] and c, e to ce[0 .. 1].
HWY_INLINE void sum4(VF a, VF b, VF c, VF e, float* ab, float* ce) {
#if RAREFY_AVX2 || RAREFY_AVX512
  const __m256 sum =
      _mm256_hadd_ps(_mm256_hadd_ps(lower_sum(a), lower_sum(b)), _mm256_hadd_ps(lower_sum(c), lower_sum(e)));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  _mm_storel_pi(reinterpret_cast<__m64*>(ab), sums);
  _mm_storeh_pi(reinterpret_cast<__m64*>(ce), sums);
#else
  const F32 d;
  ab[0] = hn::GetLane(hn::SumOfLanes(d, a));
  ab[1] = hn::GetLane(hn::SumOfLanes(d, b));
  ce[0] = hn::GetLane(hn::SumOfLanes(d, c));
  ce[1] = hn::GetLane(hn::SumOfLanes(d, e));
#endif
}

}  // namespace rarefy::attention::HWY_NAMESPACE
#endif  // HWY_SCALAR
HWY_AFTER_NAMESPACE();
#endif  // include guard
