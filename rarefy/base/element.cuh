// 16-bit element types in device code: conversions to and from float32, by the pages' dtype.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rarefy/base/check.h"
#include "rarefy/base/dtype.h"

namespace rarefy {

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(__half x) { return __half2float(x); }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ inline T from_f32(float x);
template <>
__device__ inline float from_f32<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_f32<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Calls body with a value of the element type: `with_element(dtype, [&](auto zero) { using T = decltype(zero); ...
/// })`. F32, F16, BF16; throws Unsupported for the rest.
template <typename Body>
void with_element(DType dtype, Body body) {
  switch (dtype) {
    case DType::F32:
      return body(float{});
    case DType::F16:
      return body(__half{});
    case DType::BF16:
      return body(__nv_bfloat16{});
    default:
      fail(ErrorCode::Unsupported, "E_DTYPE", "{} on CUDA: F32, F16 and BF16 are supported", to_string(dtype));
  }
}

}  // namespace rarefy
