// Attention on a GPU over dense, sealed and mixed caches: median times, bytes against the measured read bandwidth.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "bench/gpu.h"
#include "rarefy/attention/attention.h"
#include "rarefy/base/cuda.h"

namespace rarefy::bench {
namespace {

using format24::kBlock;

struct Case {
  const char* name;
  int batch, tokens;
  double sealed_k, sealed_v;  // share of the blocks
};

constexpr int kHeadDim = 128, kKvHeads = 8, kQHeads = 32;

/// Random pages: normal values, valid metadata, repeated until the pool is full.
Buffer random_pool(std::int64_t pages, std::int64_t page_bytes, bool sparse, Stream& stream) {
  constexpr std::int64_t kSample = 256;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> sample(static_cast<std::size_t>(kSample * page_bytes / 2));
  const std::int64_t values = sparse ? format24::nonzero_bytes(kHeadDim) / 2 : page_bytes / 2;
  static constexpr unsigned kPairs[] = {0x4, 0x8, 0xc, 0x9, 0xd, 0xe};
  for (std::int64_t page = 0; page < kSample; ++page)
    for (std::int64_t i = 0; i < page_bytes / 2; ++i) {
      unsigned bits = 0;
      if (i < values)
        bits = from_float<BFloat16>(normal(random)).bits;
      else
        for (int group = 0; group < 4; ++group) bits |= kPairs[random() % 6] << (4 * group);
      sample[static_cast<std::size_t>(page * page_bytes / 2 + i)] = static_cast<std::uint16_t>(bits);
    }
  Buffer pool(std::max<std::int64_t>(pages, 1) * page_bytes, stream.device());
  for (std::int64_t done = 0; done < pages; done += kSample)
    copy_bytes(pool.data() + done * page_bytes, sample.data(), std::min(kSample, pages - done) * page_bytes, stream);
  stream.synchronize();
  return pool;
}

/// Pages lie in random order, as after many allocations.
class Cache {
 public:
  Cache(const Case& c, Stream& stream) {
    const int blocks = (c.tokens + kBlock - 1) / kBlock;
    const auto entries = static_cast<std::size_t>(c.batch) * kKvHeads * static_cast<std::size_t>(blocks);
    std::mt19937 random(2);
    std::uniform_real_distribution<double> uniform;
    std::vector<std::int32_t> maps[2], order(2 * entries);
    std::int32_t dense = 0, sparse = 0;
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    maps[0].resize(entries);
    maps[1].resize(entries);
    for (const std::int32_t i : order) {
      const bool v = static_cast<std::size_t>(i) >= entries;
      maps[v][static_cast<std::size_t>(i) % entries] =
          uniform(random) < (v ? c.sealed_v : c.sealed_k) ? -++sparse : ++dense;
    }
    dense_ = random_pool(dense, format24::dense_page_bytes(kHeadDim), false, stream);
    sparse_ = random_pool(sparse, format24::sparse_page_bytes(kHeadDim), true, stream);
    bytes_ = dense * format24::dense_page_bytes(kHeadDim) + sparse * format24::sparse_page_bytes(kHeadDim);
    std::vector<std::int32_t> ints(maps[0]);
    ints.insert(ints.end(), maps[1].begin(), maps[1].end());
    for (int b = 0; b < c.batch; ++b) ints.push_back(b);
    ints.insert(ints.end(), static_cast<std::size_t>(c.batch), c.tokens);
    ints_ = Buffer(static_cast<std::int64_t>(ints.size()) * 4, stream.device());
    copy_bytes(ints_.data(), ints.data(), ints_.size(), stream);
    stream.synchronize();
    view_.dtype = DType::BF16;
    view_.head_dim = kHeadDim;
    view_.kv_heads = kKvHeads;
    view_.batch = c.batch;
    view_.max_blocks = blocks;
    view_.dense_pages = dense;
    view_.sparse_pages = sparse;
    view_.dense = dense_.data();
    view_.sparse = sparse_.data();
    view_.k_map = ints_.as<std::int32_t>();
    view_.v_map = view_.k_map + entries;
    view_.slots = view_.v_map + entries;
    view_.kv_len = view_.slots + c.batch;
    view_.k_sealed = c.sealed_k > 0;
    view_.v_sealed = c.sealed_v > 0;
    view_.device = stream.device();
  }
  const KvView& view() const { return view_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  Buffer dense_, sparse_, ints_;
  std::int64_t bytes_ = 0;
  KvView view_;
};

void run_decode(const Case& c, double bandwidth, Stream& stream, nlohmann::json& out) {
  const Cache cache(c, stream);
  std::vector<std::uint16_t> q(static_cast<std::size_t>(c.batch) * kQHeads * kHeadDim);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::uint16_t& x : q) x = from_float<BFloat16>(normal(random)).bits;
  const Buffer q_device(static_cast<std::int64_t>(q.size()) * 2, stream.device()), o(q_device.size(), stream.device());
  copy_bytes(q_device.data(), q.data(), q_device.size(), stream);
  const Shape shape{c.batch, kQHeads, kHeadDim};
  Workspace workspace(stream.device());
  const attention::Options options{
      .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)),
      .split_blocks = attention::decode_split_blocks(c.batch * kKvHeads, (c.tokens + kBlock - 1) / kBlock,
                                                     cuda::properties(stream.device().index).multiprocessors)};
  const Timing t = time_gpu(stream, [&] {
    attention::decode({q_device.data(), DType::BF16, shape, stream.device()}, cache.view(), {}, options,
                      {o.data(), DType::BF16, shape, stream.device()}, {}, workspace, stream);
  });
  const double rate = static_cast<double>(cache.bytes()) / t.median_s;
  fmt::print("| decode | {} | {} | {} | {:.1f} | {:.1f} - {:.1f} | {:.2f} | {:.0f} % |\n", c.name, c.batch, c.tokens,
             t.median_s * 1e6, t.low_s * 1e6, t.high_s * 1e6, rate / 1e12, 100 * rate / bandwidth);
  std::fflush(stdout);
  out.push_back({{"operation", "decode"},
                 {"cache", c.name},
                 {"batch", c.batch},
                 {"tokens", c.tokens},
                 {"us", t.median_s * 1e6},
                 {"us_low", t.low_s * 1e6},
                 {"us_high", t.high_s * 1e6},
                 {"bytes", cache.bytes()},
                 {"share_of_bandwidth", rate / bandwidth}});
}

