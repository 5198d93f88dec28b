// Choice of the instance for a call.
#include "rarefy/attention/sm80/config.h"
#include "rarefy/attention/sm80/decode_instances.h"
#include "rarefy/attention/sm80/launch.h"
#include "rarefy/base/check.h"

namespace rarefy::attention::sm80 {

int decode_splits(int blocks) { return splits_of(blocks); }

void launch_decode(const CudaParams& params, Stream& stream) {
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  const bool half = params.view.dtype == DType::F16;
  if (params.view.head_dim == 64) return half ? decode_f16_64(params, handle) : decode_bf16_64(params, handle);
  if (params.view.head_dim == 128) return half ? decode_f16_128(params, handle) : decode_bf16_128(params, handle);
  fail(ErrorCode::Unsupported, "E_NO_KERNEL", "no CUDA decode kernel for head_dim {}", params.view.head_dim);
}

}  // namespace rarefy::attention::sm80
