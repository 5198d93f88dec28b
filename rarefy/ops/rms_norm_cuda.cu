// CUDA version of rms_norm: one warp for a short row (a head), one CTA for a long one.
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"
#include "rarefy/ops/launch.cuh"

namespace rarefy::ops::cuda {
namespace {

constexpr std::int64_t kShortRow = 512;

__device__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

/// kWarps warps share a row; a CTA holds kThreads / 32 / kWarps rows. x and y may be the same: a row is read whole
/// before it is written, since every thread keeps to its own elements.
template <typename In, typename Out, int kWarps>
__global__ void rms_norm_kernel(const In* x, const float* weight, std::int64_t rows, std::int64_t dim, float eps,
                                Out* y) {
  constexpr int kRows = kThreads / 32 / kWarps;
  const int warp = threadIdx.x / 32, thread = threadIdx.x % (32 * kWarps);
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + warp / kWarps;
  if (row >= rows) return;
  const In* from = x + row * dim;
  Out* to = y + row * dim;
  float sum = 0;
  for (std::int64_t i = thread; i < dim; i += 32 * kWarps) {
    const float value = to_f32(from[i]);
    sum += value * value;
  }
  sum = warp_sum(sum);
  if constexpr (kWarps > 1) {
    __shared__ float parts[kWarps];
    if (threadIdx.x % 32 == 0) parts[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += parts[i];
  }
  const float factor = rsqrtf(sum / static_cast<float>(dim) + eps);
  for (std::int64_t i = thread; i < dim; i += 32 * kWarps) to[i] = from_f32<Out>(to_f32(from[i]) * factor * weight[i]);
}

template <typename In, typename Out>
void launch(const TensorView& x, const float* weight, float eps, const TensorView& y, cudaStream_t stream) {
  const std::int64_t rows = x.shape[0], dim = x.shape[1];
  const auto* from = reinterpret_cast<const In*>(x.data);
  auto* to = reinterpret_cast<Out*>(y.data);
  constexpr int kWarps = kThreads / 32;
  if (dim <= kShortRow)
    rms_norm_kernel<In, Out, 1><<<static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads, 0, stream>>>(
        from, weight, rows, dim, eps, to);
  else
    rms_norm_kernel<In, Out, kWarps>
        <<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(from, weight, rows, dim, eps, to);
}

}  // namespace

void rms_norm(const TensorView& x, const float* weight, float eps, const TensorView& y, Stream& stream) {
  if (x.shape.elements() == 0) return;
  with_element(x.dtype, [&](auto in) {
    with_element(y.dtype, [&](auto out) { launch<decltype(in), decltype(out)>(x, weight, eps, y, handle(stream)); });
  });
  CUDA_CHECK_LAUNCH("rms_norm_kernel");
}

}  // namespace rarefy::ops::cuda
