// Token weights on CUDA: expected attention from keys times the group's queries on the tensor cores; choice of blocks.
#include <algorithm>
#include <climits>

#include "rarefy/base/cuda_check.h"
#include "rarefy/base/element.cuh"
#include "rarefy/base/ptx.cuh"
#include "rarefy/cache/token_weights_cuda.h"

namespace rarefy::cuda {
namespace {

using format24::kBlock;
using u32 = std::uint32_t;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kBlocksPerMultiprocessor = 3;  // 168 registers a thread: the queries take 64 of them
constexpr int kQueriesPerWarp = 32, kTileQueries = kWarps * kQueriesPerWarp;
constexpr int kColumns = kQueriesPerWarp / 8;                    // n-tiles of eight queries
constexpr int kStages = 3;                                       // pages on their way or in use
constexpr float kLog2E = 1.4426950408889634f, kLowest = -1e30f;  // kLowest: below any score, yet no infinity
constexpr u32 kOnesBf16 = 0x3f803f80u;
constexpr int kWeighedPerThread = 8;  // tokens

/// Running log-sum-exp in powers of two: sum * 2^top.
struct LogSum {
  float top, sum;
};

struct Plan {
  int tiles;                                       // of queries
  int splits;                                      // of a head's blocks
  std::int64_t sums_offset, totals_offset, bytes;  // in the workspace, which begins with the LogSums
};

Plan plan_of(const WeighLaunch& l) {
  Plan p{};
  p.tiles = std::max(1, (l.query_heads * l.queries + kTileQueries - 1) / kTileQueries);
  // One wave.
  p.splits = std::clamp(kBlocksPerMultiprocessor * l.multiprocessors / std::max(1, l.count * p.tiles), 1,
                        std::max(1, l.max_blocks));
  const std::int64_t rows = std::int64_t{l.count} * p.tiles, blocks = rows * l.max_blocks;
  p.sums_offset = rows * p.splits * kTileQueries * static_cast<std::int64_t>(sizeof(LogSum));
  p.totals_offset = p.sums_offset + blocks * kBlock * 4;
  p.bytes = p.totals_offset + blocks * 2 * 4;
  return p;
}

struct Arguments {
  WeighLaunch launch;
  int tiles, splits;
  LogSum* log_sums;  // [heads, tiles, splits, kTileQueries]
  float* sums;       // [heads, max_blocks, tiles, kBlock] masses
  float* totals;     // [heads, max_blocks, tiles, 2] masses of either half of the block, summed
};

/// What a warp keeps of its 32 queries: the B operands of every product with them.
template <int kHeadDim>
struct Queries {
  u32 b[kColumns][kHeadDim / 16][2];

  template <typename T, typename Q>
  __device__ void read(const WeighLaunch& l, const std::byte* first, int index, int lane) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int query = index + n * 8 + lane / 4;
      const bool real = query < l.query_heads * l.queries;
      const int row = real ? query : 0;
      const auto* from = reinterpret_cast<const Q*>(first) + row / l.queries * l.head_stride +
                         row % l.queries * l.query_stride + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < kHeadDim / 8; ++k) b[n][k / 2][k % 2] = real ? pair<T>(from + k * 8) : 0;
    }
  }

 private:
  template <typename T>
  __device__ static u32 pair(const float* from) {
    const float2 x = *reinterpret_cast<const float2*>(from);
    return ptx::pack<T>(x.x, x.y);
  }
  template <typename T, typename Q>
  __device__ static u32 pair(const Q* from) {
    const u32 x = *reinterpret_cast<const u32*>(from);
    if constexpr (std::is_same_v<T, Q>) return x;
    return ptx::pack<T>(to_f32(reinterpret_cast<const Q(&)[2]>(x)[0]), to_f32(reinterpret_cast<const Q(&)[2]>(x)[1]));
  }
};

/// One page in shared memory.
struct Page {
  u32 address;
  bool sparse;
  int tokens;
};

