// Sealing on CUDA: one block of threads per page, two groups of four at a time as 16-bit halves, to the bit as the CPU.
// Compiled without fused multiply-add, which the CPU's losses and remainders do not have.
#include <algorithm>
#include <climits>
#include <vector>

#include "rarefy/base/cuda_check.h"
#include "rarefy/base/element.cuh"
#include "rarefy/base/ptx.cuh"
#include "rarefy/format24/compress_cuda.h"

namespace rarefy::format24::cuda {
namespace {

using u32 = std::uint32_t;

/// What the kernel is compiled for; Elements and Channels share one.
enum class Form { Magnitude, Masked, Calibrated };

/// Blocks on one multiprocessor: as many as the registers of the form allow without spilling.
template <Form form, bool kLoss>
constexpr int kBlocks = form == Form::Magnitude && !kLoss   ? 12
                        : form == Form::Calibrated && kLoss ? 6
                                                            : 8;

struct Arguments {
  const DeviceJob* jobs;
  const std::uint8_t* chosen;
  int* bad_job;
  LossKind kind;
  bool elements;
};

template <typename T>
constexpr u32 kInfinityBits = std::is_same_v<T, __half> ? 0x7c007c00u : 0x7f807f80u;
constexpr u32 kSigns = 0x80008000u, kOnes = 0x00010001u;
constexpr int kMaskedStride = 36;  // words of a V tile of metadata in shared memory: 32 would put 8 tiles in one bank

/// |x| of two values, NaN as infinity.
template <typename T>
__device__ u32 magnitudes(u32 x) {
  return __vminu2(x & ~kSigns, kInfinityBits<T>);
}

template <typename T>
__device__ float low_float(u32 x) {
  if constexpr (std::is_same_v<T, __half>)
    return __low2float(reinterpret_cast<const __half2&>(x));
  else
    return __uint_as_float(x << 16);
}
template <typename T>
__device__ float high_float(u32 x) {
  if constexpr (std::is_same_v<T, __half>)
    return __high2float(reinterpret_cast<const __half2&>(x));
  else
    return __uint_as_float(x & 0xffff0000u);
}
template <typename T>
__device__ float half_float(u32 x, int half) {
  return half == 0 ? low_float<T>(x) : high_float<T>(x);
}

__device__ u32 majority(u32 a, u32 b, u32 c) { return (a & b) | (a & c) | (b & c); }
__device__ u32 select(u32 mask, u32 yes, u32 no) { return (mask & yes) | (~mask & no); }

/// In the top bit of every lane: which of four scores are among the two largest, ties to the lower index. wins[mn]: m
/// beats n, in the top bit, for 01 02 03 12 13 23.
__device__ void two_of_four(const u32 (&wins)[6], u32 (&keep)[4]) {
  keep[0] = majority(wins[0], wins[1], wins[2]);
  keep[1] = majority(~wins[0], wins[3], wins[4]);
  keep[2] = majority(~wins[1], ~wins[3], wins[5]);
  keep[3] = majority(~wins[2], ~wins[4], ~wins[5]);
}

/// As masks of 16 bits, for two groups whose scores are halves below 2^15. (a | 2^15) - b has the top bit exactly if a
/// >= b, and borrows nothing from the other half.
__device__ void keep_largest(const u32 (&score)[4], u32 (&mask)[4]) {
  u32 s[3], wins[6];
#pragma unroll
  for (int i = 0; i < 3; ++i) s[i] = score[i] | kSigns;
  wins[0] = s[0] - score[1], wins[1] = s[0] - score[2], wins[2] = s[0] - score[3];
  wins[3] = s[1] - score[2], wins[4] = s[1] - score[3], wins[5] = s[2] - score[3];
  u32 keep[4];
  two_of_four(wins, keep);
#pragma unroll
  for (int i = 0; i < 4; ++i) mask[i] = ptx::permute<0xbb99>(keep[i], keep[i]);
}

/// The same for |x| times a weight in float32: floats that are not negative compare as integers.
template <typename T>
__device__ void keep_largest_weighed(const u32 (&x)[4], const float (&weight)[2][4], u32 (&mask)[4]) {
  u32 keep[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u32 score[4], wins[6];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      score[i] = __float_as_uint(half_float<T>(magnitudes<T>(x[i]), half) * fabsf(weight[half][i]));
    u32 s[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) s[i] = score[i] | 0x80000000u;
    wins[0] = s[0] - score[1], wins[1] = s[0] - score[2], wins[2] = s[0] - score[3];
    wins[3] = s[1] - score[2], wins[4] = s[1] - score[3], wins[5] = s[2] - score[3];
    two_of_four(wins, keep[half]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) mask[i] = ptx::permute<0xffbb>(keep[0][i], keep[1][i]);
}

/// NaNs made quiet, as a conversion to float32 and back makes them on the CPU.
template <typename T>
__device__ u32 quiet(u32 x) {
  const u32 nan = ((x & ~kSigns) + (0x7fff7fffu - kInfinityBits<T>)) & kSigns;
  return x | nan >> (std::is_same_v<T, __half> ? 6 : 9);
}

/// What is written for two groups: halves of the kept values, and i0 | i1 << 2 in the low bits of each half.
struct Kept {
  u32 first, second, code;
};

template <typename T>
__device__ Kept take(const u32 (&x)[4], const u32 (&mask)[4]) {
  Kept k;
  k.first = quiet<T>(select(mask[0], x[0], select(mask[1], x[1], x[2])));
  k.second = quiet<T>(select(mask[3], x[3], select(mask[2], x[2], x[1])));
  k.code = (~mask[0] & mask[1] & kOnes) | (~mask[0] & ~mask[1] & (kOnes * 2)) | ((mask[3] | ~mask[2]) & (kOnes * 4)) |
           ((mask[3] | mask[2]) & (kOnes * 8));
  return k;
}

/// Loss of one group: the terms of what its mask drops, in order.
template <typename T>
__device__ float loss_of(const u32 (&x)[4], const u32 (&mask)[4], const float (&weight)[4], int half, LossKind kind) {
  float loss = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = half_float<T>(x[i], half), scaled = value * weight[i];
    const float term = kind == LossKind::L1 ? half_float<T>(magnitudes<T>(x[i]), half) : scaled * scaled;
    if ((mask[i] >> (16 * half) & 1) == 0) loss += term;
  }
  return loss;
}

/// 0xffff in the halves of which the two mask bytes are not 0. Bytes `first` and `first + 1` of `bytes`.
template <int kFirst>
__device__ u32 widened(u32 bytes) {
  const u32 set = __vcmpne4(bytes, 0);
  return ptx::permute < kFirst == 0 ? 0x1100 : 0x3322 > (set, set);
}

__device__ bool keeps_too_many(const u32 (&mask)[4]) {
  u32 count = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) count += mask[i] & kOnes;
  return ((count + kOnes) & (kOnes * 4)) != 0;  // 3 + 1 and 4 + 1 have bit 2
}

/// Sum of `count` floats in order.
__device__ float sum_in_order(const float* values, int count, int stride) {
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) sum += values[i * stride];
  return sum;
}

