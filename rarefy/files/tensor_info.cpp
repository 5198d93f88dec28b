// Checks on the values of a tensor.
#include "rarefy/files/tensor_info.h"

#include <cmath>

#include "rarefy/base/quant.h"

namespace rarefy::files {

std::int64_t count_nonfinite(const TensorInfo& tensor) {
  if (tensor.bytes == 0 || tensor.dtype == DType::I32) return 0;
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back(), row_size = row_bytes(tensor.dtype, row);
  std::vector<float> values(static_cast<std::size_t>(row));
  std::int64_t count = 0;
  for (std::int64_t at = 0; at < tensor.bytes; at += row_size) {
    dequantize(tensor.dtype, tensor.data + at, row, values.data());
    for (const float value : values) count += !std::isfinite(value);
  }
  return count;
}

}  // namespace rarefy::files
