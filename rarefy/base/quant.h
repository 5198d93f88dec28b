// Dequantisation of GGUF's block formats: one row of blocks to floats. The oracle of every fast product.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rarefy/base/dtype.h"

namespace rarefy {

/// out[i] = value i of `count` values stored as `type` at `src` (GGML's block definitions; F32, F16 and BF16 too).
///   src  row_bytes(type, count) bytes, host, any alignment;   out  [count] float32, host
/// `count` must be a multiple of the type's block; 0 does nothing. Throws BadInput otherwise.
void dequantize(DType type, const std::byte* src, std::int64_t count, float* out);

}  // namespace rarefy
