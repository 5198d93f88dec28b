// Prefill attention: bf16, head_dim 64.
#include "rarefy/attention/sm80/instances/prefill_instance.cuh"

namespace rarefy::attention::sm80 {

void prefill_bf16_64(const CudaParams& params, cudaStream_t stream) {
  launch_prefill_instance<__nv_bfloat16, 64>(params, stream);
}

}  // namespace rarefy::attention::sm80