/// s[n][.]: products of 16 keys (rows lane / 4 and + 8) with the warp's queries (columns 8 n + 2 (lane % 4) and + 1).
template <typename T, int kHeadDim, bool kSparse>
__device__ void products(const Page& page, int tile, const Queries<kHeadDim>& queries, int lane,
                         float (&s)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
  const int row = tile * 16 + lane % 16, high = lane / 16;
  if constexpr (kSparse) {
    const u32 metadata = page.address + static_cast<u32>(format24::nonzero_bytes(kHeadDim)) + lane * 4;
#pragma unroll
    for (int pair = 0; pair < kHeadDim / 64; ++pair) {
      const u32 e = ptx::load_shared(metadata + (tile * (kHeadDim / 64) + pair) * 128);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = pair * 2 + half;
        u32 a[4];
        ptx::ldmatrix(a, page.address + format24::k_nonzero_offset(row, step * 16 + high * 8, kHeadDim));
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const u32 b[4] = {queries.b[n][2 * step][0], queries.b[n][2 * step][1], queries.b[n][2 * step + 1][0],
                            queries.b[n][2 * step + 1][1]};
          half == 0 ? ptx::mma_sp_16832<T, 0>(s[n], a, b, e) : ptx::mma_sp_16832<T, 1>(s[n], a, b, e);
        }
      }
    }
  } else {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      u32 a[4];
      ptx::ldmatrix(a, page.address + format24::dense_offset(row, step * 16 + high * 8));
#pragma unroll
      for (int n = 0; n < kColumns; ++n) ptx::mma_16816<T>(s[n], a, queries.b[n][step][0], queries.b[n][step][1]);
    }
  }
}

/// Keys past the end score -inf, whatever their slots hold.
__device__ void mask_tail(const Page& page, int tile, int lane, float (&s)[kColumns][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (tile * 16 + lane / 4 + i / 2 * 8 >= page.tokens)
#pragma unroll
      for (int n = 0; n < kColumns; ++n) s[n][i] = -INFINITY;
}

/// Calls body(tile, scores) for a full page's four tiles of 16 keys, the next tile's products under way meanwhile.
template <typename T, int kHeadDim, bool kSparse, typename Body>
__device__ void each_full_tile(const Page& page, const Queries<kHeadDim>& queries, int lane, Body body) {
  constexpr int kTiles = kBlock / 16;
  float s[2][kColumns][4];
  products<T, kHeadDim, kSparse>(page, 0, queries, lane, s[0]);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile + 1 < kTiles) products<T, kHeadDim, kSparse>(page, tile + 1, queries, lane, s[(tile + 1) % 2]);
    body(tile, s[tile % 2]);
  }
}

/// The same for any page; keys past the end score -inf. kOverlap: full pages as above, if the registers allow.
template <typename T, bool kOverlap, int kHeadDim, typename Body>
__device__ void each_tile(const Page& page, const Queries<kHeadDim>& queries, int lane, Body body) {
  if (kOverlap && page.tokens == kBlock)
    return page.sparse ? each_full_tile<T, kHeadDim, true>(page, queries, lane, body)
                       : each_full_tile<T, kHeadDim, false>(page, queries, lane, body);
#pragma unroll 1
  for (int tile = 0; tile < kBlock / 16; ++tile) {
    float s[kColumns][4];
    page.sparse ? products<T, kHeadDim, true>(page, tile, queries, lane, s)
                : products<T, kHeadDim, false>(page, tile, queries, lane, s);
    mask_tail(page, tile, lane, s);
    body(tile, s);
  }
}

