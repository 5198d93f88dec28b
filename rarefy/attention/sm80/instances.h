// The instances that exist, one per dtype and head_dim; each is compiled in a file of its own.
#pragma once
#include <cuda_runtime_api.h>

#include "rarefy/attention/params_cuda.h"

namespace rarefy::attention::sm80 {

void decode_f16_64(const CudaParams& params, cudaStream_t stream);
void decode_f16_128(const CudaParams& params, cudaStream_t stream);
void decode_bf16_64(const CudaParams& params, cudaStream_t stream);
void decode_bf16_128(const CudaParams& params, cudaStream_t stream);

void prefill_f16_64(const CudaParams& params, cudaStream_t stream);
void prefill_f16_128(const CudaParams& params, cudaStream_t stream);
void prefill_bf16_64(const CudaParams& params, cudaStream_t stream);
void prefill_bf16_128(const CudaParams& params, cudaStream_t stream);

}  // namespace rarefy::attention::sm80
