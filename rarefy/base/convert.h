// Conversion of rows between float32, fp16 and bf16, vectorised.
#pragma once
#include <cstdint>

#include "rarefy/base/dtype.h"

namespace rarefy {

/// out[i] = in[i], rounded to nearest even; bit-equal to from_float and to_float. [count] each, host, any alignment; no
/// alias.
void convert(const float* in, std::int64_t count, Half* out);
void convert(const float* in, std::int64_t count, BFloat16* out);
void convert(const Half* in, std::int64_t count, float* out);
void convert(const BFloat16* in, std::int64_t count, float* out);

}  // namespace rarefy
