// Decode attention on mma.sync and mma.sp: split over blocks, one warp per block, the group's queries on the N side.
#pragma once
#include "rarefy/attention/params_cuda.h"
#include "rarefy/attention/sm80/config.h"
#include "rarefy/attention/sm80/tiles.cuh"
#include "rarefy/base/element.cuh"
#include "rarefy/base/ptx.cuh"
#include "rarefy/format24/layout.h"

namespace rarefy::attention::sm80 {

/// The blocks that one CTA reads: positions [begin, end) of `count`, of which only the last block may be partial.
struct SplitRange {
  int begin, end, count;
  int last_tokens;  // of the block at position count - 1
};

/// Pages of a warp on their way from global to shared memory, in the order in which they are used: K, V, K, V, ...
template <int kHeadDim, bool kSealed>
class PageRing {
 public:
  static constexpr int kUnitBytes = unit_bytes(kHeadDim, kSealed);

  __device__ PageRing(const CudaParams& params, std::int64_t map_row, const std::int32_t* ids, const SplitRange& range,
                      int warp, std::uint32_t base, int units)
      : p_(params), ids_(ids), row_(map_row), base_(base), units_(units), free_(units), lane_(threadIdx.x % 32) {
    first_ = range.begin + warp;
    const int blocks = range.end - first_;
    pages_ = blocks > 0 ? 2 * ((blocks + kDecodeWarps - 1) / kDecodeWarps) : 0;
    blocks_ = (p_.view.kv_len[blockIdx.z / group_tiles(params)] + kBlock - 1) / kBlock;
    entries_ = entry_of(0);
    next_entries_ = entry_of(32);
    fill();
  }

  __device__ static int group_tiles(const CudaParams& p) { return (p.group + kDecodeQueries - 1) / kDecodeQueries; }

  __device__ int pages() const { return pages_; }
  /// Waits for the next page; its address in shared memory. `absent` if its map entry is bad.
  __device__ std::uint32_t wait(bool& sparse, bool& absent) {
    const unsigned bit = 1u << (used_ % 32);
    sparse = kSealed && (sparse_ & bit) != 0;
    absent = (absent_ & bit) != 0;
    wait_for(issued_ - used_ - 1);
    __syncwarp();
    if (kSealed && !absent && !sparse && head_ == units_ - 1) {  // a dense page never wraps around
      head_ = 0;
      ++free_;
    }
    return base_ + static_cast<std::uint32_t>(head_ * kUnitBytes);
  }
  /// Gives the page's place back and starts the next copies.
  __device__ void release(bool sparse, bool absent) {
    __syncwarp();  // every lane has read it
    const int units = absent ? 0 : units_of(sparse);
    head_ += units;
    if (head_ >= units_) head_ -= units_;
    free_ += units;
    ++used_;
    fill();
  }

 private:
  __device__ static int units_of(bool sparse) { return kSealed && !sparse ? 2 : 1; }

  /// Lane i reads the map entry of page `base` + i.
  __device__ std::int32_t entry_of(int base) const {
    const int page = base + lane_;
    if (page >= pages_) return 0;
    const int position = first_ + page / 2 * kDecodeWarps;
    const int block = ids_ != nullptr ? ids_[position] : position;
    if (block < 0 || block >= blocks_) return 0;
    return (page % 2 == 0 ? p_.view.k_map : p_.view.v_map)[row_ + block];
  }

  __device__ void fill() {
    while (issued_ < pages_) {
      const std::int32_t entry = __shfl_sync(~0u, entries_, issued_ % 32);
      const std::int64_t page = entry > 0 ? entry - 1 : -std::int64_t{entry} - 1;
      const bool sparse = entry < 0;
      const bool bad = entry == 0 || page >= (sparse ? (kSealed ? p_.view.sparse_pages : 0) : p_.view.dense_pages);
      if (!bad) {
        const int units = units_of(sparse);
        const int skip = units == 2 && tail_ == units_ - 1 ? 1 : 0;
        if (units + skip > free_) break;
        if (skip != 0) tail_ = 0;
        copy(sparse, page);
        tail_ += units;
        if (tail_ >= units_) tail_ -= units_;
        free_ -= units + skip;
      } else if (lane_ == 0) {
        *p_.error = 1;
      }
      ptx::cp_async_commit();
      const unsigned bit = 1u << (issued_ % 32);
      sparse_ = sparse ? sparse_ | bit : sparse_ & ~bit;
      absent_ = bad ? absent_ | bit : absent_ & ~bit;
      ++issued_;
      if (issued_ % 32 == 0) {
        entries_ = next_entries_;
        next_entries_ = entry_of(issued_ + 32);
      }
    }
  }

