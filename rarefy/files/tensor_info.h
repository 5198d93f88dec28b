// A named tensor inside a mapped file: what the readers of GGUF and safetensors both give.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rarefy/base/dtype.h"

namespace rarefy::files {

/// `data` points into the mapped file, which must outlive it, at any alignment. `shape` is in row-major order, slowest
/// dimension first (GGUF's order reversed), so a linear weight is [out, in].
struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// Values of a tensor that are NaN or infinite.
std::int64_t count_nonfinite(const TensorInfo& tensor);

}  // namespace rarefy::files
