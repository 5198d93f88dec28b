// What one warp does with a page in shared memory: S^T += K Q^T, the running softmax, O^T += V^T P^T.
#pragma once
#include "rarefy/base/ptx.cuh"
#include "rarefy/format24/layout.h"

namespace rarefy::attention::sm80 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// Where the 16x16 tile (first_row, column tile 0) of rows of 128 B lies for this lane's part of an ldmatrix: xor with
/// 32 bytes times the column tile.
__device__ inline std::uint32_t tile_address(int lane, bool transposed) {
  // Matrices 0..3: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15. Transposed: rows and columns change places.
  const int second = lane / 8 % 2, third = lane / 16;
  const int row = lane % 8 + 8 * (transposed ? third : second), chunk = transposed ? second : third;
  return static_cast<std::uint32_t>(format24::swizzle128(row, chunk * 16));
}
__device__ inline std::uint32_t tile_address64(int lane) {
  return static_cast<std::uint32_t>(format24::swizzle64(lane % 16, lane / 16 * 16));
}

/// s[key tile] += K Q^T of one block; q[step of 16 channels]. Key tiles are the inner loop: a product waits some 30
/// cycles for the one before it on the same accumulator, and one warp has nothing else to do meanwhile.
template <typename T, int kHeadDim, int kTiles>
__device__ void multiply_keys(std::uint32_t page, bool sparse, const std::uint32_t (&q)[kTiles][kHeadDim / 16][2],
                              float (&s)[4][kTiles][4]) {
  const int lane = threadIdx.x % 32;
  std::uint32_t a[4];
  if (!sparse) {
    const std::uint32_t first = tile_address(lane, false);
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c)
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        ptx::ldmatrix(a, page + c / 4 * 8192 + m * 2048 + (first ^ (c % 4 * 32)));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) ptx::mma_16816<T>(s[m][t], a, q[t][c][0], q[t][c][1]);
      }
    return;
  }
  constexpr int kRowBytes = kHeadDim;  // head_dim / 2 non-zeros
  const std::uint32_t first = kHeadDim == 128 ? tile_address(lane, false) : tile_address64(lane);
  const std::uint32_t metadata = page + static_cast<std::uint32_t>(format24::nonzero_bytes(kHeadDim)) + lane * 4;
#pragma unroll
  for (int pair = 0; pair < kHeadDim / 64; ++pair) {
    std::uint32_t e[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) e[m] = ptx::load_shared(metadata + (m * (kHeadDim / 64) + pair) * 128);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c = pair * 2 + half;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        ptx::ldmatrix(a, page + m * 16 * kRowBytes + (first ^ (c * 32)));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const std::uint32_t b[4] = {q[t][2 * c][0], q[t][2 * c][1], q[t][2 * c + 1][0], q[t][2 * c + 1][1]};
          half == 0 ? ptx::mma_sp_16832<T, 0>(s[m][t], a, b, e[m]) : ptx::mma_sp_16832<T, 1>(s[m][t], a, b, e[m]);
        }
      }
    }
  }
}

/// o[channel tile] += V^T P^T of one block; p[tile of 16 keys].
template <typename T, int kHeadDim, int kTiles>
__device__ void multiply_values(std::uint32_t page, bool sparse, const std::uint32_t (&p)[kTiles][4][2],
                                float (&o)[kHeadDim / 16][kTiles][4]) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t first = tile_address(lane, true);
  std::uint32_t a[4];
  if (!sparse) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int c = 0; c < kHeadDim / 16; ++c) {
        ptx::ldmatrix_transposed(a, page + c / 4 * 8192 + k * 2048 + (first ^ (c % 4 * 32)));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) ptx::mma_16816<T>(o[c][t], a, p[t][k][0], p[t][k][1]);
      }
    return;
  }
  const std::uint32_t metadata = page + static_cast<std::uint32_t>(format24::nonzero_bytes(kHeadDim)) + lane * 4;
  std::uint32_t e[kHeadDim / 16];
#pragma unroll
  for (int c = 0; c < kHeadDim / 16; ++c) e[c] = ptx::load_shared(metadata + c * 128);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c) {
      ptx::ldmatrix_transposed(a, page + c / 4 * 4096 + half * 2048 + (first ^ (c % 4 * 32)));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const std::uint32_t b[4] = {p[t][2 * half][0], p[t][2 * half][1], p[t][2 * half + 1][0], p[t][2 * half + 1][1]};
        half == 0 ? ptx::mma_sp_16832<T, 0>(o[c][t], a, b, e[c]) : ptx::mma_sp_16832<T, 1>(o[c][t], a, b, e[c]);
      }
    }
}

