// The CUDA version of token weights, for many KV heads at once, and the choice of blocks, without waiting for the
// device.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rarefy/base/dtype.h"
#include "rarefy/format24/layout.h"

namespace rarefy::cuda {

/// One KV head of one sequence, some of whose values are about to be sealed. Pointers are of the device.
struct WeighHead {
  const std::int32_t* k_map = nullptr;   // [blocks of `tokens`] row of the block map; entries 0 are passed over
  const std::byte* queries = nullptr;    // the first query of the first query head of the group, 8-byte aligned
  const std::uint8_t* chosen = nullptr;  // [end - begin] 0: not sealed now; null: all are
  float* weights = nullptr;              // [end - begin, 64] w_t out; those of blocks not chosen stay as they are
  std::int32_t tokens = 0;
  std::int32_t begin = 0, end = 0;  // the blocks that may be sealed
};

/// Everything that the heads have in common.
struct WeighLaunch {
  DType dtype = DType::F16;  // of the pages
  int head_dim = 0;
  const std::byte* dense = nullptr;   // [dense pages]
  const std::byte* sparse = nullptr;  // [sparse pages]
  DType query_dtype = DType::F32;     // F32, F16 or BF16; the products round F32 to the pages' dtype
  int query_heads = 0;                // of the group
  int queries = 0;                    // of a query head; 0: all tokens are equal
  std::int64_t head_stride = 0;       // elements from one query head to the next
  std::int64_t query_stride = 0;      // elements from one query to the next; both even
  bool whole =
      true;  // the softmax runs over all keys of the head and the mean over the chosen blocks, else over a block
  const WeighHead* heads = nullptr;  // [count] device
  int count = 0;
  int max_blocks = 0;  // at least the blocks of the longest head
  int multiprocessors = 0;
};

/// Bytes of device memory that launch_token_weights needs to itself.
std::int64_t weigh_workspace_bytes(const WeighLaunch& launch);

/// The weights of expected_attention and weights_of (token_weights.h), scores on the tensor cores in 16 bits: close
/// to the CPU's, bit-equal from run to run.
///   workspace  [weigh_workspace_bytes] device;   stream  cudaStream_t
void launch_token_weights(const WeighLaunch& launch, std::byte* workspace, void* stream);

/// For each row the `take[row]` least losses, ties to the lower index: chosen[row, i] = 1, the others 0. NaN is never
/// chosen.
///   losses  [rows, count] float32, not negative;  take [rows] int32;  chosen [rows, count] uint8
///   largest [rows] float32 the largest loss chosen, -inf if none, may be null;  all of the device
void launch_select_least(const float* losses, const std::int32_t* take, int rows, int count, std::uint8_t* chosen,
                         float* largest, void* stream);

}  // namespace rarefy::cuda