/// A lane's own sums over the rows that it holds, two queries per n-tile, as multiples of 2^top.
struct LaneSums {
  float top[kColumns][2], sum[kColumns][2];

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) top[n][i] = kLowest, sum[n][i] = 0;
  }

  /// scale: from products to exponents of two.
  __device__ void add(const float (&s)[kColumns][4], float scale) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i % 2] += ptx::exp2(fmaf(s[n][i], scale, -top[n][i % 2]));
  }

  /// Whether some sum has left the range in which float32 adds it well: `top` is too low.
  __device__ bool too_large() const {
    bool out = false;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) out |= !(sum[n][i] < 0x1p100f);
    return out;
  }

  /// Raises `top` to the largest of these scores.
  __device__ void raise(const float (&s)[kColumns][4], float scale) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float next = fmaxf(top[n][i], fmaxf(s[n][i], s[n][i + 2]) * scale);
        sum[n][i] *= ptx::exp2(top[n][i] - next);
        top[n][i] = next;
      }
  }

  /// Adds a page. Its largest scores are looked for only if the sums grow too large with the tops that there are: at
  /// the first page, hardly ever later.
  template <typename T, bool kOverlap, int kHeadDim>
  __device__ void add_page(const Page& page, const Queries<kHeadDim>& queries, int lane, float scale) {
    LaneSums next = *this;
    each_tile<T, kOverlap>(page, queries, lane, [&](int, const float(&s)[kColumns][4]) { next.add(s, scale); });
    if (__any_sync(~0u, next.too_large())) {
      next = *this;
#pragma unroll 1
      for (int tile = 0; tile < kBlock / 16; ++tile) {
        float s[kColumns][4];
        page.sparse ? products<T, kHeadDim, true>(page, tile, queries, lane, s)
                    : products<T, kHeadDim, false>(page, tile, queries, lane, s);
        mask_tail(page, tile, lane, s);
        next.raise(s, scale);
        next.add(s, scale);
      }
    }
    *this = next;
  }

  /// Joins the lanes that hold other rows of the same queries.
  __device__ void join() {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float other_top = __shfl_xor_sync(~0u, top[n][i], distance);
          const float other_sum = __shfl_xor_sync(~0u, sum[n][i], distance);
          const float next = fmaxf(top[n][i], other_top);
          sum[n][i] = sum[n][i] * ptx::exp2(top[n][i] - next) + other_sum * ptx::exp2(other_top - next);
          top[n][i] = next;
        }
  }
};

/// One warp's share of the masses of 16 tokens: sums over its queries, as products with ones. bf16 has the range of
/// attention.
__device__ void add_attention(const float (&s)[kColumns][4], const float (&lse)[kColumns][2], float scale, int lane,
                              float* masses) {
  float mass[4] = {};
#pragma unroll
  for (int pair = 0; pair < kColumns / 2; ++pair) {
    u32 a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = pair * 2 + i / 2, row = i % 2 * 2;
      a[i] = ptx::pack<__nv_bfloat16>(ptx::exp2(fmaf(s[n][row], scale, -lse[n][0])),
                                      ptx::exp2(fmaf(s[n][row + 1], scale, -lse[n][1])));
    }
    ptx::mma_16816<__nv_bfloat16>(mass, a, kOnesBf16, kOnesBf16);
  }
  if (lane % 4 != 0) return;
  masses[lane / 4] = mass[0];
  masses[lane / 4 + 8] = mass[2];
}

/// The blocks of one head that a pass reads.
struct Blocks {
  const WeighHead& head;
  bool all;

  __device__ bool wanted(int block) const {
    if (head.k_map[block] == 0) return false;
    return all || head.chosen == nullptr || head.chosen[block - head.begin] != 0;
  }
  __device__ int next(int block, int end) const {
    while (block < end && !wanted(block)) ++block;
    return block;
  }
};

template <int kHeadDim>
__device__ void copy_page(const WeighLaunch& l, std::int32_t entry, u32 to) {
  const int page = abs(entry) - 1;
  const std::byte* from = entry > 0 ? l.dense + page * format24::dense_page_bytes(kHeadDim)
                                    : l.sparse + page * format24::sparse_page_bytes(kHeadDim);
  const int bytes =
      static_cast<int>(entry > 0 ? format24::dense_page_bytes(kHeadDim) : format24::sparse_page_bytes(kHeadDim));
  for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += kThreads * 16) ptx::cp_async_16(to + i, from + i);
}

