// Root-mean-square normalisation.
#pragma once
#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"

namespace rarefy::ops {

/// y[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight   (Zhang and Sennrich 2019)
///   x, y    [rows, dim] float32, on CUDA F16 and BF16 too, each its own; may be the same;   weight [dim] float32
/// Zero rows do nothing. Throws BadInput (shapes).
void rms_norm(const TensorView& x, const TensorView& weight, float eps, const TensorView& y, Stream& stream);

}  // namespace rarefy::ops
