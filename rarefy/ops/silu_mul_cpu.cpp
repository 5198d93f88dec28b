// The CPU version of silu_mul.
#include "rarefy/ops/cpu.h"
#include "rarefy/ops/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/silu_mul_cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(88) is the largest power that float32 holds; below x = -88 the result is under 1e-36 either way.
template <class D, class V>
V silu_times(D d, V gate, V up) {
  const V power = hn::Exp(d, hn::Min(hn::Neg(gate), hn::Set(d, 88.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), power)), up);
}

void silu_row(const float* gate, const float* up, std::int64_t dim, float* y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes)
    hn::StoreU(silu_times(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
  const hn::CappedTag<float, 1> one;
  for (; i < dim; ++i) hn::StoreU(silu_times(one, hn::LoadU(one, gate + i), hn::LoadU(one, up + i)), one, y + i);
}

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(silu_row);

void silu_mul(const float* gate, const float* up, std::int64_t rows, std::int64_t dim, float* y) {
  for_rows(rows, [&](std::int64_t i) {
    HWY_DYNAMIC_DISPATCH(silu_row)(gate + i * dim, up + i * dim, dim, y + i * dim);
  });
}

}  // namespace rarefy::ops::cpu
#endif