/// The page's loss as the CPU adds it up: each row in order, then the rows in order. Row r's terms lie at r *
/// row_stride
/// + i * stride of `terms`; every one of kThreads threads calls.
template <int kThreads, int kRows>
__device__ void write_loss(float* terms, int row_stride, int count, int stride, float* out) {
  __syncthreads();
  float sums[kRows / kThreads];
#pragma unroll
  for (int i = 0; i < kRows / kThreads; ++i)
    sums[i] = sum_in_order(terms + (i * kThreads + static_cast<int>(threadIdx.x)) * row_stride, count, stride);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRows / kThreads; ++i) terms[i * kThreads + static_cast<int>(threadIdx.x)] = sums[i];
  __syncthreads();
  if (threadIdx.x == 0 && out != nullptr) *out = sum_in_order(terms, kRows, 1);
}

// ---- Keys
// ------------------------------------------------------------------------------------------------------------ A warp
// owns 64 channels. In a tile of 16 tokens lane 4 q + m owns channels 16 m .. + 15 of tokens q and q + 8: eight groups,
// so exactly one word of metadata and two pieces of 16 bytes of non-zeros.

/// Weights and masks of a lane's 16 channels, arranged as its groups are: [chunk of 8 channels][i of four], two groups
/// side by side.
template <Form form>
struct KeyChannels {
  float weight[2][2][4];  // [chunk][group]
  u32 mask[2][4];         // 0xffff: not masked out

