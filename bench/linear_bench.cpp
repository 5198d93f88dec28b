// Products with weight matrices, decode and prefill, beside what the machine can read and multiply.
#include "rarefy/ops/linear.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "bench/floor.h"

namespace rarefy::ops {
namespace {

// Weights that add up to more than the last-level cache, used in turn as the layers of a model are.
struct Weights {
  Buffer memory;
  std::vector<LinearWeight> list;

  Weights(DType type, std::int64_t out, std::int64_t in) {
    const std::int64_t bytes = out * row_bytes(type, in);
    const std::int64_t count = std::max<std::int64_t>(1, (160 << 20) / bytes);
    memory = Buffer(count * bytes);
    std::mt19937_64 engine(1);
    // Any bytes do, but no exponent of ones (infinities and NaN run as fast on current CPUs; subnormals may not).
    for (std::int64_t i = 0; i < memory.size() / 8; ++i) {
      const std::uint64_t bits = engine() & 0x3f3f3f3f3f3f3f3fu;
      std::memcpy(memory.data() + 8 * i, &bits, 8);
    }
    for (std::int64_t i = 0; i < count; ++i) list.push_back({memory.data() + i * bytes, type, out, in, nullptr});
  }
};

// Of one call: bytes of weights, floating-point operations; their shares of the machine's read bandwidth and peak.
void count(benchmark::State& state, double bytes, double operations) {
  using benchmark::Counter;
  const double calls = static_cast<double>(state.iterations());
  state.counters["GB/s"] = Counter(bytes * calls * 1e-9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(operations * calls * 1e-9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes * calls / bench::read_bandwidth(), Counter::kIsRate);
  state.counters["of_fp32"] = Counter(operations * calls / bench::fp32_peak(), Counter::kIsRate);
}

void run(benchmark::State& state, DType type, std::int64_t rows, std::int64_t out, std::int64_t in,
         Precision precision) {
  const Weights weights(type, out, in);
  std::vector<float> x(static_cast<std::size_t>(rows * in), 0.5f), y(static_cast<std::size_t>(rows * out));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) - 18;
  const TensorView xv = make_view(x.data(), {rows, in}), yv = make_view(y.data(), {rows, out});
  Workspace workspace;
  Stream stream;
  std::size_t next = 0;
  for (auto _ : state) {
    linear(xv, {&weights.list[next], 1}, precision, false, {&yv, 1}, workspace, stream);
    next = (next + 1) % weights.list.size();
  }
  count(state, static_cast<double>(out * row_bytes(type, in)), 2.0 * static_cast<double>(rows * out * in));
}

// All products of one token of SmolLM2-135M: 30 layers of four calls, then the head.
void run_token(benchmark::State& state) {
  constexpr std::int64_t kLayers = 30, kHidden = 576, kKv = 192, kInner = 1536, kVocab = 49152;
  const Weights square(DType::Q4_1, kHidden, kHidden), kv(DType::Q4_1, kKv, kHidden), up(DType::Q4_1, kInner, kHidden),
      down(DType::Q4_1, kHidden, kInner), head(DType::Q8_0, kVocab, kHidden);
  std::vector<float> x(kInner, 0.5f), y(kVocab);
  Workspace workspace;
  Stream stream;
  const auto call = [&](std::int64_t in, std::vector<LinearWeight> weights) {
    std::vector<TensorView> outputs;
    float* out = y.data();
    for (const LinearWeight& w : weights) {
      outputs.push_back(make_view(out, {1, w.out}));
      out += w.out;
    }
    linear(make_view(x.data(), {1, in}), weights, Precision::Fast, false, outputs, workspace, stream);
  };
  for (auto _ : state) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      call(kHidden, {square.list[2 * layer], kv.list[2 * layer], kv.list[2 * layer + 1]});
      call(kHidden, {square.list[2 * layer + 1]});
      call(kHidden, {up.list[2 * layer], up.list[2 * layer + 1]});
      call(kInner, {down.list[layer]});
    }
    call(kHidden, {head.list[0]});
  }
  const double bytes = static_cast<double>(kLayers * (2 * row_bytes(DType::Q4_1, kHidden) * (kHidden + kKv + kInner) +
                                                      kHidden * row_bytes(DType::Q4_1, kInner)) +
                                           kVocab * row_bytes(DType::Q8_0, kHidden));
  count(state, bytes, 0);
}

struct Case {
  DType type;
  std::int64_t rows, out, in;
};

void add(const Case& c, Precision precision) {
  const std::string name = fmt::format("linear/{}/{}/{}x{}/rows:{}", precision == Precision::Fast ? "fast" : "fp32",
                                       to_string(c.type), c.out, c.in, c.rows);
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { run(state, c.type, c.rows, c.out, c.in, precision); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.2);
}

}  // namespace
}  // namespace rarefy::ops

int main(int argc, char** argv) {
  using namespace rarefy;
  using namespace rarefy::ops;
  benchmark::Initialize(&argc, argv);
  fmt::print("read {:.1f} GB/s, float32 {:.0f} GFLOP/s\n", bench::read_bandwidth() * 1e-9, bench::fp32_peak() * 1e-9);
  benchmark::RegisterBenchmark("linear/token/SmolLM2-135M", run_token)->UseRealTime()->Unit(benchmark::kMicrosecond);
  // SmolLM2-135M: feed-forward, attention output, head; then a layer of an 8B model.
  for (const DType type : {DType::Q4_1, DType::Q4_0, DType::Q8_0, DType::BF16, DType::F16, DType::F32})
    add({type, 1, 1536, 576}, Precision::Fast);
  add({DType::Q4_1, 1, 576, 1536}, Precision::Fast);
  add({DType::Q4_1, 1, 576, 576}, Precision::Fast);
  for (const DType type : {DType::Q5_0, DType::Q5_1}) add({type, 1, 1536, 576}, Precision::Fast);
  add({DType::Q8_0, 1, 49152, 576}, Precision::Fast);
  for (const DType type : {DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::BF16})
    add({type, 1, 8960, 1536}, Precision::Fast);
  for (const DType type : {DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K})
    add({type, 1, 1536, 1536}, Precision::Fp32);
  for (const std::int64_t rows : {4, 16, 32}) add({DType::Q4_1, rows, 1536, 576}, Precision::Fast);
  for (const Precision precision : {Precision::Fp32, Precision::Fast}) {
    for (const std::int64_t rows : {64, 512}) add({DType::Q4_1, rows, 1536, 576}, precision);
    add({DType::Q4_1, 512, 576, 1536}, precision);
    add({DType::F32, 512, 1536, 576}, precision);
    add({DType::Q4_K, 512, 8960, 1536}, precision);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
