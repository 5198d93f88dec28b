// Decode and prefill attention over dense and sealed caches, beside what the machine can read and multiply.
#include "rarefy/attention/attention.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "bench/floor.h"

namespace rarefy::attention {
namespace {

struct Case {
  int head_dim;
  int kv_heads;
  int group;
  int depth;  // tokens of the one sequence
  bool sealed_k;
  bool sealed_v;
};

// Layers of a cache that add up to more than the last-level cache, used in turn as a model does. Pages lie in the order
// in which a growing sequence takes them: block by block, head by head, K then V.
class Layers {
 public:
  explicit Layers(const Case& c) : kv_len_(c.depth) {
    const std::int32_t blocks = (c.depth + kBlock - 1) / kBlock, entries = blocks * c.kv_heads;
    const std::int64_t dense = format24::dense_page_bytes(c.head_dim), sparse = format24::sparse_page_bytes(c.head_dim);
    layer_bytes_ = entries * ((c.sealed_k ? sparse : dense) + (c.sealed_v ? sparse : dense));
    const auto count = static_cast<int>(std::max<std::int64_t>(2, (160 << 20) / layer_bytes_));
    // Any bits do as 2:4 metadata; values keep small exponents: no infinity, no NaN.
    memory_ = Buffer(count * layer_bytes_);
    std::mt19937_64 engine(1);
    for (std::int64_t i = 0; i < memory_.size() / 8; ++i) {
      const std::uint64_t bits = engine() & 0xbfffbfffbfffbfffu;
      std::memcpy(memory_.data() + 8 * i, &bits, 8);
    }
    k_map_.resize(static_cast<std::size_t>(entries));
    v_map_.resize(k_map_.size());
    std::int32_t dense_pages = 0, sparse_pages = 0;
    for (std::int32_t i = 0; i < blocks; ++i) {
      for (std::int32_t h = 0; h < c.kv_heads; ++h) {
        k_map_[h * blocks + i] = c.sealed_k ? -++sparse_pages : ++dense_pages;
        v_map_[h * blocks + i] = c.sealed_v ? -++sparse_pages : ++dense_pages;
      }
    }
    for (int layer = 0; layer < count; ++layer) {
      const std::byte* at = memory_.data() + layer * layer_bytes_;
      KvView& view = views_.emplace_back();
      view.head_dim = c.head_dim;
      view.kv_heads = c.kv_heads;
      view.batch = 1;
      view.max_blocks = blocks;
      view.dense_pages = dense_pages;
      view.sparse_pages = sparse_pages;
      view.dense = at;
      view.sparse = at + dense_pages * dense;
      view.k_map = k_map_.data();
      view.v_map = v_map_.data();
      view.slots = &slot_;
      view.kv_len = &kv_len_;
    }
  }
  const KvView& next() { return views_[next_++ % views_.size()]; }
  std::int64_t layer_bytes() const { return layer_bytes_; }

 private:
  Buffer memory_;
  std::vector<std::int32_t> k_map_, v_map_;
  std::vector<KvView> views_;
  std::int64_t layer_bytes_ = 0;
  std::int32_t slot_ = 0;
  std::int32_t kv_len_;
  std::size_t next_ = 0;
};

// `q_len` 0: decode. Operations are those of dense attention, whatever the pages are.
void run(benchmark::State& state, const Case& c, int q_len) {
  Layers layers(c);
  const int rows = q_len == 0 ? 1 : q_len, q_heads = c.kv_heads * c.group;
  std::vector<float> q(static_cast<std::size_t>(rows * q_heads * c.head_dim)), o(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 37) * 0.05f - 0.9f;
  const TensorView qv = make_view(q.data(), {rows, q_heads, c.head_dim}), ov = make_view(o.data(), qv.shape);
  const std::vector<std::int32_t> q_start = {0, rows};
  const Options options{.scale = 1 / std::sqrt(static_cast<float>(c.head_dim))};
  Workspace workspace;
  Stream stream;
  for (auto _ : state) {
    if (q_len == 0)
      decode(qv, layers.next(), {}, options, ov, {}, workspace, stream);
    else
      prefill(qv, q_start, layers.next(), {}, options, ov, {}, workspace, stream);
  }
  using benchmark::Counter;
  const double calls = static_cast<double>(state.iterations());
  const double bytes = calls * static_cast<double>(layers.layer_bytes());
  const double keys = static_cast<double>(rows) * (c.depth - (rows - 1) / 2.0);
  const double operations = calls * 4 * keys * q_heads * c.head_dim;
  if (q_len == 0) {
    state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsRate);
    state.counters["of_read"] = Counter(bytes / bench::read_bandwidth(), Counter::kIsRate);
  }
  state.counters["GFLOP/s"] = Counter(operations * 1e-9, Counter::kIsRate);
  state.counters["of_fp32"] = Counter(operations / bench::fp32_peak(), Counter::kIsRate);
}

void add(const Case& c, int q_len) {
  const char* kind = c.sealed_k ? "sealed_kv" : c.sealed_v ? "sealed_v" : "dense";
  const std::string name =
      fmt::format("{}/d{}/g{}/depth:{}/{}", q_len == 0 ? "decode" : "prefill512", c.head_dim, c.group, c.depth, kind);
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run(state, c, q_len); })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.2);
}

}  // namespace
}  // namespace rarefy::attention

int main(int argc, char** argv) {
  using namespace rarefy;
  benchmark::Initialize(&argc, argv);
  fmt::print("read {:.1f} GB/s, float32 {:.0f} GFLOP/s\n", bench::read_bandwidth() * 1e-9, bench::fp32_peak() * 1e-9);
  for (const int q_len : {0, 512})
    for (const auto& [head_dim, kv_heads, group] : {std::tuple{64, 3, 3}, {128, 8, 4}})
      for (const int depth : {1024, 8192, 32768})
        for (const auto& [k, v] : {std::pair{false, false}, {false, true}, {true, true}})
          attention::add({head_dim, kv_heads, group, depth, k, v}, q_len);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