  __device__ void load(const DeviceJob& job, bool elements, int channel) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mask[chunk][i] = ~0u;
#pragma unroll
        for (int group = 0; group < 2; ++group) {
          float& w = weight[chunk][group][i];
          const int c = channel + chunk * 8 + group * 4 + i;
          w = 1;
          if constexpr (form == Form::Calibrated)
            if (job.weights != nullptr) w = __ldg(job.weights + c);
          if constexpr (form == Form::Masked)
            if (!elements && job.mask[c] == 0) w = 0;
          if (w == 0) mask[chunk][i] &= group == 0 ? 0xffff0000u : 0x0000ffffu;
          if (w == 0) w = 1;  // its loss counts unweighed
        }
      }
  }
};

template <typename T, int kHeadDim, Form form, bool kLoss>
__global__ __launch_bounds__(kHeadDim / 2, kBlocks<form, kLoss>) void compress_keys_kernel(Arguments a) {
  constexpr int kGroups = kHeadDim / 4, kTiles = kBlock / 16, kStride = kGroups + 1;
  __shared__ float terms[kLoss ? kBlock * kStride : 1];
  const DeviceJob job = a.jobs[blockIdx.x];
  if (a.chosen != nullptr && a.chosen[blockIdx.x] == 0) return;
  const int step = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int q = lane / 4, m = lane % 4, channel = step * 64 + m * 16;
  KeyChannels<form> channels;
  if constexpr (form != Form::Magnitude) channels.load(job, a.elements, channel);

  uint4 next[2][2];  // [token q or q + 8][chunk]
  const auto load = [&](int tile) {
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
        next[row][chunk] = __ldg(
            reinterpret_cast<const uint4*>(job.dense + dense_offset(tile * 16 + row * 8 + q, channel + chunk * 8)));
  };
  bool bad = false;
  load(0);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    uint4 current[2][2];
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) current[row][chunk] = next[row][chunk];
    if (tile + 1 < kTiles) load(tile + 1);
    u32 word = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int token = tile * 16 + row * 8 + q;
      u32 out[4];
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const uint4 v = current[row][chunk];
        const u32 x[4] = {ptx::permute<0x5410>(v.x, v.z), ptx::permute<0x7632>(v.x, v.z),
                          ptx::permute<0x5410>(v.y, v.w), ptx::permute<0x7632>(v.y, v.w)};
        u32 live[4], kept[4], masked[4];  // live: x with what the mask drops as zero
#pragma unroll
        for (int i = 0; i < 4; ++i) masked[i] = form == Form::Magnitude ? ~0u : channels.mask[chunk][i];
        if constexpr (form == Form::Masked)
          if (a.elements) {
            const uint2 bytes = *reinterpret_cast<const uint2*>(job.mask + token * kHeadDim + channel + chunk * 8);
            const u32 low[2] = {widened<0>(bytes.x), widened<2>(bytes.x)};
            const u32 high[2] = {widened<0>(bytes.y), widened<2>(bytes.y)};
            masked[0] = ptx::permute<0x5410>(low[0], high[0]), masked[1] = ptx::permute<0x7632>(low[0], high[0]);
            masked[2] = ptx::permute<0x5410>(low[1], high[1]), masked[3] = ptx::permute<0x7632>(low[1], high[1]);
            bad |= keeps_too_many(masked);
          }
