// Random inputs for the tests of operations.
#pragma once
#include <cstring>
#include <random>
#include <vector>

#include "rarefy/base/dtype.h"
#include "rarefy/ops/linear.h"

namespace rarefy::ops {

inline constexpr DType kWeightTypes[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1,
                                         DType::Q5_0, DType::Q5_1, DType::Q4_K, DType::Q5_K, DType::Q6_K};

inline std::vector<float> random_floats(std::int64_t count, std::uint32_t seed, float sigma = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = normal(engine);
  return values;
}

/// A weight and the memory that it points to.
struct OwnedWeight {
  std::vector<std::byte> bytes;
  std::vector<float> bias;
  DType dtype;
  std::int64_t out, in;

  LinearWeight view() const { return {bytes.data() + 1, dtype, out, in, bias.empty() ? nullptr : bias.data()}; }
};

/// Byte offsets of the fp16 scales in a block of a quantised type.
inline std::vector<std::int64_t> scale_offsets(DType type) {
  switch (type) {
    case DType::Q4_1:
    case DType::Q5_1:
    case DType::Q4_K:
    case DType::Q5_K:
      return {0, 2};
    case DType::Q6_K:
      return {208};
    default:
      return {0};
  }
}

/// Random values as `type` stores them; the data is misaligned on purpose, as tensors in a file may be.
inline OwnedWeight random_weight(DType type, std::int64_t out, std::int64_t in, std::uint32_t seed, bool bias = false) {
  OwnedWeight w{{}, bias ? random_floats(out, seed + 1) : std::vector<float>{}, type, out, in};
  const std::int64_t bytes = out * row_bytes(type, in);
  w.bytes.resize(static_cast<std::size_t>(bytes + 1));
  std::byte* data = w.bytes.data() + 1;
  if (is_quantized(type)) {
    std::mt19937 engine(seed);
    for (std::int64_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(engine());
    std::uniform_real_distribution<float> scale(-0.01f, 0.01f);
    for (std::int64_t block = 0; block < bytes; block += block_size(type).bytes)
      for (const std::int64_t offset : scale_offsets(type)) {
        const Half h = from_float<Half>(scale(engine));
        std::memcpy(data + block + offset, &h, sizeof h);
      }
    return w;
  }
  const std::vector<float> values = random_floats(out * in, seed, 0.1f);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Half h = from_float<Half>(values[i]);
    const BFloat16 b = from_float<BFloat16>(values[i]);
    if (type == DType::F32) std::memcpy(data + 4 * i, &values[i], 4);
    if (type == DType::F16) std::memcpy(data + 2 * i, &h, 2);
    if (type == DType::BF16) std::memcpy(data + 2 * i, &b, 2);
  }
  return w;
}

}  // namespace rarefy::ops
