// Loads of float32, fp16 and bf16 values as float32 vectors, any alignment; included once per Highway target.
#include <hwy/highway.h>

#include <cstring>

#include "rarefy/base/dtype.h"

#if defined(RAREFY_OPS_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RAREFY_OPS_WIDEN_INL_H_
#undef RAREFY_OPS_WIDEN_INL_H_
#else
#define RAREFY_OPS_WIDEN_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
hn::Vec<D> load(D d, const Half* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}
template <class D>
hn::Vec<D> load(D d, const BFloat16* p) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

template <typename T>
float load_one(const T* p) {
  T value;
  std::memcpy(&value, p, sizeof value);  // weights have any alignment
  return to_float(value);
}

}  // namespace rarefy::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
