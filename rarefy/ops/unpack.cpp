// Vectorised dequantisation: each block is spread to bytes, then scaled to floats.
#include "rarefy/ops/unpack.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/unpack.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

#include "rarefy/ops/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float half_at(const std::uint8_t* p) {
  Half h;
  std::memcpy(&h.bits, p, sizeof h.bits);
  return to_float(h);
}

// out[i] = scale * q[i] + offset, rounded twice as the plain version does; `count` is a multiple of 16.
void scale_bytes(const std::int8_t* q, std::int64_t count, float scale, float offset, float* out) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto scales = hn::Set(d, scale);
  const auto offsets = hn::Set(d, offset);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto values = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, q + i)));
    hn::StoreU(hn::Add(hn::Mul(values, scales), offsets), d, out + i);
  }
}

// Two values a byte: the low nibbles come first, the high ones after all of them.
void spread_nibbles(const std::uint8_t* bytes, std::int64_t count, int bias, std::int8_t* q) {
  for (std::int64_t i = 0; i < count; ++i) {
    q[i] = static_cast<std::int8_t>((bytes[i] & 15) - bias);
    q[count + i] = static_cast<std::int8_t>((bytes[i] >> 4) - bias);
  }
}

void unpack_q8_0(const std::uint8_t* block, float* out) {
  scale_bytes(reinterpret_cast<const std::int8_t*>(block + 2), 32, half_at(block), 0, out);
}

void unpack_q4_0(const std::uint8_t* block, float* out) {
  std::int8_t q[32];
  spread_nibbles(block + 2, 16, 8, q);
  scale_bytes(q, 32, half_at(block), 0, out);
}

void unpack_q4_1(const std::uint8_t* block, float* out) {
  std::int8_t q[32];
  spread_nibbles(block + 4, 16, 0, q);
  scale_bytes(q, 32, half_at(block), half_at(block + 2), out);
}

// As spread_nibbles, with a fifth bit for value i: bit i of the four bytes at `high`.
void spread_five_bits(const std::uint8_t* bytes, const std::uint8_t* high, int bias, std::int8_t* q) {
  std::uint32_t bits;
  std::memcpy(&bits, high, sizeof bits);
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<std::int8_t>(((bytes[i] & 15) | (bits >> i & 1) << 4) - bias);
    q[16 + i] = static_cast<std::int8_t>((bytes[i] >> 4 | (bits >> (16 + i) & 1) << 4) - bias);
  }
}

void unpack_q5_0(const std::uint8_t* block, float* out) {
  std::int8_t q[32];
  spread_five_bits(block + 6, block + 2, 16, q);
  scale_bytes(q, 32, half_at(block), 0, out);
}

void unpack_q5_1(const std::uint8_t* block, float* out) {
  std::int8_t q[32];
  spread_five_bits(block + 8, block + 4, 0, q);
  scale_bytes(q, 32, half_at(block), half_at(block + 2), out);
}

// Eight groups of 32 values; the 6-bit scales and minima of the last four are split over two bytes. `high` (Q5_K) holds
// the fifth bits: bit j of byte i belongs to value i of group j.
void unpack_groups(const std::uint8_t* block, const std::uint8_t* nibbles, const std::uint8_t* high, float* out) {
  const float scale = half_at(block);
  const float min_scale = half_at(block + 2);
  const std::uint8_t* packed = block + 4;
  std::int8_t q[64];
  for (int j = 0; j < 8; ++j) {
    if (j % 2 == 0) spread_nibbles(nibbles + 16 * j, 32, 0, q);
    std::int8_t* group = q + 32 * (j % 2);
    if (high != nullptr)
      for (int i = 0; i < 32; ++i) group[i] = static_cast<std::int8_t>(group[i] | (high[i] >> j & 1) << 4);
    const int group_scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    const int group_min = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6 << 4);
    scale_bytes(group, 32, scale * static_cast<float>(group_scale), -(min_scale * static_cast<float>(group_min)),
                out + 32 * j);
  }
}

void unpack_q4_k(const std::uint8_t* block, float* out) { unpack_groups(block, block + 16, nullptr, out); }

void unpack_q5_k(const std::uint8_t* block, float* out) { unpack_groups(block, block + 48, block + 16, out); }

// Two halves of 128 values: 64 bytes of low nibbles, 32 bytes of high bit pairs, eight scales each.
void unpack_q6_k(const std::uint8_t* block, float* out) {
  const float scale = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const std::uint8_t* low = block + 64 * half;
    const std::uint8_t* high = block + 128 + 32 * half;
    const auto* scales = reinterpret_cast<const std::int8_t*>(block + 192 + 8 * half);
    std::int8_t q[128];
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<std::int8_t>(((low[i] & 15) | (high[i] & 3) << 4) - 32);
      q[i + 32] = static_cast<std::int8_t>(((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4) - 32);
      q[i + 64] = static_cast<std::int8_t>((low[i] >> 4 | (high[i] >> 4 & 3) << 4) - 32);
      q[i + 96] = static_cast<std::int8_t>((low[i + 32] >> 4 | high[i] >> 6 << 4) - 32);
    }
    for (int j = 0; j < 8; ++j)
      scale_bytes(q + 16 * j, 16, scale * static_cast<float>(scales[j]), 0, out + 128 * half + 16 * j);
  }
}

template <typename T>
void widen_row(const T* src, std::int64_t count, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load(d, src + i), d, out + i);
  for (; i < count; ++i) out[i] = load_one(src + i);
}

using UnpackBlock = void (*)(const std::uint8_t*, float*);

UnpackBlock block_function(DType type) {
  switch (type) {
    case DType::Q8_0:
      return unpack_q8_0;
    case DType::Q4_0:
      return unpack_q4_0;
    case DType::Q4_1:
      return unpack_q4_1;
    case DType::Q5_0:
      return unpack_q5_0;
    case DType::Q5_1:
      return unpack_q5_1;
    case DType::Q4_K:
      return unpack_q4_k;
    case DType::Q5_K:
      return unpack_q5_k;
    case DType::Q6_K:
      return unpack_q6_k;
    default:
      return nullptr;
  }
}

void unpack_row(DType type, const std::uint8_t* src, std::int64_t count, float* out) {
  if (type == DType::F32) {
    widen_row(reinterpret_cast<const float*>(src), count, out);
  } else if (type == DType::F16) {
    widen_row(reinterpret_cast<const Half*>(src), count, out);
  } else if (type == DType::BF16) {
    widen_row(reinterpret_cast<const BFloat16*>(src), count, out);
  } else {
    const UnpackBlock unpack_block = block_function(type);
    const BlockSize size = block_size(type);
    for (std::int64_t i = 0; i < count; i += size.elements, src += size.bytes) unpack_block(src, out + i);
  }
}

}  // namespace rarefy::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops {
HWY_EXPORT(unpack_row);

void unpack(DType type, const std::byte* src, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(unpack_row)(type, reinterpret_cast<const std::uint8_t*>(src), count, out);
}

}  // namespace rarefy::ops
#endif
