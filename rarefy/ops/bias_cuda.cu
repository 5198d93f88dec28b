// Addition of a bias to the rows of a product.
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"
#include "rarefy/ops/launch.cuh"

namespace rarefy::ops::cuda {
namespace {

template <typename T>
__global__ void add_bias_kernel(const float* bias, std::int64_t count, std::int64_t out, T* y) {
  for (std::int64_t i = first_index(); i < count; i += index_stride()) y[i] = from_f32<T>(to_f32(y[i]) + bias[i % out]);
}

}  // namespace

void add_bias(const float* bias, const TensorView& y, Stream& stream) {
  const std::int64_t count = y.shape.elements();
  if (count == 0) return;
  with_element(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    add_bias_kernel<<<blocks_for(count), kThreads, 0, handle(stream)>>>(bias, count, y.shape[1],
                                                                        reinterpret_cast<T*>(y.data));
  });
  CUDA_CHECK_LAUNCH("add_bias_kernel");
}

}  // namespace rarefy::ops::cuda