  __device__ void copy(bool sparse, std::int64_t page) const {
    constexpr int kDense = static_cast<int>(format24::dense_page_bytes(kHeadDim));
    constexpr int kSparse = static_cast<int>(format24::sparse_page_bytes(kHeadDim));
    const std::byte* from = (sparse ? p_.view.sparse + page * kSparse : p_.view.dense + page * kDense) + lane_ * 16;
    const std::uint32_t to = base_ + static_cast<std::uint32_t>(tail_ * kUnitBytes + lane_ * 16);
    if (kSealed && sparse) {
#pragma unroll
      for (int i = 0; i < kSparse / 512; ++i) ptx::cp_async_16(to + i * 512, from + i * 512);
    } else {
#pragma unroll
      for (int i = 0; i < kDense / 512; ++i) ptx::cp_async_16(to + i * 512, from + i * 512);
    }
  }

  __device__ static void wait_for(int pending) {
    switch (pending) {  // the instruction takes a constant
      case 0:
        return ptx::cp_async_wait<0>();
      case 1:
        return ptx::cp_async_wait<1>();
      case 2:
        return ptx::cp_async_wait<2>();
      case 3:
        return ptx::cp_async_wait<3>();
      case 4:
        return ptx::cp_async_wait<4>();
      case 5:
        return ptx::cp_async_wait<5>();
      case 6:
        return ptx::cp_async_wait<6>();
      default:
        return ptx::cp_async_wait<7>();
    }
  }

  const CudaParams& p_;
  const std::int32_t* ids_;
  std::int64_t row_;
  std::uint32_t base_;
  int units_, free_, lane_;
  int first_, pages_, blocks_;
  int issued_ = 0, used_ = 0;         // pages
  int tail_ = 0, head_ = 0;           // units
  unsigned sparse_ = 0, absent_ = 0;  // of page i at bit i mod 32
  std::int32_t entries_, next_entries_;
};

/// Which positions of the row's block list (or of all its blocks) this split reads.
__device__ inline SplitRange split_range(const CudaParams& p, int sequence, const std::int32_t* ids) {
  const int tokens = p.view.kv_len[sequence];
  const int blocks = (tokens + kBlock - 1) / kBlock;
  int count = blocks;
  if (ids != nullptr) {
    count = 0;
    for (int i = threadIdx.x % 32; i < (p.blocks.max_selected + 31) / 32 * 32; i += 32)
      count += __popc(__ballot_sync(~0u, i < p.blocks.max_selected && ids[i] != -1));
  }
  const int last = count == 0 ? 0 : ids != nullptr ? ids[count - 1] : count - 1;
  const int begin = static_cast<int>(blockIdx.x) * p.split_blocks;
  return {begin, min(begin + p.split_blocks, count), count, min(tokens - last * kBlock, kBlock)};
}

/// One split of one sequence, KV head and tile of query heads: grid (splits, kv_heads, batch * tiles of queries).
/// Sums of the warps meet in shared memory; a row with several splits is merged by merge_kernel.
template <typename T, int kHeadDim, bool kSealed, int kTiles>
__global__ void __launch_bounds__(kDecodeWarps * 32, 2) decode_kernel(const CudaParams p, int units) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int group_tiles = PageRing<kHeadDim, kSealed>::group_tiles(p);
  const int sequence = blockIdx.z / group_tiles, kv_head = blockIdx.y;
  const int first_query = blockIdx.z % group_tiles * kDecodeQueries;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int32_t* ids =
      p.blocks.ids == nullptr
          ? nullptr
          : p.blocks.ids + (std::int64_t{sequence} * p.view.kv_heads + kv_head) * p.blocks.max_selected;
  const SplitRange range = split_range(p, sequence, ids);
  if (blockIdx.x > 0 && range.begin >= range.count) return;

  PageRing<kHeadDim, kSealed> ring(
      p, (std::int64_t{p.view.slots[sequence]} * p.view.kv_heads + kv_head) * p.view.max_blocks, ids, range, warp,
      ptx::shared_address(shared) + static_cast<std::uint32_t>(warp * units * unit_bytes(kHeadDim, kSealed)), units);

  const std::int64_t first_row = std::int64_t{sequence} * p.q_heads + std::int64_t{kv_head} * p.group + first_query;
  std::uint32_t q[kTiles][kHeadDim / 16][2];
  load_queries<T, kHeadDim, kTiles>(static_cast<const T*>(p.q) + first_row * kHeadDim, kHeadDim, p.group - first_query,
                                    q);

  Accumulator<kHeadDim, kTiles> sums;
  const float scale = p.scale * kLog2E;
  for (int page = 0; page < ring.pages(); page += 2) {
    const int position = range.begin + warp + page / 2 * kDecodeWarps;
    const int tokens = position == range.count - 1 ? range.last_tokens : kBlock;
    bool sparse, absent;
    float s[4][kTiles][4] = {};
    std::uint32_t address = ring.wait(sparse, absent);
    const bool no_keys = absent;
    if (!absent) multiply_keys<T, kHeadDim, kTiles>(address, sparse, q, s);
    ring.release(sparse, absent);

#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = m * 16 + lane / 4 + i / 2 * 8;
          if (key >= tokens || no_keys) s[m][t][i] = -INFINITY;
        }
    sums.add(s, scale);
    std::uint32_t probabilities[kTiles][4][2];
    pack_probabilities<T, kTiles>(s, probabilities);

