// Conversion of rows between float32, fp16 and bf16: F16C where the CPU has it, else integer arithmetic that the
// compiler vectorises.
#include "rarefy/base/convert.h"

#include <immintrin.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/base/convert.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::HWY_NAMESPACE {

void to_half(const float* in, std::int64_t count, Half* out) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; ++i) out[i] = from_float<Half>(in[i]);
}

void from_half(const Half* in, std::int64_t count, float* out) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
#endif
  for (; i < count; ++i) out[i] = to_float(in[i]);
}

void to_bfloat16(const float* in, std::int64_t count, BFloat16* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = from_float<BFloat16>(in[i]);
}

void from_bfloat16(const BFloat16* in, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_float(in[i]);
}

}  // namespace rarefy::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy {
HWY_EXPORT(to_half);
HWY_EXPORT(from_half);
HWY_EXPORT(to_bfloat16);
HWY_EXPORT(from_bfloat16);

void convert(const float* in, std::int64_t count, Half* out) { HWY_DYNAMIC_DISPATCH(to_half)(in, count, out); }
void convert(const float* in, std::int64_t count, BFloat16* out) { HWY_DYNAMIC_DISPATCH(to_bfloat16)(in, count, out); }
void convert(const Half* in, std::int64_t count, float* out) { HWY_DYNAMIC_DISPATCH(from_half)(in, count, out); }
void convert(const BFloat16* in, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(from_bfloat16)(in, count, out);
}

}  // namespace rarefy
#endif
