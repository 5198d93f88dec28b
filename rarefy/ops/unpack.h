// Vectorised dequantisation of weight rows for the products.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rarefy/base/dtype.h"

namespace rarefy::ops {

/// As dequantize (base/quant.h), bit for bit, and fast for the types that models mostly hold: F32, F16, BF16, Q8_0,
/// Q4_0, Q4_1, Q4_K, Q6_K. The others go to dequantize.
///   src  row_bytes(type, count) bytes, any alignment;   out  [count] float32
void unpack(DType type, const std::byte* src, std::int64_t count, float* out);

}  // namespace rarefy::ops
