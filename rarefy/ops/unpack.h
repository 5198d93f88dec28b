// Vectorised dequantisation of weight rows for the products.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rarefy/base/dtype.h"

namespace rarefy::ops {

/// As dequantize (base/quant.h), bit for bit, but vectorised, and without checks: `type` is any but I32, and `count` a
/// multiple of its block.
///   src  row_bytes(type, count) bytes, any alignment;   out  [count] float32
void unpack(DType type, const std::byte* src, std::int64_t count, float* out);

}  // namespace rarefy::ops
