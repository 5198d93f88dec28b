// Launchers of the portable attention kernels.
#pragma once
#include "rarefy/attention/params_cuda.h"
#include "rarefy/base/device.h"

namespace rarefy::attention::sm80 {

/// Parts of `split_blocks` blocks that decode needs room for in partial_o and partial_lse, for sequences of up to
/// `blocks` blocks (for lists of up to that length).
int decode_splits(int blocks, int split_blocks);

/// Decode attention of one step; fills in nothing of `params`. Throws Unsupported (dtype, head_dim).
void launch_decode(const CudaParams& params, Stream& stream);

/// Prefill attention without a block list. Throws as launch_decode does.
void launch_prefill(const CudaParams& params, Stream& stream);

}  // namespace rarefy::attention::sm80
