// The CUDA versions of the operations, called by their dispatchers with checked arguments.
#pragma once
#include <cstdint>

#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"

namespace rarefy::ops::cuda {

void scale(const TensorView& x, float factor, Stream& stream);

}  // namespace rarefy::ops::cuda
