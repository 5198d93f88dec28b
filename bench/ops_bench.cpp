// The small operations of a layer, on one token and on a prefill chunk, beside the machine's read bandwidth.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "bench/floor.h"
#include "rarefy/ops/embedding.h"
#include "rarefy/ops/rms_norm.h"
#include "rarefy/ops/rope.h"
#include "rarefy/ops/sample.h"
#include "rarefy/ops/silu_mul.h"

namespace rarefy::ops {
namespace {

// SmolLM2-135M.
constexpr std::int64_t kHidden = 576, kInner = 1536, kHeads = 9, kHeadDim = 64, kVocab = 49152;

std::vector<float> waves(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 4 * std::sin(static_cast<float>(i) * 0.7f);
  return values;
}

// `bytes` are those that the operation must read and write once.
void count(benchmark::State& state, std::int64_t bytes) {
  using benchmark::Counter;
  const double total = static_cast<double>(bytes) * static_cast<double>(state.iterations());
  state.counters["GB/s"] = Counter(total * 1e-9, Counter::kIsRate);
  state.counters["of_read"] = Counter(total / bench::read_bandwidth(), Counter::kIsRate);
}

void rms_norm_bench(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  std::vector<float> x = waves(rows * kHidden), weight = waves(kHidden), y(x.size());
  Stream stream;
  for (auto _ : state)
    rms_norm(make_view(x.data(), {rows, kHidden}), make_view(weight.data(), {kHidden}), 1e-5f,
             make_view(y.data(), {rows, kHidden}), stream);
  count(state, 8 * rows * kHidden);
}

void silu_mul_bench(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  std::vector<float> gate = waves(rows * kInner), up = gate, y(gate.size());
  const Shape shape{rows, kInner};
  Stream stream;
  for (auto _ : state)
    silu_mul(make_view(gate.data(), shape), make_view(up.data(), shape), make_view(y.data(), shape), stream);
  count(state, 12 * rows * kInner);
}

void rope_bench(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const bool ordered = state.range(1) != 0;
  std::vector<float> x = waves(tokens * kHeads * kHeadDim), y(x.size());
  std::vector<float> table = waves(tokens * kHeadDim);
  std::vector<std::int32_t> order(kHeadDim);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(kHeadDim - 1 - i);
  const Shape shape{tokens, kHeads, kHeadDim};
  Stream stream;
  for (auto _ : state)
    rope(make_view(x.data(), shape), make_view(table.data(), {tokens, 2, kHeadDim / 2}), RopeLayout::Interleaved,
         ordered ? order.data() : nullptr, 1, make_view(y.data(), shape), stream);
  count(state, 8 * tokens * kHeads * kHeadDim);
}

void rope_table_bench(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens), 7000);
  const Rope rope{RopeLayout::Halves, std::vector<double>(kHeadDim / 2, 0.37), 1};
  std::vector<float> table(static_cast<std::size_t>(tokens * kHeadDim));
  Stream stream;
  for (auto _ : state) rope_table(positions, rope, make_view(table.data(), {tokens, 2, kHeadDim / 2}), stream);
  count(state, 4 * tokens * kHeadDim);
}

void embedding_bench(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  const std::vector<std::byte> bytes(static_cast<std::size_t>(kVocab * row_bytes(DType::Q8_0, kHidden)));
  const LinearWeight table{bytes.data(), DType::Q8_0, kVocab, kHidden, nullptr};
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % kVocab);
  std::vector<float> y(static_cast<std::size_t>(tokens * kHidden));
  Stream stream;
  for (auto _ : state) embedding(ids.data(), tokens, table, 1, make_view(y.data(), {tokens, kHidden}), stream);
  count(state, tokens * (row_bytes(DType::Q8_0, kHidden) + 4 * kHidden));
}

void sample_bench(benchmark::State& state, const SamplingParams& params) {
  const std::vector<float> logits = waves(kVocab);
  std::uint64_t step = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sample(logits, params, step++));
  count(state, 4 * kVocab);
}

BENCHMARK(rms_norm_bench)->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK(silu_mul_bench)->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK(rope_bench)->ArgsProduct({{1, 512}, {0, 1}})->UseRealTime();
BENCHMARK(rope_table_bench)->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK(embedding_bench)->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK_CAPTURE(sample_bench, greedy, SamplingParams{});
BENCHMARK_CAPTURE(sample_bench, temperature, SamplingParams{.temperature = 0.8f});
BENCHMARK_CAPTURE(sample_bench, top_k_40,
                  SamplingParams{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f});
BENCHMARK_CAPTURE(sample_bench, top_p, SamplingParams{.temperature = 0.8f, .top_p = 0.9f});

}  // namespace
}  // namespace rarefy::ops

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  fmt::print("read {:.1f} GB/s\n", rarefy::bench::read_bandwidth() * 1e-9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
