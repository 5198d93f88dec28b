// Decode products of quantised weights with int8 activations: integer sums per block, scaled in float32.
#include <algorithm>
#include <cstring>

#include "rarefy/ops/linear_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/linear_int8.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

// Row r of the activations, from its beginning.
struct ActivationRow {
  const std::int8_t* q;
  const float* scale;
  const float* sum;
  const std::int16_t* sum16;
};

float sum_of_lanes(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

__m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Sums of four neighbouring products, unsigned w times signed x; |w| <= 128, so that pairs fit 16 bits.
__m256i dot_quads(__m256i w, __m256i x) {
#if HWY_TARGET <= HWY_AVX3_DL
  return _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, x);
#else
  return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
#endif
}

// Sums of two neighbouring pairs of products, each pair times its 16-bit scale.
__m256i dot_scaled(__m256i w, __m256i x, __m256i scales) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), scales);
}

// 16 bytes of two values each: the low nibbles in the lower half, the high ones in the upper.
__m256i nibbles(const std::uint8_t* p) {
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i shift = _mm256_set_epi32(4, 4, 4, 4, 0, 0, 0, 0);
  return _mm256_and_si256(_mm256_srlv_epi32(twice, shift), _mm256_set1_epi8(15));
}

// 32 bits to 32 bytes of 0 or 16: the fifth bits of 32 values.
__m256i fifth_bits(const std::uint8_t* p) {
  std::int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  const __m256i byte_of_value = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit_of_value = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of_value);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of_value), bit_of_value);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// The fp16 at p, in every lane.
__m256 half_lanes(const std::uint8_t* p) {
  std::int16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

// Each type adds one block of weights times the block of R rows of activations that starts at value k to the sums of
// these rows. The loops over R are unrolled early, so that the sums stay in registers.
struct Q8_0 {
  static constexpr std::int64_t kValues = 32, kBytes = 34;
  struct Sums {
    __m256 dot;
  };

  template <int R>
  static void add(const std::uint8_t* block, const ActivationRow* x, std::int64_t k, Sums* sums) {
    const __m256i w = load_256(block + 2);
    const __m256i magnitude = _mm256_abs_epi8(w);
    const __m256 d = half_lanes(block);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256i dot = dot_quads(magnitude, _mm256_sign_epi8(load_256(x[r].q + k), w));
      const __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(x[r].scale + k / 32));
      sums[r].dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[r].dot);
    }
  }
  static float finish(const Sums& s) { return sum_of_lanes(s.dot); }
};

// Q4_0 and Q5_0: values are stored 8 or 16 too high, which is taken off with the sums of the activations.
template <bool kFive>
struct Symmetric {
  static constexpr std::int64_t kValues = 32, kBytes = kFive ? 22 : 18;
  struct Sums {
    __m256 dot;
    __m128 offset;
  };

  template <int R>
  static void add(const std::uint8_t* block, const ActivationRow* x, std::int64_t k, Sums* sums) {
    __m256i w = nibbles(block + (kFive ? 6 : 2));
    if constexpr (kFive) w = _mm256_or_si256(w, fifth_bits(block + 2));
    const __m256 d = half_lanes(block);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 dot = _mm256_cvtepi32_ps(dot_quads(w, load_256(x[r].q + k)));
      sums[r].dot = _mm256_fmadd_ps(dot, _mm256_mul_ps(d, _mm256_broadcast_ss(x[r].scale + k / 32)), sums[r].dot);
      sums[r].offset = _mm_fmadd_ps(_mm256_castps256_ps128(d), _mm_broadcast_ss(x[r].sum + k / 32), sums[r].offset);
    }
  }
  static float finish(const Sums& s) { return sum_of_lanes(s.dot) - (kFive ? 16 : 8) * _mm_cvtss_f32(s.offset); }
};

// Q4_1 and Q5_1: a scale and a minimum for each block.
template <bool kFive>
struct WithMinimum {
  static constexpr std::int64_t kValues = 32, kBytes = kFive ? 24 : 20;
  struct Sums {
    __m256 dot;
    __m128 offset;
  };

  template <int R>
  static void add(const std::uint8_t* block, const ActivationRow* x, std::int64_t k, Sums* sums) {
    __m256i w = nibbles(block + (kFive ? 8 : 4));
    if constexpr (kFive) w = _mm256_or_si256(w, fifth_bits(block + 4));
    std::int32_t halves;
    std::memcpy(&halves, block, sizeof halves);
    const __m128 scale_and_min = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
    const __m256 d = _mm256_broadcastss_ps(scale_and_min);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 dot = _mm256_cvtepi32_ps(dot_quads(w, load_256(x[r].q + k)));
      sums[r].dot = _mm256_fmadd_ps(dot, _mm256_mul_ps(d, _mm256_broadcast_ss(x[r].scale + k / 32)), sums[r].dot);
      sums[r].offset = _mm_fmadd_ps(scale_and_min, _mm_broadcast_ss(x[r].sum + k / 32), sums[r].offset);
    }
  }
  // Lane 1 of `offset` holds the minima.
  static float finish(const Sums& s) { return sum_of_lanes(s.dot) + _mm_cvtss_f32(_mm_movehdup_ps(s.offset)); }
};

