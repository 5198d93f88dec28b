// Multiplication by a constant, in place.
#pragma once
#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"

namespace rarefy::ops {

/// x *= factor   (MiniCPM's muP scales of residuals and logits; a factor of 1 costs nothing)
///   x  any shape, float32; on CUDA F16 and BF16 too. Zero elements do nothing.
void scale(const TensorView& x, float factor, Stream& stream);

}  // namespace rarefy::ops
