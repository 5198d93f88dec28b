// Rows of the embedding table.
#pragma once
#include <cstdint>

#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"
#include "rarefy/ops/linear.h"

namespace rarefy::ops {

/// y[t] = scale * table[tokens[t]]
///   tokens [count] int32;  table [vocab, hidden] any DType;  y [count, hidden] float32
/// On CUDA tokens are on the device, table F32, F16 or BF16, and a token outside [0, vocab) gives a row of NaN. Throws
/// BadInput naming the index if a token is outside [0, vocab) (CPU).
void embedding(const std::int32_t* tokens, std::int64_t count, const LinearWeight& table, float scale,
               const TensorView& y, Stream& stream);

}  // namespace rarefy::ops