/// Adds up what the warps found of one block, in their order.
__device__ void write_sums(const float* warps, float* sums, float* totals) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kBlock) return;  // whole warps
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += warps[warp * kBlock + i];
  sums[i] = sum;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (i % 32 == 0) totals[i / 32] = sum;
}

/// Log-sum-exp of the tile's queries over all keys: what the splits of the first pass found, in their order.
__device__ void join_splits(const Arguments& a, const LogSum* parts, float* lse) {
  const int i = static_cast<int>(threadIdx.x);
  LogSum all{kLowest, 0};
  for (int split = 0; split < a.splits; ++split) {
    const LogSum part = parts[split * kTileQueries + i];
    const float top = fmaxf(all.top, part.top);
    all.sum = all.sum * ptx::exp2(all.top - top) + part.sum * ptx::exp2(part.top - top);
    all.top = top;
  }
  lse[i] = all.sum > 0 ? all.top + log2f(all.sum) : INFINITY;
}

enum class Pass { LogSums, Attention };

/// A warp has 32 queries and takes every page. LogSums: sums over all keys. Attention: masses of the blocks that are
/// sealed, with the sums of the first pass or, if `kWhole` is false, over the block alone.
template <typename T, int kHeadDim, Pass pass, bool kWhole>
__global__ __launch_bounds__(kThreads, kBlocksPerMultiprocessor) void attend_kernel(Arguments a) {
  constexpr bool kOverlap = kWhole || kHeadDim == 64;
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr u32 kSlot = static_cast<u32>(format24::dense_page_bytes(kHeadDim));
  const u32 slots = ptx::shared_address(shared);
  auto* warp_sums = reinterpret_cast<float*>(shared + kStages * kSlot);  // [2][kWarps][kBlock]
  auto* shared_lse = warp_sums + 2 * kWarps * kBlock;                    // [kTileQueries]
  const WeighLaunch& l = a.launch;
  const int head_index = static_cast<int>(blockIdx.z), split = static_cast<int>(blockIdx.y);
  const int tile_index = static_cast<int>(blockIdx.x);  // neighbours read the same pages
  const WeighHead& head = l.heads[head_index];          // read again where needed: registers are scarce
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_query = tile_index * kTileQueries + warp * kQueriesPerWarp, query_count = l.query_heads * l.queries;
  const bool idle = first_query >= query_count;
  const int row = head_index * a.tiles + tile_index;
  const Blocks blocks{head, pass == Pass::LogSums};
  const int from = pass == Pass::LogSums ? 0 : head.begin;
  const int to = pass == Pass::LogSums ? (head.tokens + kBlock - 1) / kBlock : head.end;
  const int share = (to - from + a.splits - 1) / a.splits;
  const int begin = from + split * share, end = min(begin + share, to);

  // The page that is copied next is looked up while the one before is worked on. A queued page is its block * 2, + 1 if
  // it is sparse.
  int load = blocks.next(begin, end), load_entry = load < end ? head.k_map[load] : 0;
  int queue[kStages];
  const auto copy_next = [&](int i, u32 slot) {
    queue[i] = load * 2 + (load_entry < 0);
    if (load < end) {
      copy_page<kHeadDim>(l, load_entry, slots + slot * kSlot);
      load = blocks.next(load + 1, end);
      load_entry = load < end ? head.k_map[load] : 0;
    }
    ptx::cp_async_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy_next(i, static_cast<u32>(i));
  Queries<kHeadDim> queries;
  if (l.query_dtype == DType::F32)
    queries.template read<T, float>(l, head.queries, first_query, lane);
  else if (l.query_dtype == DType::F16)
    queries.template read<T, __half>(l, head.queries, first_query, lane);
  else
    queries.template read<T, __nv_bfloat16>(l, head.queries, first_query, lane);
  const float scale = kLog2E * rsqrtf(static_cast<float>(kHeadDim));

  LaneSums lane_sums;
  lane_sums.clear();
  float lse[kColumns][2];
  if constexpr (pass == Pass::Attention) {
    if constexpr (kWhole) join_splits(a, a.log_sums + std::int64_t{row} * a.splits * kTileQueries, shared_lse);
    if (idle)
      for (int i = lane; i < 2 * kBlock; i += 32) warp_sums[(i / kBlock * kWarps + warp) * kBlock + i % kBlock] = 0;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int query = warp * kQueriesPerWarp + n * 8 + lane % 4 * 2 + i;
        lse[n][i] = kWhole && first_query + n * 8 + lane % 4 * 2 + i < query_count ? shared_lse[query] : INFINITY;
      }
  }
  const auto place = [&](int b) {
    return (std::int64_t{head_index} * l.max_blocks + (b - head.begin)) * a.tiles + tile_index;
  };
  int slot = 0, parity = 0, previous = -1;
  while (queue[0] / 2 < end) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    copy_next(kStages - 1, static_cast<u32>(slot + kStages - 1) % kStages);
    if constexpr (pass == Pass::Attention)
      if (previous >= 0)
        write_sums(warp_sums + (parity ^ 1) * kWarps * kBlock, a.sums + place(previous) * kBlock,
                   a.totals + place(previous) * 2);
    const Page page{slots + slot * kSlot, queue[0] % 2 != 0, min(kBlock, head.tokens - queue[0] / 2 * kBlock)};
    if (!idle) {
      if constexpr (pass == Pass::LogSums || !kWhole) {
        if constexpr (pass == Pass::Attention) lane_sums.clear();
        lane_sums.add_page<T, kOverlap>(page, queries, lane, scale);
        if constexpr (pass == Pass::Attention) {
          lane_sums.join();
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              lse[n][i] = first_query + n * 8 + lane % 4 * 2 + i < query_count
                              ? lane_sums.top[n][i] + log2f(lane_sums.sum[n][i])
                              : INFINITY;
        }
      }
      if constexpr (pass == Pass::Attention) {
        float* masses = warp_sums + (parity * kWarps + warp) * kBlock;
        each_tile<T, kOverlap>(page, queries, lane, [&](int tile, const float(&s)[kColumns][4]) {
          add_attention(s, lse, scale, lane, masses + tile * 16);
        });
      }
    }
    previous = queue[0] / 2;
#pragma unroll
    for (int i = 0; i + 1 < kStages; ++i) queue[i] = queue[i + 1];
    parity ^= 1;
    slot = (slot + 1) % kStages;
  }
  if constexpr (pass == Pass::Attention) {
    __syncthreads();
    if (previous >= 0)
      write_sums(warp_sums + (parity ^ 1) * kWarps * kBlock, a.sums + place(previous) * kBlock,
                 a.totals + place(previous) * 2);
  } else {
    lane_sums.join();
    LogSum* out = a.log_sums + (std::int64_t{row} * a.splits + split) * kTileQueries + warp * kQueriesPerWarp;
    if (lane < 4)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) out[n * 8 + lane * 2 + i] = {lane_sums.top[n][i], lane_sums.sum[n][i]};
  }
}