/// A whole prompt in one chunk, causal: 2 products of head_dim multiply-adds per query, head and key it sees.
void run_prefill(const Case& c, Stream& stream, nlohmann::json& out) {
  const Cache cache(c, stream);
  const std::int64_t rows = std::int64_t{c.batch} * c.tokens, values = rows * kQHeads * kHeadDim;
  const Buffer q = random_pool(values * 2 / format24::dense_page_bytes(kHeadDim), format24::dense_page_bytes(kHeadDim),
                               false, stream);
  const Buffer o(values * 2, stream.device());
  std::vector<std::int32_t> q_start;
  for (int b = 0; b <= c.batch; ++b) q_start.push_back(b * c.tokens);
  const Shape shape{rows, kQHeads, kHeadDim};
  Workspace workspace(stream.device());
  const attention::Options options{.scale = 1 / std::sqrt(static_cast<float>(kHeadDim))};
  const Timing t = time_gpu(
      stream,
      [&] {
        attention::prefill({q.data(), DType::BF16, shape, stream.device()}, q_start, cache.view(), {}, options,
                           {o.data(), DType::BF16, shape, stream.device()}, {}, workspace, stream);
      },
      5, 1);
  const double operations = 4.0 * kHeadDim * kQHeads * c.batch * (0.5 * c.tokens * (c.tokens + 1.0));
  fmt::print("| prefill | {} | {} | {} | {:.0f} | {:.0f} - {:.0f} | {:.0f} TFLOP/s | |\n", c.name, c.batch, c.tokens,
             t.median_s * 1e6, t.low_s * 1e6, t.high_s * 1e6, operations / t.median_s / 1e12);
  std::fflush(stdout);
  out.push_back({{"operation", "prefill"},
                 {"cache", c.name},
                 {"batch", c.batch},
                 {"tokens", c.tokens},
                 {"us", t.median_s * 1e6},
                 {"us_low", t.low_s * 1e6},
                 {"us_high", t.high_s * 1e6},
                 {"tflops", operations / t.median_s / 1e12}});
}

}  // namespace
}  // namespace rarefy::bench

int main(int argc, char** argv) {
  using namespace rarefy;
  using namespace rarefy::bench;
  Stream stream(Device{Device::Kind::Cuda, 0});
  const double bandwidth = gpu_read_bandwidth(stream);
  nlohmann::json out = nlohmann::json::array();
  fmt::print("read bandwidth {:.2f} TB/s; bf16, {} query heads, {} KV heads, head_dim {}\n", bandwidth / 1e12, kQHeads,
             kKvHeads, kHeadDim);
  fmt::print(
      "| operation | cache | batch | tokens | us, median | spread | TB/s | of read bandwidth "
      "|\n|---|---|---:|---:|---:|---:|---:|---:|\n");
  const Case cases[] = {
      {"dense", 8, 32768, 0, 0},          {"V sealed", 8, 32768, 0, 1},     {"K, V sealed", 8, 32768, 1, 1},
      {"mixed 0.25", 8, 32768, .25, .25}, {"mixed 0.5", 8, 32768, .5, .5},  {"mixed 0.75", 8, 32768, .75, .75},
      {"dense", 1, 131072, 0, 0},         {"K, V sealed", 1, 131072, 1, 1}, {"dense", 1, 32768, 0, 0},
      {"K, V sealed", 1, 32768, 1, 1},    {"dense", 32, 32768, 0, 0},       {"K, V sealed", 32, 32768, 1, 1}};
  for (const Case& c : cases) run_decode(c, bandwidth, stream, out);
  for (const Case& c :
       {Case{"dense", 8, 32768, 0, 0}, Case{"V sealed", 8, 32768, 0, 1}, Case{"K, V sealed", 8, 32768, 1, 1}})
    run_prefill(c, stream, out);
  if (argc > 1) {
    std::FILE* file = std::fopen(argv[1], "w");
    if (file == nullptr) return 74;
    fmt::print(file, "{}\n", out.dump(1));
    std::fclose(file);
  }
  return 0;
}