// Q4_K and Q5_K: eight groups of 32 values with 6-bit scales and minima; Q5_K's fifth bits lie before the nibbles, bit
// j of byte i for value i of group j.
template <bool kFive>
struct Groups {
  static constexpr std::int64_t kValues = 256, kBytes = kFive ? 176 : 144;
  struct Sums {
    __m256 dot;
    __m256 offset;
  };

  // Scales in the first eight bytes, minima in the last eight.
  static __m128i group_scales(const std::uint8_t* packed) {
    std::uint32_t u[3];
    std::memcpy(u, packed, sizeof u);
    const std::uint32_t high_scales = (u[2] & 0x0f0f0f0fu) | (u[0] >> 6 & 0x03030303u) << 4;
    const std::uint32_t high_minima = (u[2] >> 4 & 0x0f0f0f0fu) | (u[1] >> 6 & 0x03030303u) << 4;
    return _mm_setr_epi32(static_cast<int>(u[0] & 0x3f3f3f3fu), static_cast<int>(high_scales),
                          static_cast<int>(u[1] & 0x3f3f3f3fu), static_cast<int>(high_minima));
  }

  template <int R>
  static void add(const std::uint8_t* block, const ActivationRow* x, std::int64_t k, Sums* sums) {
    const __m128i groups = group_scales(block + 4);
    const __m256i scales = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(groups));
    const __m256 minima = _mm256_mul_ps(half_lanes(block + 2),
                                        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(groups, groups))));
    __m256i total[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) total[r] = _mm256_setzero_si256();
    __m256i pick = _mm256_set1_epi16(0x0100);  // the two bytes of the group's scale
    for (int j = 0; j < 8; j += 2) {
      const __m256i both = load_256(block + (kFive ? 48 : 16) + 16 * j);
      __m256i low = _mm256_and_si256(both, _mm256_set1_epi8(15));
      __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
      if constexpr (kFive) {
        const __m256i fifth = _mm256_set1_epi8(16);
        const __m256i bits = _mm256_srl_epi16(load_256(block + 16), _mm_cvtsi32_si128(j));
        low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(bits, 4), fifth));
        high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16(bits, 3), fifth));
      }
      const __m256i low_scale = _mm256_shuffle_epi8(scales, pick);
      pick = _mm256_add_epi8(pick, _mm256_set1_epi8(2));
      const __m256i high_scale = _mm256_shuffle_epi8(scales, pick);
      pick = _mm256_add_epi8(pick, _mm256_set1_epi8(2));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const std::int8_t* q = x[r].q + k + 32 * j;
        const __m256i sum =
            _mm256_add_epi32(dot_scaled(low, load_256(q), low_scale), dot_scaled(high, load_256(q + 32), high_scale));
        total[r] = _mm256_add_epi32(total[r], sum);
      }
    }
    const __m256 d = half_lanes(block);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(x[r].scale + k / 32));
      sums[r].dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[r]), scale, sums[r].dot);
      sums[r].offset = _mm256_fmadd_ps(minima, _mm256_loadu_ps(x[r].sum + k / 32), sums[r].offset);
    }
  }
  static float finish(const Sums& s) { return sum_of_lanes(_mm256_sub_ps(s.dot, s.offset)); }
};

struct Q6_K {
  static constexpr std::int64_t kValues = 256, kBytes = 210;
  struct Sums {
    __m256 dot;
  };