/// From masses to weights, two blocks of tokens per block of threads at a time.
__global__ __launch_bounds__(kThreads) void token_weights_kernel(Arguments a) {
  __shared__ double warp_total[kWarps];
  __shared__ int warp_count[kWarps];
  const WeighLaunch& l = a.launch;
  const WeighHead head = l.heads[blockIdx.y];
  const std::int64_t base = std::int64_t{blockIdx.y} * l.max_blocks;
  const int blocks = head.end - head.begin, thread = static_cast<int>(threadIdx.x);
  const auto chosen = [&](int i) {
    return (head.chosen == nullptr || head.chosen[i] != 0) && head.k_map[head.begin + i] != 0;
  };
  float mean = static_cast<float>(l.query_heads * l.queries) / kBlock;  // masses are sums over queries
  if (l.whole && l.queries > 0) {
    double total = 0;
    int count = 0;
    for (int i = thread; i < blocks; i += kThreads) {
      if (!chosen(i)) continue;
      ++count;
      for (int k = 0; k < a.tiles * 2; ++k) total += a.totals[(base + i) * a.tiles * 2 + k];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(~0u, total, distance);
      count += __shfl_xor_sync(~0u, count, distance);
    }
    if (thread % 32 == 0) warp_total[thread / 32] = total, warp_count[thread / 32] = count;
    __syncthreads();
    total = 0, count = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += warp_total[warp], count += warp_count[warp];
    mean = count > 0 ? static_cast<float>(total / (static_cast<double>(count) * kBlock)) : 0;
  }
  for (int k = 0; k < kWeighedPerThread; ++k) {
    const int i = (static_cast<int>(blockIdx.x) * kWeighedPerThread + k) * (kThreads / kBlock) + thread / kBlock;
    if (i >= blocks || (l.queries > 0 && !chosen(i))) continue;
    float mass = 0;
    for (int tile = 0; l.queries > 0 && tile < a.tiles; ++tile)
      mass += a.sums[((base + i) * a.tiles + tile) * kBlock + thread % kBlock];
    head.weights[std::int64_t{i} * kBlock + thread % kBlock] = mean > 0 ? sqrtf(fmaxf(1.f, mass / mean)) : 1.f;
  }
}

