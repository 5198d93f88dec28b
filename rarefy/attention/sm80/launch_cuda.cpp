// Choice of the instance for a call.
#include <span>

#include "rarefy/attention/sm80/config.h"
#include "rarefy/attention/sm80/instances.h"
#include "rarefy/attention/sm80/launch.h"
#include "rarefy/base/check.h"

namespace rarefy::attention::sm80 {

int decode_splits(int blocks, int split_blocks) { return splits_of(blocks, split_blocks); }

namespace {

using Launch = void (*)(const CudaParams&, cudaStream_t);

/// One row per head_dim.
struct Instances {
  int head_dim;
  Launch f16, bf16;
};

void launch(std::span<const Instances> instances, const char* operation, const CudaParams& params, Stream& stream) {
  for (const Instances& row : instances)
    if (row.head_dim == params.view.head_dim)
      return (params.view.dtype == DType::F16 ? row.f16 : row.bf16)(params, static_cast<cudaStream_t>(stream.handle()));
  fail(ErrorCode::Unsupported, "E_NO_KERNEL", "no CUDA {} kernel for head_dim {}", operation, params.view.head_dim);
}

}  // namespace

void launch_decode(const CudaParams& params, Stream& stream) {
  static constexpr Instances kInstances[] = {{64, decode_f16_64, decode_bf16_64},
                                             {128, decode_f16_128, decode_bf16_128}};
  launch(kInstances, "decode", params, stream);
}

void launch_prefill(const CudaParams& params, Stream& stream) {
  static constexpr Instances kInstances[] = {{64, prefill_f16_64, prefill_bf16_64},
                                             {128, prefill_f16_128, prefill_bf16_128}};
  launch(kInstances, "prefill", params, stream);
}

}  // namespace rarefy::attention::sm80
