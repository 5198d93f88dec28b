// Prefill attention on mma.sync and mma.sp: one tile of 128 queries of one head, K and V as the sparse operand A.
#pragma once
#include "rarefy/attention/params_cuda.h"
#include "rarefy/attention/sm80/config.h"
#include "rarefy/attention/sm80/tiles.cuh"
#include "rarefy/base/element.cuh"
#include "rarefy/base/ptx.cuh"
#include "rarefy/format24/layout.h"

namespace rarefy::attention::sm80 {

/// Pages of a CTA in the order in which they are used, K, V, K, V, ..., through kPrefillPages places.
template <int kHeadDim, bool kSealed>
class PageStages {
 public:
  static constexpr int kPlace = static_cast<int>(format24::dense_page_bytes(kHeadDim));

  __device__ PageStages(const CudaParams& params, std::int64_t map_row, int blocks, std::int64_t window_start,
                        std::uint32_t base)
      : p_(params), row_(map_row), window_start_(window_start), pages_(2 * blocks), base_(base) {
    entries_ = entry_of(0);
    next_entries_ = entry_of(32);
    for (int i = 0; i < kPrefillPages - 2; ++i) start();
  }

  struct Page {
    std::uint32_t address;
    bool sparse, absent;
  };

  /// The next block's pages are there for every thread; the copies into the places of the block before start.
  __device__ void next_block() {
    ptx::cp_async_wait<kPrefillPages - 4>();
    __syncthreads();
    start();
    start();
  }
  /// The next page of this block: K, then V.
  __device__ Page next() {
    const unsigned bit = 1u << (used_ % 32);
    const Page page{base_ + static_cast<std::uint32_t>(used_ % kPrefillPages * kPlace), kSealed && (sparse_ & bit) != 0,
                    (absent_ & bit) != 0};
    ++used_;
    return page;
  }

 private:
  /// Lane i reads the map entry of page `first` + i: the window's, where the tile reads dense and there is one.
  __device__ std::int32_t entry_of(int first) const {
    const int page = first + static_cast<int>(threadIdx.x % 32);
    if (page >= pages_) return 0;
    const bool k = page % 2 == 0;
    const std::int64_t block = page / 2;
    const std::int32_t* window = k ? p_.view.k_window : p_.view.v_window;
    std::int32_t entry = 0;
    if (kSealed && window != nullptr && (block + 1) * kBlock > window_start_) entry = window[row_ + block];
    return entry != 0 ? entry : (k ? p_.view.k_map : p_.view.v_map)[row_ + block];
  }

  __device__ void start() {
    if (started_ < pages_) {
      const std::int32_t entry = __shfl_sync(~0u, entries_, started_ % 32);
      const std::int64_t page = entry > 0 ? entry - 1 : -std::int64_t{entry} - 1;
      const bool sparse = entry < 0;
      const bool bad = entry == 0 || page >= (sparse ? (kSealed ? p_.view.sparse_pages : 0) : p_.view.dense_pages);
      if (bad) {
        if (threadIdx.x == 0) *p_.error = 1;
      } else {
        copy(sparse, page);
      }
      const unsigned bit = 1u << (started_ % 32);
      sparse_ = sparse ? sparse_ | bit : sparse_ & ~bit;
      absent_ = bad ? absent_ | bit : absent_ & ~bit;
      ++started_;
      if (started_ % 32 == 0) {
        entries_ = next_entries_;
        next_entries_ = entry_of(started_ + 32);
      }
    }
    ptx::cp_async_commit();  // an empty group too: the count of groups must stay that of pages
  }

  __device__ void copy(bool sparse, std::int64_t page) const {
    constexpr int kDense = kPlace, kSparse = static_cast<int>(format24::sparse_page_bytes(kHeadDim));
    constexpr int kStep = kPrefillWarps * 32 * 16;
    const int offset = static_cast<int>(threadIdx.x) * 16;
    const std::byte* from = (sparse ? p_.view.sparse + page * kSparse : p_.view.dense + page * kDense) + offset;
    const std::uint32_t to = base_ + static_cast<std::uint32_t>(started_ % kPrefillPages * kPlace + offset);
    const int bytes = kSealed && sparse ? kSparse : kDense;
#pragma unroll
    for (int i = 0; i < (kDense + kStep - 1) / kStep; ++i)
      if (offset + i * kStep < bytes) ptx::cp_async_16(to + i * kStep, from + i * kStep);
  }

