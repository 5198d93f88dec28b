// Launch of one decode instance: shared memory as large as lets two CTAs share an SM, then the kernel and its merge.
#pragma once
#include <algorithm>

#include "rarefy/attention/sm80/decode.cuh"
#include "rarefy/attention/sm80/instances.h"
#include "rarefy/base/cuda.h"
#include "rarefy/base/cuda_check.h"

namespace rarefy::attention::sm80 {

template <typename T, int kHeadDim, bool kSealed, int kTiles>
void launch_tiles(const CudaParams& p, cudaStream_t stream) {
  constexpr int kUnit = unit_bytes(kHeadDim, kSealed);
  constexpr int kReserved = 1024;  // of every CTA, by the system
  const auto kernel = decode_kernel<T, kHeadDim, kSealed, kTiles>;
  const std::int64_t per_sm = cuda::properties(p.view.device.index).shared_memory;
  const auto fits = static_cast<int>((per_sm / 2 - kReserved) / (kDecodeWarps * kUnit));
  const int units = std::clamp(fits, min_units(kSealed), kMaxUnits);
  const int sums = kDecodeWarps * kTiles * 8 * (kHeadDim + 2) * static_cast<int>(sizeof(float));
  const int bytes = std::max(kDecodeWarps * units * kUnit, sums);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int group_tiles = (p.group + kDecodeQueries - 1) / kDecodeQueries;
  const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(p.view.kv_heads),
                  static_cast<unsigned>(p.view.batch * group_tiles));
  kernel<<<grid, kDecodeWarps * 32, static_cast<std::size_t>(bytes), stream>>>(p, units);
  CUDA_CHECK_LAUNCH("decode_kernel");
}

template <typename T, int kHeadDim>
void launch_decode_instance(const CudaParams& p, cudaStream_t stream) {
  const bool sealed = p.view.k_sealed || p.view.v_sealed;
  if (p.group <= 8)
    sealed ? launch_tiles<T, kHeadDim, true, 1>(p, stream) : launch_tiles<T, kHeadDim, false, 1>(p, stream);
  else
    sealed ? launch_tiles<T, kHeadDim, true, 2>(p, stream) : launch_tiles<T, kHeadDim, false, 2>(p, stream);
  if (p.splits == 1) return;
  const dim3 grid(static_cast<unsigned>(p.q_heads), static_cast<unsigned>(p.view.batch));
  merge_kernel<T, kHeadDim><<<grid, dim3(kHeadDim, kMergeWays), 0, stream>>>(p);
  CUDA_CHECK_LAUNCH("merge_kernel");
}

}  // namespace rarefy::attention::sm80
