// What CUDA attention works on after the checks: device pointers, and where a bad entry is reported.
#pragma once
#include <cstdint>

#include "rarefy/cache/kv_view.h"

namespace rarefy::attention {

/// One call of decode or prefill on CUDA. Maps and lists live on the device, where the host cannot check them: a kernel
/// that meets an entry outside its pool, or a listed block that is not there, reads nothing at that address and sets
/// `*error`.
struct CudaParams {
  KvView view;                            // every pointer on the device
  BlockList blocks;                       // ids on the device, null: every block
  const void* q = nullptr;                // [rows, q_heads, head_dim] of the pages' dtype, device
  void* o = nullptr;                      // as q
  float* lse = nullptr;                   // [rows, q_heads] natural log, device, may be null
  const std::int32_t* q_start = nullptr;  // [batch + 1] device; prefill only
  std::int32_t max_q_len = 0;             // of the batch; prefill only
  int q_heads = 0;
  int group = 0;
  float scale = 1;
  int local = 0;                  // prefill only
  int split_blocks = 32;          // decode only: blocks of a sequence that one part reads
  int splits = 1;                 // decode only: parts of a sequence's blocks that run side by side
  float* partial_o = nullptr;     // [batch, q_heads, splits, head_dim] device; decode only, null if splits is 1
  float* partial_lse = nullptr;   // [batch, q_heads, splits] device
  std::int32_t* error = nullptr;  // [1] device, set to 1 when a map entry or a listed block is bad
};

}  // namespace rarefy::attention