#pragma unroll
        for (int i = 0; i < 4; ++i) live[i] = x[i] & masked[i];
        if constexpr (form == Form::Calibrated) {
          keep_largest_weighed<T>(live, channels.weight[chunk], kept);
        } else {
          u32 score[4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            score[i] = form == Form::Masked && a.elements ? masked[i] & kOnes : magnitudes<T>(live[i]);
          keep_largest(score, kept);
        }
        const Kept k = take<T>(live, kept);
        out[chunk * 2] = ptx::permute<0x5410>(k.first, k.second);
        out[chunk * 2 + 1] = ptx::permute<0x7632>(k.first, k.second);
        word |= ((k.code | k.code >> 12) & 0xff) << (row * 16 + chunk * 8);
        if constexpr (kLoss) {
#pragma unroll
          for (int i = 0; i < 4; ++i) kept[i] &= masked[i];
#pragma unroll
          for (int group = 0; group < 2; ++group) {
            constexpr float kEqual[4] = {1, 1, 1, 1};
            float weight[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
              weight[i] = form == Form::Calibrated ? channels.weight[chunk][group][i] : kEqual[i];
            terms[token * kStride + channel / 4 + chunk * 2 + group] = loss_of<T>(x, kept, weight, group, a.kind);
          }
        }
      }
      if (job.sparse != nullptr)
        *reinterpret_cast<uint4*>(job.sparse + k_nonzero_offset(token, channel / 2, kHeadDim)) =
            make_uint4(out[0], out[1], out[2], out[3]);
    }
    if (job.sparse != nullptr)
      reinterpret_cast<u32*>(job.sparse + nonzero_bytes(kHeadDim))[(tile * (kHeadDim / 64) + step) * 32 + lane] = word;
  }
  if constexpr (form == Form::Masked)
    if (bad && a.bad_job != nullptr) atomicMin(a.bad_job, static_cast<int>(blockIdx.x));
  if constexpr (kLoss) write_loss<kHeadDim / 2, kBlock>(terms, kStride, kGroups, 1, job.loss);
}

// ---- Values
// ---------------------------------------------------------------------------------------------------------- A thread
// owns eight channels of 16 tokens: four groups of each channel, so one half-word of metadata per channel.

/// Weights of a page's tokens and their reciprocals.
struct TokenWeights {
  float4 weight[kBlock / 4], inverse[kBlock / 4];
};

template <int kThreads>
__device__ void read_weights(const float* from, TokenWeights& to) {
#pragma unroll
  for (int i = 0; i < kBlock / kThreads; ++i) {
    const int token = i * kThreads + static_cast<int>(threadIdx.x);
    const float w = from == nullptr ? 1.f : from[token];
    reinterpret_cast<float*>(to.weight)[token] = w;
    reinterpret_cast<float*>(to.inverse)[token] = 1 / w;
  }
}

/// The pairs, named by what they keep: i0 | i1 << 2, then bits for the dropped two: 16 the lower is 0, 32 it is 1; 64
/// the higher is 3, 128 it is 2.
constexpr int kPair01 = 0x44, kPair02 = 0x68, kPair03 = 0xac, kPair12 = 0x59, kPair13 = 0x9d, kPair23 = 0x1e;

/// The pair of one group that costs least, and what it costs.
__device__ int cheapest_pair(const float (&a)[4], float& least) {
  float square[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) square[i] = a[i] * a[i];
  int best = kPair01;
  least = __int_as_float(0x7f800000);
  const auto consider = [&](int pair, int x, int y) {
    const float sum = a[x] + a[y], cost = square[x] + square[y] + sum * sum * 0.25f;
    best = cost < least ? pair : best;
    least = fminf(cost, least);  // NaN is no cost
  };
  consider(kPair01, 2, 3), consider(kPair02, 1, 3), consider(kPair03, 1, 2);
  consider(kPair12, 0, 3), consider(kPair13, 0, 2), consider(kPair23, 0, 1);
  return best;
}

/// What a pair keeps and drops of four values. Its bits are tested one by one, as what the compiler cannot see through:
/// of comparisons it makes a switch, and branches.
struct PairSplit {
  int bits;

  __device__ explicit PairSplit(int pair) : bits(ptx::opaque(pair)) {}
  __device__ float first(const float (&v)[4]) const { return bits & 2 ? v[2] : bits & 1 ? v[1] : v[0]; }
  __device__ float second(const float (&v)[4]) const { return bits & 8 ? (bits & 4 ? v[3] : v[2]) : v[1]; }
  __device__ float dropped(const float (&v)[4]) const { return bits & 16 ? v[0] : bits & 32 ? v[1] : v[2]; }
  __device__ float other(const float (&v)[4]) const { return bits & 64 ? v[3] : bits & 128 ? v[2] : v[1]; }
};

