// Element types of tensors and weights, 16-bit floats, and the block sizes of GGUF's quantised types.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace rarefy {

/// Element type. The names from Q8_0 on are GGUF's quantised types: rows of blocks, each with its own scales.
enum class DType : std::uint8_t { F32, F16, BF16, I32, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };

/// A block of `elements` consecutive values of one row takes `bytes` bytes; plain types have one element per block.
struct BlockSize {
  std::int64_t elements;
  std::int64_t bytes;
};

constexpr BlockSize block_size(DType type) {
  switch (type) {
    case DType::F32:
      return {1, 4};
    case DType::F16:
      return {1, 2};
    case DType::BF16:
      return {1, 2};
    case DType::I32:
      return {1, 4};
    case DType::Q8_0:
      return {32, 34};
    case DType::Q4_0:
      return {32, 18};
    case DType::Q4_1:
      return {32, 20};
    case DType::Q5_0:
      return {32, 22};
    case DType::Q5_1:
      return {32, 24};
    case DType::Q4_K:
      return {256, 144};
    case DType::Q5_K:
      return {256, 176};
    case DType::Q6_K:
      return {256, 210};
  }
  return {1, 0};
}

constexpr bool is_quantized(DType type) { return block_size(type).elements > 1; }

/// Bytes of a row of `elements` values; `elements` must be a multiple of the block.
constexpr std::int64_t row_bytes(DType type, std::int64_t elements) {
  return elements / block_size(type).elements * block_size(type).bytes;
}

std::string_view to_string(DType type);

/// IEEE binary16, stored as bits.
struct Half {
  std::uint16_t bits;
};

/// The upper half of an IEEE binary32, stored as bits.
struct BFloat16 {
  std::uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
inline float to_float(Half x) {
  _Float16 h;
  std::memcpy(&h, &x.bits, sizeof h);
  return static_cast<float>(h);
}

/// Rounds to nearest, ties to even; overflow becomes infinity, NaN stays NaN.
template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Half from_float<Half>(float x) {
  const auto h = static_cast<_Float16>(x);
  Half out;
  std::memcpy(&out.bits, &h, sizeof out.bits);
  return out;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

template <typename T>
inline constexpr DType dtype_of = DType::F32;
template <>
inline constexpr DType dtype_of<Half> = DType::F16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::BF16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::I32;

}  // namespace rarefy