/// Zeroes what a V page holds past its first `tokens` tokens: it may be NaN, which a weight of 0 would not stop.
template <int kHeadDim>
__device__ void clear_tail(std::uint32_t page, bool sparse, int tokens) {
  const int lane = threadIdx.x % 32;
  const int rows = sparse ? 32 : 64;
  // A sparse row r holds one of tokens 4 (r / 2) .. + 3: rows from the first group past the end on go whole.
  const int first = sparse ? (tokens + 3) / 4 * 2 : tokens;
  const int chunks = kHeadDim / 64 * 8;
  for (int i = first * chunks + lane; i < rows * chunks; i += 32) {
    const int row = i / chunks, chunk = i % chunks;
    ptx::store_shared_zero16(page + chunk / 8 * rows * 128 + row * 128 + chunk % 8 * 16);
  }
  if (sparse && tokens % 4 != 0) {
    const int group = tokens / 4;
    for (int channel = lane; channel < kHeadDim; channel += 32) {
      const format24::MetadataPlace place = format24::v_metadata_place(channel, group);
      const std::uint32_t bits =
          ptx::load_shared(page + static_cast<std::uint32_t>(format24::nonzero_bytes(kHeadDim)) + place.word * 4) >>
          place.shift;
      for (int z = 0; z < 2; ++z)
        if (static_cast<int>(bits >> (2 * z) & 3) >= tokens % 4)
          ptx::store_shared_zero2(page + format24::v_nonzero_offset(group * 2 + z, channel));
    }
  }
  __syncwarp();
}

/// Running softmax of one warp's blocks. Columns are queries: this lane holds those of 2 (lane mod 4) and + 1 of a
/// tile.
template <int kHeadDim, int kTiles>
struct Accumulator {
  float o[kHeadDim / 16][kTiles][4] = {};
  float max[kTiles][2];
  float sum[kTiles][2] = {};  // of this lane's rows only

  __device__ Accumulator() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) max[t][0] = max[t][1] = -INFINITY;
  }

  /// Scores become probabilities; earlier sums follow the new maximum. `scale`, positive, includes log2 e.
  __device__ void add(float (&s)[4][kTiles][4], float scale) {
    bool changed = false;
    float factor[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = -INFINITY;
#pragma unroll
        for (int m = 0; m < 4; ++m) top = fmaxf(top, fmaxf(s[m][t][j], s[m][t][j + 2]));
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        top = fmaxf(max[t][j], top * scale);
        const float base = top == -INFINITY ? 0.f : top;
        factor[t][j] = ptx::exp2(max[t][j] - base);
        changed = changed || top != max[t][j];
        max[t][j] = top;
        float part = 0;
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& x = s[m][t][j + 2 * half];
            x = ptx::exp2(x * scale - base);
            part += x;
          }
        sum[t][j] = sum[t][j] * factor[t][j] + part;
      }
    if (!__any_sync(~0u, changed)) return;
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[c][t][i] *= factor[t][i % 2];
  }

  __device__ void reduce_sums() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) sum[t][j] += __shfl_xor_sync(~0u, sum[t][j], lanes);
  }
};

/// The softmax's output as operand B of the second product: pairs of keys of one query.
template <typename T, int kTiles>
__device__ void pack_probabilities(const float (&s)[4][kTiles][4], std::uint32_t (&p)[kTiles][4][2]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        p[t][m][half] = ptx::movmatrix(ptx::pack<T>(s[m][t][half * 2], s[m][t][half * 2 + 1]));
}

/// Queries (operand B of the first product) of rows `stride` values apart; rows from `count` on are zero.
template <typename T, int kHeadDim, int kTiles>
__device__ void load_queries(const T* rows, std::int64_t stride, int count,
                             std::uint32_t (&q)[kTiles][kHeadDim / 16][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int query = t * 8 + lane / 4;
    const auto* row = reinterpret_cast<const std::uint32_t*>(rows + query * stride);
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) q[t][c][half] = query < count ? row[c * 8 + half * 4 + lane % 4] : 0;
  }
}

}  // namespace rarefy::attention::sm80
