// Activations of decode products to int8.
#include "rarefy/ops/linear_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/linear_quantize.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Largest |x| of `count` values (a multiple of 32); NaN if one of them is not finite.
float largest(const float* x, std::int64_t count) {
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto top = hn::Zero(d);
  auto poison = hn::Zero(d);  // 0 x is NaN where x is not finite, which a maximum would lose
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    top = hn::Max(top, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(d), poison);
  }
  return hn::GetLane(hn::MaxOfLanes(d, top)) + hn::GetLane(hn::SumOfLanes(d, poison));
}

// Sixteen values to int8; returns their sum.
std::int32_t quantize_16(const float* x, float inverse, std::int8_t* q) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d32);
  for (std::int64_t i = 0; i < 16; i += lanes) {
    const auto v = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    sum = hn::Add(sum, v);
    hn::StoreU(hn::DemoteTo(d8, v), d8, q + i);
  }
  return hn::GetLane(hn::SumOfLanes(d32, sum));
}

// One term of one group; leaves in `rest` what it did not catch.
void quantize_group(const float* x, std::int64_t group, std::int64_t at, std::int64_t in, std::int64_t term,
                    const QuantizedRows& rows, float* rest) {
  const float top = largest(x, group);
  const bool usable = top > 1e-30f;  // below, 127 / top would overflow; such activations count as zero
  const float step = usable ? top / 127 : top * 0;
  const float inverse = usable ? 127 / top : 0;
  std::int8_t* q = rows.q + term * in + at;
  for (std::int64_t i = 0; i < group; i += 32) {
    const std::int32_t low = quantize_16(x + i, inverse, q + i);
    const std::int32_t high = quantize_16(x + i + 16, inverse, q + i + 16);
    std::int16_t* sum16 = rows.sum16 + term * (in / 16) + (at + i) / 16;
    sum16[0] = static_cast<std::int16_t>(low);
    sum16[1] = static_cast<std::int16_t>(high);
    const std::int64_t block = term * (in / 32) + (at + i) / 32;
    rows.scale[block] = step;
    rows.sum[block] = step * static_cast<float>(low + high);
  }
  if (rest == nullptr) return;
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < group; i += lanes) {
    const auto caught = hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, q + i))), hn::Set(d, step));
    hn::StoreU(hn::Sub(hn::LoadU(d, x + i), caught), d, rest + i);
  }
}

void quantize(const float* x, std::int64_t in, std::int64_t group, std::int64_t row, const QuantizedRows& rows) {
  float rest[256];
  for (std::int64_t at = 0; at < in; at += group) {
    quantize_group(x + at, group, at, in, 2 * row, rows, rest);
    quantize_group(rest, group, at, in, 2 * row + 1, rows, nullptr);
  }
}

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(quantize);

void quantize_row(const float* x, std::int64_t in, std::int64_t group, std::int64_t row, const QuantizedRows& rows) {
  HWY_DYNAMIC_DISPATCH(quantize)(x, in, group, row, rows);
}

}  // namespace rarefy::ops::cpu
#endif
