// Measures read bandwidth and the float32 peak with all threads.
#include "bench/floor.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "rarefy/base/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/floor.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rarefy::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sum of `count` floats: the result only keeps the loads alive.
float sum(const float* x, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::int64_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(d, x + i));
    b = hn::Add(b, hn::Load(d, x + i + lanes));
    c = hn::Add(c, hn::Load(d, x + i + 2 * lanes));
    e = hn::Add(e, hn::Load(d, x + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

// Ten chains of fused multiply-adds hide their latency. Returns the operations done.
double multiply_adds(std::int64_t rounds, float* out) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f), y = hn::Set(d, 0.001f);
  auto a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x;
  for (std::int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y), a1 = hn::MulAdd(a1, x, y), a2 = hn::MulAdd(a2, x, y), a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y), a5 = hn::MulAdd(a5, x, y), a6 = hn::MulAdd(a6, x, y), a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y), a9 = hn::MulAdd(a9, x, y);
  }
  const auto total = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)),
                             hn::Add(hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)), hn::Add(a8, a9)));
  *out = hn::GetLane(hn::SumOfLanes(d, total));
  return static_cast<double>(rounds) * 10 * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace rarefy::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::bench {
HWY_EXPORT(sum);
HWY_EXPORT(multiply_adds);

namespace {
volatile float sink = 0;

double measure_bandwidth() {
  constexpr std::int64_t kBytes = 256 << 20;
  const Buffer buffer(kBytes);
  std::memset(buffer.data(), 0, kBytes);
  double best = 0;
  for (int round = 0; round < 8; ++round) {
    float total = 0;
    const double start = omp_get_wtime();
#pragma omp parallel reduction(+ : total)
    {
      const std::int64_t count = kBytes / 4 / omp_get_num_threads() / 64 * 64;
      total += HWY_DYNAMIC_DISPATCH(sum)(buffer.as<float>() + omp_get_thread_num() * count, count);
    }
    best = std::max(best, kBytes / (omp_get_wtime() - start));
    sink = total;
  }
  return best;
}

double measure_peak() {
  double best = 0;
  for (int round = 0; round < 8; ++round) {
    double operations = 0;
    const double start = omp_get_wtime();
#pragma omp parallel reduction(+ : operations)
    {
      float out = 0;
      operations += HWY_DYNAMIC_DISPATCH(multiply_adds)(5'000'000, &out);
      sink = out;
    }
    best = std::max(best, operations / (omp_get_wtime() - start));
  }
  return best;
}
}  // namespace

double read_bandwidth() {
  static const double bytes_per_second = measure_bandwidth();
  return bytes_per_second;
}

double fp32_peak() {
  static const double operations_per_second = measure_peak();
  return operations_per_second;
}

}  // namespace rarefy::bench
#endif