/// Chooses for eight channels of one group of tokens. x: rows of the four tokens; first, second: rows out.
template <typename T, bool kLoss>
__device__ void pair_values(const uint4 (&x)[4], const TokenWeights& tokens, int group, LossKind kind, u32 (&first)[4],
                            u32 (&second)[4], u32 (&code)[4], float (&loss)[8]) {
  const float4 packed_weight = tokens.weight[group], packed_inverse = tokens.inverse[group];
  const float weight[4] = {packed_weight.x, packed_weight.y, packed_weight.z, packed_weight.w};
  const float inverse[4] = {packed_inverse.x, packed_inverse.y, packed_inverse.z, packed_inverse.w};
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    float out[2][2];
    u32 pairs[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float v[4], a[4], least;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = half_float<T>(reinterpret_cast<const u32(&)[4]>(x[i])[word], half);
        a[i] = weight[i] * v[i];
      }
      const int best = cheapest_pair(a, least);
      const PairSplit pair(best);
      const float share = (pair.dropped(a) + pair.other(a)) * 0.25f;
      out[0][half] = pair.first(v) + share * pair.first(inverse);
      out[1][half] = pair.second(v) + share * pair.second(inverse);
      pairs[half] = static_cast<u32>(best);
      if constexpr (kLoss) {
        const auto size = [](float f) { return isnan(f) ? __int_as_float(0x7f800000) : fabsf(f); };
        loss[word * 2 + half] = kind == LossKind::Energy ? least : size(pair.dropped(v)) + size(pair.other(v));
      }
    }
    first[word] = ptx::pack<T>(out[0][0], out[0][1]);
    second[word] = ptx::pack<T>(out[1][0], out[1][1]);
    code[word] = ptx::permute<0x5410>(pairs[0], pairs[1]) & (kOnes * 15);
  }
}

template <typename T, int kHeadDim, Form form, bool kLoss>
__global__ __launch_bounds__(kHeadDim / 2, kBlocks<form, kLoss>) void compress_values_kernel(Arguments a) {
  constexpr int kChunks = kHeadDim / 8, kGroups = kBlock / 4;
  __shared__ float terms[kLoss ? kGroups * kHeadDim : 1];
  __shared__ __align__(16) u32 metadata[kHeadDim / 16 * kMaskedStride];
  __shared__ __align__(16) unsigned char token_bytes[form == Form::Calibrated ? sizeof(TokenWeights) : 1];
  auto& tokens = reinterpret_cast<TokenWeights&>(token_bytes);
  const DeviceJob job = a.jobs[blockIdx.x];
  if (a.chosen != nullptr && a.chosen[blockIdx.x] == 0) return;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, quarter = static_cast<int>(threadIdx.x) / kChunks;
  const int channel = chunk * 8;

  uint4 next[4];
  const auto load = [&](int g) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      next[i] = __ldg(reinterpret_cast<const uint4*>(job.dense + dense_offset(quarter * 16 + g * 4 + i, channel)));
  };
  load(0);
  if constexpr (form == Form::Calibrated) {
    read_weights<kHeadDim / 2>(job.weights, tokens);
    __syncthreads();
  }
  u32 fixed[4] = {~0u, ~0u, ~0u, ~0u};  // the channel mask of the thread's channels
  if constexpr (form == Form::Masked)
    if (!a.elements) {
      const uint2 bytes = *reinterpret_cast<const uint2*>(job.mask + channel);
      fixed[0] = widened<0>(bytes.x), fixed[1] = widened<2>(bytes.x);
      fixed[2] = widened<0>(bytes.y), fixed[3] = widened<2>(bytes.y);
    }
  bool bad = false;
  u32 codes[4] = {};
  constexpr int kUnroll = form == Form::Calibrated ? 1 : 4;  // 800 instructions a group of tokens: four pass the cache