    address = ring.wait(sparse, absent);
    if (!absent && !no_keys) {
      if (tokens < kBlock) clear_tail<kHeadDim>(address, sparse, tokens);
      multiply_values<T, kHeadDim, kTiles>(address, sparse, probabilities, sums.o);
    }
    ring.release(sparse, absent);
  }
  sums.reduce_sums();

  // Each warp leaves o, then max and sum, per query; the rings are empty by now.
  constexpr int kRow = kHeadDim + 2;
  auto* left = reinterpret_cast<float*>(shared);
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float* row = left + (warp * kTiles * 8 + t * 8 + lane % 4 * 2 + j) * kRow;
#pragma unroll
      for (int c = 0; c < kHeadDim / 16; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) row[c * 16 + half * 8 + lane / 4] = sums.o[c][t][half * 2 + j];
      if (lane < 4) {
        row[kHeadDim] = sums.max[t][j];
        row[kHeadDim + 1] = sums.sum[t][j];
      }
    }
  __syncthreads();
  const bool whole = range.count <= p.split_blocks;
  for (int query = 0; query < kTiles * 8 && first_query + query < p.group; ++query) {
    float max = -INFINITY, sum = 0;
    for (int w = 0; w < kDecodeWarps; ++w) max = fmaxf(max, left[(w * kTiles * 8 + query) * kRow + kHeadDim]);
    const float base = max == -INFINITY ? 0.f : max;
    float factor[kDecodeWarps];
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float* row = left + (w * kTiles * 8 + query) * kRow + kHeadDim;
      factor[w] = exp2f(row[0] - base);
      sum += row[1] * factor[w];
    }
    const float inverse = sum == 0 ? 0.f : 1 / sum;
    const float lse = sum == 0 ? -INFINITY : (base + log2f(sum)) * kLn2;
    const std::int64_t row = first_row + query;
    for (int c = threadIdx.x; c < kHeadDim; c += kDecodeWarps * 32) {
      float o = 0;
      for (int w = 0; w < kDecodeWarps; ++w) o += left[(w * kTiles * 8 + query) * kRow + c] * factor[w];
      if (whole)
        static_cast<T*>(p.o)[row * kHeadDim + c] = from_f32<T>(o * inverse);
      else
        p.partial_o[(row * p.splits + blockIdx.x) * kHeadDim + c] = o * inverse;
    }
    if (threadIdx.x != 0) continue;
    if (!whole)
      p.partial_lse[row * p.splits + blockIdx.x] = lse;
    else if (p.lse != nullptr)
      p.lse[row] = lse;
  }
}

/// Merges the splits of one query head: grid (q_heads, batch), kMergeWays rows of head_dim threads. Rows that one split
/// covered are complete already.
inline constexpr int kMergeWays = 4;
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kHeadDim* kMergeWays) merge_kernel(const CudaParams p) {
  __shared__ float outputs[kMergeWays][kHeadDim];
  __shared__ float maxima[kMergeWays], weights[kMergeWays];
  const int sequence = blockIdx.y, head = blockIdx.x;
  const std::int32_t* ids =
      p.blocks.ids == nullptr
          ? nullptr
          : p.blocks.ids + (std::int64_t{sequence} * p.view.kv_heads + head / p.group) * p.blocks.max_selected;
  const int count = split_range(p, sequence, ids).count;
  if (count <= p.split_blocks) return;
  const int splits = splits_of(count, p.split_blocks);
  const std::int64_t row = std::int64_t{sequence} * p.q_heads + head;
  const float* lse = p.partial_lse + row * p.splits;
  const float* o = p.partial_o + row * p.splits * kHeadDim + threadIdx.x;

  float max = -INFINITY;
  for (int i = threadIdx.y; i < splits; i += kMergeWays) max = fmaxf(max, lse[i]);
  if (threadIdx.x == 0) maxima[threadIdx.y] = max;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMergeWays; ++i) max = fmaxf(max, maxima[i]);
  const float base = max == -INFINITY ? 0.f : max;
  float sum = 0, weight = 0;
#pragma unroll 8
  for (int i = threadIdx.y; i < splits; i += kMergeWays) {
    const float factor = __expf(lse[i] - base);
    weight += factor;
    sum += factor * o[std::int64_t{i} * kHeadDim];
  }
  outputs[threadIdx.y][threadIdx.x] = sum;
  if (threadIdx.x == 0) weights[threadIdx.y] = weight;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int i = 1; i < kMergeWays; ++i) {
    sum += outputs[i][threadIdx.x];
    weight += weights[i];
  }
  static_cast<T*>(p.o)[row * kHeadDim + threadIdx.x] = from_f32<T>(weight == 0 ? 0.f : sum / weight);
  if (threadIdx.x == 0 && p.lse != nullptr) p.lse[row] = weight == 0 ? -INFINITY : base + logf(weight);
}

}  // namespace rarefy::attention::sm80
