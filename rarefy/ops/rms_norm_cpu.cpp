// The CPU version of rms_norm.
#include <cmath>

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/rms_norm_cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float sum_of_squares(const float* x, std::int64_t dim) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + i + lanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < dim; ++i) sum += x[i] * x[i];
  return sum;
}

void norm_row(const float* x, const float* weight, std::int64_t dim, float eps, float* y) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, dim) / static_cast<float>(dim) + eps);
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto scales = hn::Set(d, scale);
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes)
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scales), hn::LoadU(d, weight + i)), d, y + i);
  for (; i < dim; ++i) y[i] = x[i] * scale * weight[i];
}

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(norm_row);

void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t dim, float eps, float* y) {
  for_rows(rows, [&](std::int64_t i) { HWY_DYNAMIC_DISPATCH(norm_row)(x + i * dim, weight, dim, eps, y + i * dim); });
}

}  // namespace rarefy::ops::cpu
#endif
