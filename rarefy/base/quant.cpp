// The block formats of GGUF, one plain function each.
#include "rarefy/base/quant.h"

#include <cstring>

#include "rarefy/base/check.h"

namespace rarefy {
namespace {

float half_at(const std::uint8_t* p) {
  Half h;
  std::memcpy(&h.bits, p, sizeof h.bits);
  return to_float(h);
}

/// High bit `i` of the 32 that Q5 blocks keep apart, in place as bit 4.
int fifth_bit(const std::uint8_t* bits, int i) { return (bits[i / 8] >> (i % 8) & 1) << 4; }

void q8_0(const std::uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(b[2 + i]));
}

void q4_0(const std::uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

void q4_1(const std::uint8_t* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

void q5_0(const std::uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(((b[6 + i] & 15) | fifth_bit(b + 2, i)) - 16);
    out[i + 16] = d * static_cast<float>(((b[6 + i] >> 4) | fifth_bit(b + 2, i + 16)) - 16);
  }
}

void q5_1(const std::uint8_t* b, float* out) {
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[8 + i] & 15) | fifth_bit(b + 4, i)) + m;
    out[i + 16] = d * static_cast<float>((b[8 + i] >> 4) | fifth_bit(b + 4, i + 16)) + m;
  }
}

/// Six-bit scale and minimum of group `j` of eight: the last four are split over two bytes.
void k_scale(const std::uint8_t* packed, int j, float& scale, float& min) {
  const int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
  const int m = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6 << 4);
  scale = static_cast<float>(s);
  min = static_cast<float>(m);
}

void q4_k(const std::uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int j = 0; j < 8; ++j) {
    float scale, min;
    k_scale(b + 4, j, scale, min);
    const std::uint8_t* q = b + 16 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i)
      out[32 * j + i] = d * scale * static_cast<float>(j % 2 == 0 ? q[i] & 15 : q[i] >> 4) - dmin * min;
  }
}

void q5_k(const std::uint8_t* b, float* out) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int j = 0; j < 8; ++j) {
    float scale, min;
    k_scale(b + 4, j, scale, min);
    const std::uint8_t* q = b + 48 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int low = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      const int high = (b[16 + i] >> j & 1) << 4;
      out[32 * j + i] = d * scale * static_cast<float>(low | high) - dmin * min;
    }
  }
}

void q6_k(const std::uint8_t* b, float* out) {
  const float d = half_at(b + 208);
  const auto* scales = reinterpret_cast<const std::int8_t*>(b + 192);
  for (int half = 0; half < 2; ++half)
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 32; ++i) {
        const std::uint8_t byte = b[64 * half + 32 * (part % 2) + i];
        const int low = part < 2 ? byte & 15 : byte >> 4;
        const int high = (b[128 + 32 * half + i] >> (2 * part) & 3) << 4;
        const int at = 128 * half + 32 * part + i;
        out[at] = d * static_cast<float>(scales[at / 16]) * static_cast<float>((low | high) - 32);
      }
}

template <typename T>
void plain(const std::byte* src, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, src + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    out[i] = to_float(value);
  }
}

using BlockFunction = void (*)(const std::uint8_t*, float*);

BlockFunction block_function(DType type) {
  switch (type) {
    case DType::Q8_0:
      return q8_0;
    case DType::Q4_0:
      return q4_0;
    case DType::Q4_1:
      return q4_1;
    case DType::Q5_0:
      return q5_0;
    case DType::Q5_1:
      return q5_1;
    case DType::Q4_K:
      return q4_k;
    case DType::Q5_K:
      return q5_k;
    case DType::Q6_K:
      return q6_k;
    default:
      return nullptr;
  }
}

}  // namespace

void dequantize(DType type, const std::byte* src, std::int64_t count, float* out) {
  const BlockSize size = block_size(type);
  CHECK(count >= 0 && count % size.elements == 0, "dequantize: {} values of {} (blocks of {})", count, to_string(type),
        size.elements);
  if (type == DType::F32) return plain<float>(src, count, out);
  if (type == DType::F16) return plain<Half>(src, count, out);
  if (type == DType::BF16) return plain<BFloat16>(src, count, out);
  const BlockFunction unpack = block_function(type);
  CHECK(unpack != nullptr, "dequantize: {} holds no numbers", to_string(type));
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(src);
  for (std::int64_t i = 0; i < count; i += size.elements, bytes += size.bytes) unpack(bytes, out + i);
}

}  // namespace rarefy
