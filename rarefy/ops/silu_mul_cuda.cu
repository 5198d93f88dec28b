// CUDA version of silu_mul.
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"
#include "rarefy/ops/launch.cuh"

namespace rarefy::ops::cuda {
namespace {

template <typename T>
__global__ void silu_mul_kernel(const T* gate, const T* up, std::int64_t count, T* y) {
  for (std::int64_t i = first_index(); i < count; i += index_stride()) {
    const float x = to_f32(gate[i]);
    y[i] = from_f32<T>(x / (1 + __expf(-x)) * to_f32(up[i]));
  }
}

}  // namespace

void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& y, Stream& stream) {
  const std::int64_t count = gate.shape.elements();
  if (count == 0) return;
  with_element(gate.dtype, [&](auto zero) {
    using T = decltype(zero);
    silu_mul_kernel<<<blocks_for(count), kThreads, 0, handle(stream)>>>(reinterpret_cast<const T*>(gate.data),
                                                                        reinterpret_cast<const T*>(up.data), count,
                                                                        reinterpret_cast<T*>(y.data));
  });
  CUDA_CHECK_LAUNCH("silu_mul_kernel");
}

}  // namespace rarefy::ops::cuda
