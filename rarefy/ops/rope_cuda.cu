// CUDA versions of rope_table and rope.
#include "rarefy/base/element.cuh"
#include "rarefy/ops/cuda.h"
#include "rarefy/ops/launch.cuh"

namespace rarefy::ops::cuda {
namespace {

/// A kernel's argument: no copy to the device is needed.
struct Frequencies {
  double inverse[kMaxRopeHeadDim / 2];
};

__global__ void rope_table_kernel(const std::int32_t* positions, std::int64_t tokens, const Frequencies frequencies,
                                  int half, double scale, float* table) {
  for (std::int64_t i = first_index(); i < tokens * half; i += index_stride()) {
    const std::int64_t token = i / half;
    const int pair = static_cast<int>(i % half);
    double sine, cosine;
    sincos(positions[token] * frequencies.inverse[pair], &sine, &cosine);
    table[token * 2 * half + pair] = static_cast<float>(scale * cosine);
    table[token * 2 * half + half + pair] = static_cast<float>(scale * sine);
  }
}

struct RopeSizes {
  std::int64_t tokens;
  int heads, head_dim, rotary, group;
};

template <typename T>
__global__ void rope_kernel(const T* x, const float* table, RopeLayout layout, const std::int32_t* order,
                            const RopeSizes n, T* y) {
  const std::int64_t count = n.tokens * n.heads * n.head_dim;
  const int half = n.rotary / 2;
  for (std::int64_t i = first_index(); i < count; i += index_stride()) {
    const int out = static_cast<int>(i % n.head_dim), head = static_cast<int>(i / n.head_dim % n.heads);
    const std::int64_t row = i / n.head_dim;
    const int channel = order != nullptr ? order[head / n.group * n.head_dim + out] : out;
    const T* from = x + row * n.head_dim;
    if (channel >= n.rotary) {
      y[i] = from[channel];
      continue;
    }
    const bool halves = layout == RopeLayout::Halves;
    const int pair = halves ? channel % half : channel / 2;
    const bool second = halves ? channel >= half : channel % 2 == 1;
    const float a = to_f32(from[halves ? pair : 2 * pair]), b = to_f32(from[halves ? pair + half : 2 * pair + 1]);
    const float* turn = table + row / n.heads * n.rotary;
    const float cosine = turn[pair], sine = turn[half + pair];
    y[i] = from_f32<T>(second ? b * cosine + a * sine : a * cosine - b * sine);
  }
}

}  // namespace

void rope_table(std::span<const std::int32_t> positions, const Rope& rope, float* table, Stream& stream) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const auto half = static_cast<std::int64_t>(rope.inv_freq.size());
  if (tokens * half == 0) return;
  Frequencies frequencies{};
  std::copy(rope.inv_freq.begin(), rope.inv_freq.end(), frequencies.inverse);
  rope_table_kernel<<<blocks_for(tokens * half), kThreads, 0, handle(stream)>>>(
      positions.data(), tokens, frequencies, static_cast<int>(half), rope.scale, table);
  CUDA_CHECK_LAUNCH("rope_table_kernel");
}

void rope(const TensorView& x, const TensorView& table, RopeLayout layout, const std::int32_t* order,
          std::int64_t kv_heads, const TensorView& y, Stream& stream) {
  const RopeSizes n{x.shape[0], static_cast<int>(x.shape[1]), static_cast<int>(x.shape[2]),
                    static_cast<int>(2 * table.shape[2]), static_cast<int>(x.shape[1] / kv_heads)};
  if (x.shape.elements() == 0) return;
  with_element(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    rope_kernel<<<blocks_for(x.shape.elements()), kThreads, 0, handle(stream)>>>(
        reinterpret_cast<const T*>(x.data), table.as<float>(), layout, order, n, reinterpret_cast<T*>(y.data));
  });
  CUDA_CHECK_LAUNCH("rope_kernel");
}

}  // namespace rarefy::ops::cuda