template <typename T, int kHeadDim, Pass pass, bool kWhole>
void launch_attend(const Arguments& a, cudaStream_t stream) {
  const auto kernel = attend_kernel<T, kHeadDim, pass, kWhole>;
  const int bytes = static_cast<int>(kStages * format24::dense_page_bytes(kHeadDim)) +
                    (pass == Pass::Attention ? (2 * kWarps * kBlock + kTileQueries) * 4 : 0);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  const dim3 grid(static_cast<unsigned>(a.tiles), static_cast<unsigned>(a.splits),
                  static_cast<unsigned>(a.launch.count));
  kernel<<<grid, kThreads, static_cast<std::size_t>(bytes), stream>>>(a);
  CUDA_CHECK_LAUNCH("attend_kernel");
}

template <typename T, int kHeadDim>
void launch_passes(const Arguments& a, cudaStream_t stream) {
  if (a.launch.whole) {
    launch_attend<T, kHeadDim, Pass::LogSums, true>(a, stream);
    launch_attend<T, kHeadDim, Pass::Attention, true>(a, stream);
  } else {
    launch_attend<T, kHeadDim, Pass::Attention, false>(a, stream);
  }
}

// ---- The least losses -----------------------------------------------------------------------------------------------

constexpr int kSelectThreads = 1024;

