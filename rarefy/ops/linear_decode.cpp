// Decode products: every weight is read once, in its stored form.
#include <omp.h>

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/unpack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/linear_decode.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float dot(const float* a, const float* b, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
    s2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), s2);
    s3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), s3);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(dot);

namespace {

// The share of thread `thread` of `threads` in `count` rows.
std::int64_t share(std::int64_t count, int thread, int threads) { return count * thread / threads; }

void rows_of_weight(const LinearCall& call, std::size_t j, std::int64_t begin, std::int64_t end, float* unpacked) {
  const LinearWeight& weight = call.weights[j];
  float* y = call.y[j].as<float>();
  for (std::int64_t o = begin; o < end; ++o) {
    unpack(weight.dtype, weight.data + o * row_bytes(weight.dtype, weight.in), weight.in, unpacked);
    for (std::int64_t i = 0; i < call.rows; ++i) {
      float& out = y[i * weight.out + o];
      float sum = HWY_DYNAMIC_DISPATCH(dot)(unpacked, call.x + i * call.in, call.in);
      if (weight.bias != nullptr) sum += weight.bias[o];
      out = call.accumulate ? out + sum : sum;
    }
  }
}

}  // namespace

void linear_decode(const LinearCall& call, Precision, Workspace& workspace) {
  const int threads = omp_get_max_threads();
  float* unpacked = workspace.reserve_as<float>(threads * call.in);
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    for (std::size_t j = 0; j < call.weights.size(); ++j) {
      const std::int64_t out = call.weights[j].out;
      rows_of_weight(call, j, share(out, thread, omp_get_num_threads()), share(out, thread + 1, omp_get_num_threads()),
                     unpacked + thread * call.in);
    }
  }
}

}  // namespace rarefy::ops::cpu
#endif