#pragma unroll kUnroll
  for (int g = 0; g < 4; ++g) {
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = next[i];
    if (g + 1 < 4) load(g + 1);
    const int group = quarter * 4 + g;
    u32 first[4], second[4], code[4];
    float loss[8];
    if constexpr (form == Form::Calibrated) {
      pair_values<T, kLoss>(x, tokens, group, a.kind, first, second, code, loss);
    } else {
      uint2 bytes[4] = {};
      if constexpr (form == Form::Masked)
        for (int i = 0; a.elements && i < 4; ++i)
          bytes[i] = *reinterpret_cast<const uint2*>(job.mask + (group * 4 + i) * kHeadDim + channel);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        u32 rows[4], live[4], masked[4], score[4], kept[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          rows[i] = reinterpret_cast<const u32(&)[4]>(x[i])[word];
          masked[i] = fixed[word];
          if (form == Form::Masked && a.elements) {
            const u32 part = word < 2 ? bytes[i].x : bytes[i].y;
            masked[i] = word % 2 == 0 ? widened<0>(part) : widened<2>(part);
          }
          live[i] = rows[i] & masked[i];
          score[i] = form == Form::Masked && a.elements ? masked[i] & kOnes : magnitudes<T>(live[i]);
        }
        if (form == Form::Masked && a.elements) bad |= keeps_too_many(masked);
        keep_largest(score, kept);
        const Kept k = take<T>(live, kept);
        first[word] = k.first, second[word] = k.second, code[word] = k.code;
        if constexpr (kLoss) {
          constexpr float kEqual[4] = {1, 1, 1, 1};
#pragma unroll
          for (int i = 0; i < 4; ++i) kept[i] &= masked[i];
#pragma unroll
          for (int half = 0; half < 2; ++half) loss[word * 2 + half] = loss_of<T>(rows, kept, kEqual, half, a.kind);
        }
      }
    }
    if constexpr (kLoss) {
      auto* to = reinterpret_cast<float4*>(terms + group * kHeadDim + channel);
      to[0] = make_float4(loss[0], loss[1], loss[2], loss[3]);
      to[1] = make_float4(loss[4], loss[5], loss[6], loss[7]);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) codes[word] |= code[word] << (4 * g);
    if (job.sparse != nullptr) {
      *reinterpret_cast<uint4*>(job.sparse + v_nonzero_offset(2 * group, channel)) =
          make_uint4(first[0], first[1], first[2], first[3]);
      *reinterpret_cast<uint4*>(job.sparse + v_nonzero_offset(2 * group + 1, channel)) =
          make_uint4(second[0], second[1], second[2], second[3]);
    }
  }
  if constexpr (form == Form::Masked)
    if (bad && a.bad_job != nullptr) atomicMin(a.bad_job, static_cast<int>(blockIdx.x));
  if (job.sparse != nullptr) {
    auto* halves = reinterpret_cast<std::uint16_t*>(metadata);
#pragma unroll
    for (int c = 0; c < 8; ++c)
      halves[(chunk / 2 * kMaskedStride + c * 4 + quarter) * 2 + chunk % 2] =
          static_cast<std::uint16_t>(codes[c / 2] >> (c % 2 * 16));
    __syncthreads();
    const int tile = static_cast<int>(threadIdx.x) / 8, part = static_cast<int>(threadIdx.x) % 8;
    reinterpret_cast<uint4*>(job.sparse + nonzero_bytes(kHeadDim))[threadIdx.x] =
        *reinterpret_cast<const uint4*>(metadata + tile * kMaskedStride + part * 4);
  }
  if constexpr (kLoss) write_loss<kHeadDim / 2, kHeadDim>(terms, 1, kGroups, kHeadDim, job.loss);
}

// ---- Launch
// ----------------------------------------------------------------------------------------------------------

template <typename T, int kHeadDim, Form form, bool kLoss>
void launch_form(const CompressLaunch& l, cudaStream_t stream) {
  const Arguments a{l.jobs, l.chosen, l.bad_job, l.kind, l.rule == PruneRule::Elements};
  const auto blocks = static_cast<unsigned>(l.count);
  if (l.side == Side::K)
    compress_keys_kernel<T, kHeadDim, form, kLoss><<<blocks, kHeadDim / 2, 0, stream>>>(a);
  else
    compress_values_kernel<T, kHeadDim, form, kLoss><<<blocks, kHeadDim / 2, 0, stream>>>(a);
}

template <typename T, int kHeadDim, Form form>
void launch_loss(const CompressLaunch& l, cudaStream_t stream) {
  l.losses ? launch_form<T, kHeadDim, form, true>(l, stream) : launch_form<T, kHeadDim, form, false>(l, stream);
}

