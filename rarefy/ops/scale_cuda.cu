// CUDA version of scale.
#include <algorithm>

#include "rarefy/base/cuda_check.h"
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops::cuda {
namespace {

template <typename T>
__global__ void scale_kernel(T* x, std::int64_t count, float factor) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    x[i] = from_f32<T>(to_f32(x[i]) * factor);
}

}  // namespace

void scale(const TensorView& x, float factor, Stream& stream) {
  const std::int64_t count = x.shape.elements();
  if (count == 0) return;
  constexpr int kThreads = 256;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 4096));
  with_element(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    scale_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(reinterpret_cast<T*>(x.data),
                                                                                      count, factor);
  });
  CUDA_CHECK_LAUNCH("scale_kernel");
}

}  // namespace rarefy::ops::cuda