/// One row per block of threads: finds the key of the last one taken, eight bits at a time, then flags all below it and
/// the first of its equals.
__global__ __launch_bounds__(kSelectThreads) void select_least_kernel(const float* losses, const std::int32_t* take,
                                                                      int count, std::uint8_t* chosen, float* largest) {
  constexpr u32 kNever = ~0u;
  __shared__ int bins[256], warp_before[kSelectThreads / 32];
  __shared__ u32 found;
  __shared__ int open, taken_of_equal;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const float* row = losses + std::int64_t{blockIdx.x} * count;
  std::uint8_t* out = chosen + std::int64_t{blockIdx.x} * count;
  // Losses are not negative, so their bits have their order; -0 is 0.
  const auto key_of = [&](int i) { return isnan(row[i]) ? kNever : __float_as_uint(fabsf(row[i])); };
  u32 prefix = 0;
  int wanted = take[blockIdx.x];
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (thread < 256) bins[thread] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += kSelectThreads) {
      const u32 key = key_of(i);
      if (key != kNever && (shift == 24 || key >> (shift + 8) == prefix)) atomicAdd(&bins[key >> shift & 255], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int before = 0, bin = 0;
      while (bin < 255 && before + bins[bin] < wanted) before += bins[bin++];
      found = prefix << 8 | static_cast<u32>(bin);
      open = wanted - before;
    }
    __syncthreads();
    prefix = found;
    wanted = open;
  }
  // Equals of the last key in order: `wanted` of them are taken.
  if (thread == 0) taken_of_equal = 0;
  __syncthreads();
  for (int start = 0; start < count; start += kSelectThreads) {
    const int i = start + thread;
    const u32 key = i < count ? key_of(i) : kNever;
    const bool equal = key == prefix;
    const unsigned votes = __ballot_sync(~0u, equal);
    if (lane == 0) warp_before[thread / 32] = __popc(votes);
    __syncthreads();
    int before = taken_of_equal + __popc(votes & ((1u << lane) - 1));
    for (int warp = 0; warp < thread / 32; ++warp) before += warp_before[warp];
    if (i < count) out[i] = take[blockIdx.x] > 0 && key != kNever && (key < prefix || (equal && before < wanted));
    __syncthreads();
    if (thread == kSelectThreads - 1) taken_of_equal = before + (equal ? 1 : 0);
    __syncthreads();
  }
  if (largest == nullptr) return;
  __shared__ u32 highest;
  if (thread == 0) highest = 0;
  __syncthreads();
  bool any = false;
  for (int i = thread; i < count; i += kSelectThreads)
    if (out[i] != 0) {
      any = true;
      atomicMax(&highest, key_of(i));
    }
  any = __syncthreads_or(any);
  if (thread == 0) largest[blockIdx.x] = any ? __uint_as_float(highest) : -INFINITY;
}

}  // namespace

std::int64_t weigh_workspace_bytes(const WeighLaunch& launch) { return plan_of(launch).bytes; }

void launch_token_weights(const WeighLaunch& launch, std::byte* workspace, void* stream) {
  if (launch.count == 0 || launch.max_blocks == 0) return;
  CHECK(launch.count <= 65535, "{} heads in one launch", launch.count);
  const Plan plan = plan_of(launch);
  const Arguments a{launch,
                    plan.tiles,
                    plan.splits,
                    reinterpret_cast<LogSum*>(workspace),
                    reinterpret_cast<float*>(workspace + plan.sums_offset),
                    reinterpret_cast<float*>(workspace + plan.totals_offset)};
  const auto handle = static_cast<cudaStream_t>(stream);
  if (launch.queries > 0) {
    if (launch.dtype == DType::F16)
      launch.head_dim == 64 ? launch_passes<__half, 64>(a, handle) : launch_passes<__half, 128>(a, handle);
    else
      launch.head_dim == 64 ? launch_passes<__nv_bfloat16, 64>(a, handle)
                            : launch_passes<__nv_bfloat16, 128>(a, handle);
  }
  constexpr int kPerBlock = kThreads / kBlock * kWeighedPerThread;
  const dim3 grid(static_cast<unsigned>((launch.max_blocks + kPerBlock - 1) / kPerBlock),
                  static_cast<unsigned>(launch.count));
  token_weights_kernel<<<grid, kThreads, 0, handle>>>(a);
  CUDA_CHECK_LAUNCH("token_weights_kernel");
}

void launch_select_least(const float* losses, const std::int32_t* take, int rows, int count, std::uint8_t* chosen,
                         float* largest, void* stream) {
  if (rows == 0) return;
  select_least_kernel<<<static_cast<unsigned>(rows), kSelectThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      losses, take, count, chosen, largest);
  CUDA_CHECK_LAUNCH("select_least_kernel");
}

}  // namespace rarefy::cuda
