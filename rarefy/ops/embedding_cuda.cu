// CUDA version of embedding.
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"
#include "rarefy/ops/launch.cuh"

namespace rarefy::ops::cuda {
namespace {

template <typename T>
__global__ void embedding_kernel(const std::int32_t* tokens, const T* table, std::int64_t vocab, std::int64_t hidden,
                                 float scale, float* y) {
  const std::int32_t token = tokens[blockIdx.x];
  const bool known = token >= 0 && token < vocab;
  const T* row = table + (known ? token : 0) * hidden;
  for (std::int64_t i = threadIdx.x; i < hidden; i += blockDim.x)
    y[blockIdx.x * hidden + i] = known ? to_f32(row[i]) * scale : NAN;
}

}  // namespace

void embedding(const std::int32_t* tokens, const LinearWeight& table, float scale, const TensorView& y,
               Stream& stream) {
  if (y.shape[0] == 0) return;
  with_element(table.dtype, [&](auto zero) {
    using T = decltype(zero);
    embedding_kernel<<<static_cast<unsigned>(y.shape[0]), kThreads, 0, handle(stream)>>>(
        tokens, reinterpret_cast<const T*>(table.data), table.out, table.in, scale, y.as<float>());
  });
  CUDA_CHECK_LAUNCH("embedding_kernel");
}

}  // namespace rarefy::ops::cuda
