// The gate of a SwiGLU feed-forward layer.
#pragma once
#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"

namespace rarefy::ops {

/// y = silu(gate) * up, silu(x) = x / (1 + exp(-x))   (Shazeer 2020)
///   gate, up, y  [rows, dim] float32, on CUDA F16 and BF16 too, all the same; y may be gate or up
void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& y, Stream& stream);

}  // namespace rarefy::ops