  // Adds 32 values, of groups 2 v and 2 v + 1, to the totals.
  template <int R>
  static void add_32(__m256i w, __m128i scales, int v, const ActivationRow* x, std::int64_t k, __m256i* total) {
    const __m128i pick = _mm_add_epi8(_mm_set_epi64x(0x0101010101010101, 0), _mm_set1_epi8(static_cast<char>(2 * v)));
    const __m256i scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, pick));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      total[r] = _mm256_add_epi32(total[r], dot_scaled(w, load_256(x[r].q + k + 32 * v), scale));
  }

  // Values are stored 32 too high: 32 times the scaled sums of the activations is taken off.
  template <int R>
  static void add(const std::uint8_t* block, const ActivationRow* x, std::int64_t k, Sums* sums) {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
    const __m256i wide_scales = _mm256_cvtepi8_epi16(scales);
    __m256i total[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256i excess = _mm256_madd_epi16(wide_scales, load_256(x[r].sum16 + k / 16));
      total[r] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(excess, 5));
    }
    const __m256i low_mask = _mm256_set1_epi8(15), high_mask = _mm256_set1_epi8(48);
    for (int half = 0; half < 2; ++half) {
      const __m256i a = load_256(block + 64 * half), b = load_256(block + 64 * half + 32);
      const __m256i high = load_256(block + 128 + 32 * half);
      const auto join = [&](__m256i low, __m256i two_bits) {
        return _mm256_or_si256(_mm256_and_si256(low, low_mask), _mm256_and_si256(two_bits, high_mask));
      };
      const int v = 4 * half;
      add_32<R>(join(a, _mm256_slli_epi16(high, 4)), scales, v, x, k, total);
      add_32<R>(join(b, _mm256_slli_epi16(high, 2)), scales, v + 1, x, k, total);
      add_32<R>(join(_mm256_srli_epi16(a, 4), high), scales, v + 2, x, k, total);
      add_32<R>(join(_mm256_srli_epi16(b, 4), _mm256_srli_epi16(high, 2)), scales, v + 3, x, k, total);
    }
    const __m256 d = half_lanes(block + 208);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(x[r].scale + k / 32));
      sums[r].dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[r]), scale, sums[r].dot);
    }
  }
  static float finish(const Sums& s) { return sum_of_lanes(s.dot); }
};

// One row of weights times R / 2 rows of activations, two terms each. Every product has its own sums, added to in order
// of the blocks, so that R does not change it. One row of weights at a time keeps the reads in order: with four at once
// the prefetcher lost track, and Q8_0 fell from 32 to 12 GB/s.
template <class Type, int R>
void row_products(const std::uint8_t* w, std::int64_t in, const ActivationRow* x, std::int64_t row, std::int64_t o,
                  const ProductOutput& output) {
  typename Type::Sums sums[R] = {};
  for (std::int64_t k = 0; k < in; k += Type::kValues, w += Type::kBytes) Type::template add<R>(w, x, k, sums);
#pragma GCC unroll 2
  for (int r = 0; r < R; r += 2) output.put(row + r / 2, o, Type::finish(sums[r]) + Type::finish(sums[r + 1]));
}

template <class Type>
void products_of_type(const LinearWeight& weight, const QuantizedRows& x, std::int64_t rows, std::int64_t begin,
                      std::int64_t end, const ProductOutput& output) {
  const std::int64_t in = weight.in;
  ActivationRow row[2 * kMaxDecodeRows];  // two terms each
  for (std::int64_t i = 0; i < 2 * rows; ++i)
    row[i] = {x.q + i * in, x.scale + i * (in / 32), x.sum + i * (in / 32), x.sum16 + i * (in / 16)};
  for (std::int64_t o = begin; o < end; ++o) {
    const auto* w = reinterpret_cast<const std::uint8_t*>(weight.data) + o * (in / Type::kValues * Type::kBytes);
    std::int64_t i = 0;
    for (; i + 2 <= rows; i += 2) row_products<Type, 4>(w, in, row + 2 * i, i, o, output);
    for (; i < rows; ++i) row_products<Type, 2>(w, in, row + 2 * i, i, o, output);
  }
}

using Products = void (*)(const LinearWeight&, const QuantizedRows&, std::int64_t, std::int64_t, std::int64_t,
                          const ProductOutput&);

Products find_products(DType type) {
  switch (type) {
    case DType::Q8_0:
      return products_of_type<Q8_0>;
    case DType::Q4_0:
      return products_of_type<Symmetric<false>>;
    case DType::Q4_1:
      return products_of_type<WithMinimum<false>>;
    case DType::Q5_0:
      return products_of_type<Symmetric<true>>;
    case DType::Q5_1:
      return products_of_type<WithMinimum<true>>;
    case DType::Q5_K:
      return products_of_type<Groups<true>>;
    case DType::Q4_K:
      return products_of_type<Groups<false>>;
    case DType::Q6_K:
      return products_of_type<Q6_K>;
    default:
      return nullptr;
  }
}

#else

using Products = void (*)(const LinearWeight&, const QuantizedRows&, std::int64_t, std::int64_t, std::int64_t,
                          const ProductOutput&);

Products find_products(DType) { return nullptr; }

#endif

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(find_products);

std::int64_t integer_group(DType type) {
  if (HWY_DYNAMIC_DISPATCH(find_products)(type) == nullptr) return 0;
  return std::max<std::int64_t>(32, block_size(type).elements);
}

void integer_products(const LinearWeight& weight, const QuantizedRows& x, std::int64_t rows, std::int64_t begin,
                      std::int64_t end, const ProductOutput& output) {
  HWY_DYNAMIC_DISPATCH(find_products)(weight.dtype)(weight, x, rows, begin, end, output);
}

}  // namespace rarefy::ops::cpu
#endif
