// Prefill attention: bf16, head_dim 128.
#include "rarefy/attention/sm80/instances/prefill_instance.cuh"

namespace rarefy::attention::sm80 {

void prefill_bf16_128(const CudaParams& params, cudaStream_t stream) {
  launch_prefill_instance<__nv_bfloat16, 128>(params, stream);
}

}  // namespace rarefy::attention::sm80
