// Sealing of pages per rule, side and head_dim on one core, beside the machine's read bandwidth.
#include "rarefy/format24/compress.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "bench/floor.h"

namespace rarefy::format24 {
namespace {

constexpr int kPages = 8;  // as many as one thread seals: no parallel loop

void seal_bench(benchmark::State& state, Side side, DType dtype, PruneRule rule) {
  const int head_dim = static_cast<int>(state.range(0));
  const auto dense_bytes = static_cast<std::size_t>(dense_page_bytes(head_dim));
  const auto sparse_bytes = static_cast<std::size_t>(sparse_page_bytes(head_dim));
  std::vector<std::byte> dense(kPages * dense_bytes), sparse(kPages * sparse_bytes);
  for (std::size_t i = 0; i < dense.size() / 2; ++i) {
    const float x = 4 * std::sin(static_cast<float>(i) * 0.7f);
    const std::uint16_t bits = dtype == DType::F16 ? from_float<Half>(x).bits : from_float<BFloat16>(x).bits;
    std::memcpy(dense.data() + 2 * i, &bits, 2);
  }
  std::vector<float> weights(128);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1 + static_cast<float>(i % 7) * 0.3f;
  std::vector<CompressJob> jobs(kPages);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i] = {dense.data() + i * dense_bytes, sparse.data() + i * sparse_bytes, {}};
    jobs[i].prune = {.rule = rule, .channel_weights = weights.data(), .token_weights = weights.data()};
  }
  Stream stream;
  for (auto _ : state) compress(side, dtype, head_dim, jobs, LossKind::L1, nullptr, stream);
  using benchmark::Counter;
  const double pages = static_cast<double>(state.iterations()) * kPages;
  const double bytes = pages * static_cast<double>(dense_bytes + sparse_bytes);  // read once, written once
  state.counters["us/page"] = Counter(pages * 1e-6, Counter::kIsRate | Counter::kInvert);
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes / bench::read_bandwidth(), Counter::kIsRate);
}

BENCHMARK_CAPTURE(seal_bench, k_magnitude, Side::K, DType::F16, PruneRule::Magnitude)->Arg(64)->Arg(128);
BENCHMARK_CAPTURE(seal_bench, k_calibrated, Side::K, DType::F16, PruneRule::Calibrated)->Arg(64)->Arg(128);
BENCHMARK_CAPTURE(seal_bench, v_magnitude, Side::V, DType::F16, PruneRule::Magnitude)->Arg(64)->Arg(128);
BENCHMARK_CAPTURE(seal_bench, v_calibrated, Side::V, DType::F16, PruneRule::Calibrated)->Arg(64)->Arg(128);
BENCHMARK_CAPTURE(seal_bench, v_calibrated_bf16, Side::V, DType::BF16, PruneRule::Calibrated)->Arg(64)->Arg(128);

}  // namespace
}  // namespace rarefy::format24

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  fmt::print("read {:.1f} GB/s\n", rarefy::bench::read_bandwidth() * 1e-9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
