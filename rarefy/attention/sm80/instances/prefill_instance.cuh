// Launch of one prefill instance.
#pragma once
#include "rarefy/attention/sm80/instances.h"
#include "rarefy/attention/sm80/prefill.cuh"
#include "rarefy/base/cuda_check.h"

namespace rarefy::attention::sm80 {

template <typename T, int kHeadDim>
void launch_prefill_instance(const CudaParams& p, cudaStream_t stream) {
  const bool sealed = p.view.k_sealed || p.view.v_sealed;
  const auto kernel = sealed ? prefill_kernel<T, kHeadDim, true> : prefill_kernel<T, kHeadDim, false>;
  constexpr int kBytes = kPrefillPages * static_cast<int>(format24::dense_page_bytes(kHeadDim));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>(p.q_heads),
                  static_cast<unsigned>((p.max_q_len + kPrefillQueries - 1) / kPrefillQueries),
                  static_cast<unsigned>(p.view.batch));
  kernel<<<grid, kPrefillWarps * 32, kBytes, stream>>>(p);
  CUDA_CHECK_LAUNCH("prefill_kernel");
}

}  // namespace rarefy::attention::sm80
