// What launches of element-wise kernels share.
#pragma once
#include <algorithm>
#include <cstdint>

#include "rarefy/base/cuda_check.h"
#include "rarefy/base/device.h"

namespace rarefy::ops::cuda {

inline constexpr int kThreads = 256;

/// Blocks for a loop over `count` elements with stride gridDim * blockDim.
inline unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((count + kThreads - 1) / kThreads, 1, 1 << 16));
}

inline cudaStream_t handle(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

__device__ inline std::int64_t first_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t index_stride() { return std::int64_t{gridDim.x} * blockDim.x; }

}  // namespace rarefy::ops::cuda