  const CudaParams& p_;
  std::int64_t row_, window_start_;
  int pages_;
  std::uint32_t base_;
  int started_ = 0, used_ = 0;
  unsigned sparse_ = 0, absent_ = 0;  // of page i at bit i mod 32
  std::int32_t entries_, next_entries_;
};

/// One tile of queries: grid (q_heads, tiles, batch); late tiles, which see most keys, come first. A warp owns 16
/// queries and all 64 keys of a block, so that its softmax needs nothing of the others.
template <typename T, int kHeadDim, bool kSealed>
__global__ void __launch_bounds__(kPrefillWarps * 32, 1) prefill_kernel(const CudaParams p) {
  constexpr int kTiles = kPrefillQueries / kPrefillWarps / 8;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int sequence = blockIdx.z, head = blockIdx.x, tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int first_row = p.q_start[sequence], q_len = p.q_start[sequence + 1] - first_row;
  const int first_query = tile * kPrefillQueries;
  if (first_query >= q_len) return;
  const int kv_len = p.view.kv_len[sequence], c0 = kv_len - q_len;
  const int queries = min(kPrefillQueries, q_len - first_query);
  const int seen = max(c0 + first_query + queries, 0);  // by the tile's last query
  const int blocks = (seen + kBlock - 1) / kBlock;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int own = warp * kTiles * 8;  // this warp's first query in the tile

  PageStages<kHeadDim, kSealed> pages(
      p, (std::int64_t{p.view.slots[sequence]} * p.view.kv_heads + head / p.group) * p.view.max_blocks, blocks,
      std::int64_t{c0} + first_query - p.local, ptx::shared_address(shared));

  const std::int64_t row = std::int64_t{first_row} + first_query + own;
  std::uint32_t q[kTiles][kHeadDim / 16][2];
  load_queries<T, kHeadDim, kTiles>(static_cast<const T*>(p.q) + (row * p.q_heads + head) * kHeadDim,
                                    std::int64_t{p.q_heads} * kHeadDim, queries - own, q);
  Accumulator<kHeadDim, kTiles> sums;
  const float scale = p.scale * kLog2E;
  const int first_seen = c0 + first_query + own + 1;  // keys that this warp's first query sees
  const int last_seen = first_seen + kTiles * 8 - 1;
  for (int block = 0; block < blocks; ++block) {
    pages.next_block();
    const auto k = pages.next();
    const int begin = block * kBlock;
    const bool visible = !k.absent && begin < last_seen;
    float s[4][kTiles][4] = {};
    std::uint32_t probabilities[kTiles][4][2] = {};
    if (visible) {
      multiply_keys<T, kHeadDim, kTiles>(k.address, k.sparse, q, s);
      if (begin + kBlock > first_seen) {
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int key = begin + m * 16 + lane / 4 + i / 2 * 8;
              if (key >= first_seen + t * 8 + lane % 4 * 2 + i % 2) s[m][t][i] = -INFINITY;
            }
      }
      sums.add(s, scale);
      pack_probabilities<T, kTiles>(s, probabilities);
    }
    const auto v = pages.next();
    if (begin + kBlock > kv_len && !v.absent) {
      if (warp == 0) clear_tail<kHeadDim>(v.address, v.sparse, kv_len - begin);
      __syncthreads();
    }
    if (visible && !v.absent) multiply_values<T, kHeadDim, kTiles>(v.address, v.sparse, probabilities, sums.o);
  }
  sums.reduce_sums();

#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int query = t * 8 + lane % 4 * 2 + j;
      if (own + query >= queries) continue;
      const float sum = sums.sum[t][j], inverse = sum == 0 ? 0.f : 1 / sum;
      const std::int64_t to = (row + query) * p.q_heads + head;
      T* o = static_cast<T*>(p.o) + to * kHeadDim;
#pragma unroll
      for (int c = 0; c < kHeadDim / 16; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          o[c * 16 + half * 8 + lane / 4] = from_f32<T>(sums.o[c][t][half * 2 + j] * inverse);
      if (lane < 4 && p.lse != nullptr) p.lse[to] = sum == 0 ? -INFINITY : (sums.max[t][j] + log2f(sum)) * kLn2;
    }
}

}  // namespace rarefy::attention::sm80
