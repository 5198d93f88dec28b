// All that attention, selection and kernels see of the cache: one layer's pages and block maps, as plain pointers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "rarefy/base/device.h"
#include "rarefy/base/dtype.h"
#include "rarefy/format24/layout.h"

namespace rarefy {

using format24::kBlock;

/// One layer of the cache for the sequences of one step. A map entry is a signed, 1-based page: +p is dense page p - 1,
/// -p is sparse page p - 1, 0 is not resident (or past the end).
struct KvView {
  DType dtype = DType::F16;  // of the pages: F16 or BF16
  int head_dim = 0;
  int kv_heads = 0;
  int batch = 0;
  int max_blocks = 0;  // row length of the maps
  std::int32_t dense_pages = 0;
  std::int32_t sparse_pages = 0;
  const std::byte* dense = nullptr;     // [dense_pages, dense_page_bytes]  device
  const std::byte* sparse = nullptr;    // [sparse_pages, sparse_page_bytes]  device
  const std::int32_t* k_map = nullptr;  // [slots, kv_heads, max_blocks]  device
  const std::int32_t* v_map = nullptr;  // as k_map
  const std::int32_t* k_window =
      nullptr;  // as k_map: the dense page (1-based) that a sealed block still has, else 0; may be null
  const std::int32_t* v_window = nullptr;  // as k_window
  const std::int32_t* slots = nullptr;     // [batch] row of the maps  device
  const std::int32_t* kv_len = nullptr;    // [batch] tokens, those of this step included  device
  bool k_sealed = true;                    // false: the caller knows that no entry of k_map is negative
  bool v_sealed = true;                    // as k_sealed
  Device device;

  std::int64_t row(int sequence, int kv_head) const {
    return (static_cast<std::int64_t>(slots[sequence]) * kv_heads + kv_head) * max_blocks;
  }
};

/// Blocks that attention reads. ids [rows, kv_heads, max_selected] int32, ascending, padded with -1, on the view's
/// device; rows are sequences in decode and queries in prefill. ids == null: every block.
struct BlockList {
  const std::int32_t* ids = nullptr;
  int max_selected = 0;
};

}  // namespace rarefy
