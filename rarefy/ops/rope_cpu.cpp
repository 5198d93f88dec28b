// The CPU versions of rope_table and rope.
#include <algorithm>
#include <array>
#include <cmath>

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/for_rows.h"

namespace rarefy::ops::cpu {
namespace {

// `stride` between the two channels of a pair, `step` between pairs: (half, 1) for Halves, (1, 2) for Interleaved.
void rotate(const float* x, const float* cosines, const float* sines, std::int64_t half, std::int64_t stride,
            std::int64_t step, float* __restrict y) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i * step];
    const float b = x[i * step + stride];
    y[i * step] = a * cosines[i] - b * sines[i];
    y[i * step + stride] = b * cosines[i] + a * sines[i];
  }
}

void rotate_head(const float* x, const float* table, RopeLayout layout, const RopeShape& shape, float* y) {
  const std::int64_t half = shape.rotary / 2;
  // Two calls, so that the strides are constants where the loop is compiled.
  if (layout == RopeLayout::Halves)
    rotate(x, table, table + half, half, half, 1, y);
  else
    rotate(x, table, table + half, half, 1, 2, y);
  std::copy(x + shape.rotary, x + shape.head_dim, y + shape.rotary);
}

void rotate_head_ordered(const float* x, const float* table, RopeLayout layout, const std::int32_t* order,
                         const RopeShape& shape, float* y) {
  std::array<float, kMaxRopeHeadDim> rotated;
  rotate_head(x, table, layout, shape, rotated.data());
  for (std::int64_t i = 0; i < shape.head_dim; ++i) y[i] = rotated[static_cast<std::size_t>(order[i])];
}

}  // namespace

void rope_table(std::span<const std::int32_t> positions, const Rope& rope, float* table) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const auto half = static_cast<std::int64_t>(rope.inv_freq.size());
  const double scale = rope.scale;
  for_rows(tokens, [&](std::int64_t t) {
    float* row = table + t * 2 * half;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = positions[static_cast<std::size_t>(t)] * rope.inv_freq[static_cast<std::size_t>(i)];
      row[i] = static_cast<float>(scale * std::cos(angle));
      row[half + i] = static_cast<float>(scale * std::sin(angle));
    }
  });
}

void rope(const float* x, const float* table, RopeLayout layout, const std::int32_t* order, const RopeShape& shape,
          float* y) {
  for_rows(shape.tokens, [&](std::int64_t t) {
    const float* row = table + t * shape.rotary;
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t offset = (t * shape.heads + h) * shape.head_dim;
      if (order == nullptr)
        rotate_head(x + offset, row, layout, shape, y + offset);
      else
        rotate_head_ordered(x + offset, row, layout, order + h / shape.group * shape.head_dim, shape, y + offset);
    }
  });
}

}  // namespace rarefy::ops::cpu