template <typename T, int kHeadDim>
void launch_rule(const CompressLaunch& l, cudaStream_t stream) {
  switch (l.rule) {
    case PruneRule::Magnitude:
      return launch_loss<T, kHeadDim, Form::Magnitude>(l, stream);
    case PruneRule::Calibrated:
      return launch_loss<T, kHeadDim, Form::Calibrated>(l, stream);
    case PruneRule::Elements:
    case PruneRule::Channels:
      return launch_loss<T, kHeadDim, Form::Masked>(l, stream);
  }
}

template <typename T>
void launch_dim(const CompressLaunch& l, cudaStream_t stream) {
  l.head_dim == 64 ? launch_rule<T, 64>(l, stream) : launch_rule<T, 128>(l, stream);
}

DeviceJob device_job(Side side, const CompressJob& job, float* loss) {
  const PruneInput& prune = job.prune;
  DeviceJob out{.dense = job.dense, .sparse = job.sparse, .loss = loss};
  if (prune.rule == PruneRule::Calibrated) out.weights = side == Side::K ? prune.channel_weights : prune.token_weights;
  if (prune.rule == PruneRule::Elements) out.mask = prune.elements;
  if (prune.rule == PruneRule::Channels) out.mask = prune.channels;
  return out;
}

/// Device memory in the order of a stream.
class Scratch {
 public:
  Scratch(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
    CUDA_CHECK(cudaMallocAsync(&data_, bytes, stream));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { (void)cudaFreeAsync(data_, stream_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace

void launch_compress(const CompressLaunch& launch, void* stream) {
  CHECK(launch.count >= 0 && launch.count <= INT_MAX, "{} pages in one launch", launch.count);
  if (launch.count == 0) return;
  launch.dtype == DType::F16 ? launch_dim<__half>(launch, static_cast<cudaStream_t>(stream))
                             : launch_dim<__nv_bfloat16>(launch, static_cast<cudaStream_t>(stream));
  CUDA_CHECK_LAUNCH("compress_keys_kernel or compress_values_kernel");
}

void compress(Side side, DType dtype, int head_dim, std::span<const CompressJob> jobs, LossKind kind, float* loss,
              Stream& stream) {
  if (jobs.empty()) return;
  constexpr PruneRule kRules[] = {PruneRule::Magnitude, PruneRule::Calibrated, PruneRule::Elements,
                                  PruneRule::Channels};
  std::vector<DeviceJob> sorted;  // by rule
  std::vector<std::size_t> index;
  std::size_t end[std::size(kRules)];
  for (std::size_t r = 0; r < std::size(kRules); ++r) {
    for (std::size_t i = 0; i < jobs.size(); ++i)
      if (jobs[i].prune.rule == kRules[r]) {
        sorted.push_back(device_job(side, jobs[i], loss == nullptr ? nullptr : loss + i));
        index.push_back(i);
      }
    end[r] = sorted.size();
  }
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  const std::size_t bytes = sorted.size() * sizeof(DeviceJob);
  const Scratch scratch(bytes + sizeof(int), handle);
  auto* bad_job = reinterpret_cast<int*>(scratch.data() + bytes);
  CUDA_CHECK(cudaMemcpyAsync(scratch.data(), sorted.data(), bytes, cudaMemcpyHostToDevice, handle));
  CUDA_CHECK(cudaMemsetAsync(bad_job, 0x7f, sizeof(int), handle));
  int bad = 0x7f7f7f7f;
  std::size_t begin = 0;
  for (std::size_t r = 0; r < std::size(kRules); begin = end[r++]) {
    if (begin == end[r]) continue;
    launch_compress({.side = side,
                     .dtype = dtype,
                     .head_dim = head_dim,
                     .rule = kRules[r],
                     .kind = kind,
                     .losses = loss != nullptr,
                     .jobs = reinterpret_cast<const DeviceJob*>(scratch.data()) + begin,
                     .count = static_cast<std::int64_t>(end[r] - begin),
                     .bad_job = bad_job},
                    handle);
    if (kRules[r] != PruneRule::Elements) continue;
    CUDA_CHECK(cudaMemcpyAsync(&bad, bad_job, sizeof bad, cudaMemcpyDeviceToHost, handle));
    CUDA_CHECK(cudaStreamSynchronize(handle));
    const auto first = begin + static_cast<std::size_t>(bad);
    CHECK(first >= end[r], "job {}: the mask keeps more than two of four", index[first]);
  }
}

}  // namespace rarefy::format24::cuda
