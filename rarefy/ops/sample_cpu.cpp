// The passes of sampling over the whole vocabulary, vectorised.
#include <algorithm>
#include <limits>

#include "rarefy/ops/cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/sample_cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Divides, for the inverse of a tiny temperature overflows.
template <class D>
void weigh(D d, float* values, float max, float temperature) {
  const auto distance = hn::Sub(hn::LoadU(d, values), hn::Set(d, max));
  hn::StoreU(hn::Exp(d, hn::Div(distance, hn::Set(d, temperature))), d, values);
}

void weights(float* values, std::size_t count, float max, float temperature) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) weigh(d, values + i, max, temperature);
  for (; i < count; ++i) weigh(one, values + i, max, temperature);
}

float largest_of(const float* values, std::size_t count) {
  const hn::ScalableTag<float> d;
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  auto top = hn::Neg(infinity);
  auto valid = hn::Lt(top, infinity);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values + i);
    valid = hn::And(valid, hn::Lt(v, infinity));
    top = hn::Max(top, v);
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, top));
  bool all = hn::AllTrue(d, valid);
  for (; i < count; ++i) {
    all = all && values[i] < std::numeric_limits<float>::infinity();
    best = std::max(best, values[i]);
  }
  return all ? best : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(weights);
HWY_EXPORT(largest_of);

float largest_logit(std::span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(largest_of)(logits.data(), logits.size());
}

void softmax_weights(std::span<float> values, float max, float temperature) {
  HWY_DYNAMIC_DISPATCH(weights)(values.data(), values.size(), max, temperature);
}

}  // namespace rarefy::ops::cpu
#endif
