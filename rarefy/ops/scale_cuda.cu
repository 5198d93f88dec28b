// CUDA version of scale.
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"
#include "rarefy/ops/launch.cuh"

namespace rarefy::ops::cuda {
namespace {

template <typename T>
__global__ void scale_kernel(T* x, std::int64_t count, float factor) {
  for (std::int64_t i = first_index(); i < count; i += index_stride()) x[i] = from_f32<T>(to_f32(x[i]) * factor);
}

}  // namespace

void scale(const TensorView& x, float factor, Stream& stream) {
  const std::int64_t count = x.shape.elements();
  if (count == 0) return;
  with_element(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    scale_kernel<<<blocks_for(count), kThreads, 0, handle(stream)>>>(reinterpret_cast<T*>(x.data), count, factor);
  });
  CUDA_CHECK_LAUNCH("scale_kernel");
}

}  // namespace rarefy::ops::cuda
