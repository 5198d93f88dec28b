// Checks the CUDA compressor, token weights and choice of blocks against the CPU's, then times them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu.h"
#include "rarefy/base/buffer.h"
#include "rarefy/base/cuda.h"
#include "rarefy/base/cuda_check.h"
#include "rarefy/base/element.cuh"
#include "rarefy/cache/token_weights.h"
#include "rarefy/cache/token_weights_cuda.h"
#include "rarefy/format24/compress_cpu.h"
#include "rarefy/format24/compress_cuda.h"

namespace rarefy {
namespace {

namespace cpu = format24::cpu;
using format24::compress;
using format24::CompressJob;
using format24::decompress;
using format24::dense_offset;
using format24::dense_page_bytes;
using format24::kBlock;
using format24::LossKind;
using format24::nonzero_bytes;
using format24::PruneRule;
using format24::Side;
using format24::sparse_page_bytes;

int failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  if (++failures <= 40) std::printf("FAIL %s\n", what.c_str());
}

/// A copy of host data on the device.
template <typename T>
struct OnDevice {
  Buffer buffer;
  OnDevice(const std::vector<T>& host, Stream& stream)
      : buffer(static_cast<std::int64_t>(host.size() * sizeof(T)), stream.device()) {
    copy_bytes(buffer.data(), host.data(), buffer.size(), stream);
  }
  T* data() const { return buffer.as<T>(); }
};

template <typename T>
std::vector<T> to_host(const T* data, std::size_t count, Stream& stream) {
  std::vector<T> out(count);
  copy_bytes(out.data(), data, static_cast<std::int64_t>(count * sizeof(T)), stream);
  stream.synchronize();
  return out;
}

std::uint16_t bits_of(DType dtype, float x) {
  return dtype == DType::F16 ? from_float<Half>(x).bits : from_float<BFloat16>(x).bits;
}
bool is_nan(DType dtype, std::uint16_t bits) { return (bits & 0x7fff) > (dtype == DType::F16 ? 0x7c00 : 0x7f80); }

// ---- Compression
// -----------------------------------------------------------------------------------------------------

constexpr int kKinds = 7;

/// A page of one of several kinds: random, few distinct values, equal, zero, not finite, any bits, tiny.
std::vector<std::uint16_t> make_page(DType dtype, int head_dim, int kind, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(kBlock * head_dim));
  for (auto& x : out) {
    float value = normal(random);
    if (kind == 1) value = static_cast<float>(static_cast<int>(random() % 5) - 2);
    if (kind == 2) value = 0.75f;
    if (kind == 3) value = random() % 2 == 0 ? 0.f : -0.f;
    if (kind == 4 && random() % 6 == 0) {
      constexpr float kSpecial[] = {INFINITY, -INFINITY, NAN, 6e4f, -6e4f, 1e-7f};
      value = kSpecial[random() % 6];
    }
    if (kind == 6) value *= 1e-6f;
    x = kind == 5 ? static_cast<std::uint16_t>(random()) : bits_of(dtype, value);
  }
  return out;
}

/// Weights of tokens: at least 1, some much larger.
std::vector<float> make_weights(std::mt19937& random) {
  std::vector<float> out(kBlock);
  for (float& w : out) w = random() % 2 == 0 ? 1.f : 1 + static_cast<float>(random() % 1000) / 150;
  return out;
}

/// Equal bytes; where a value is computed, one NaN is as good as another.
bool same_pages(DType dtype, int head_dim, bool computed, const std::byte* a, const std::byte* b) {
  if (!computed) return std::memcmp(a, b, static_cast<std::size_t>(sparse_page_bytes(head_dim))) == 0;
  for (std::int64_t i = 0; i < sparse_page_bytes(head_dim); i += 2) {
    std::uint16_t x, y;
    std::memcpy(&x, a + i, 2), std::memcpy(&y, b + i, 2);
    const bool both_nan = i < nonzero_bytes(head_dim) && is_nan(dtype, x) && is_nan(dtype, y);
    if (x != y && !both_nan) return false;
  }
  return true;
}

struct RuleCase {
  PruneRule rule;
  bool weights;
  const char* name;
};

void check_compress(Side side, DType dtype, int head_dim, RuleCase rule, LossKind kind, unsigned seed, Stream& stream) {
  constexpr int kPages = 4 * kKinds;
  std::mt19937 random(seed);
  const auto dense_bytes = static_cast<std::size_t>(dense_page_bytes(head_dim));
  const auto sparse_bytes = static_cast<std::size_t>(sparse_page_bytes(head_dim));
  const auto elements = static_cast<std::size_t>(kBlock * head_dim);
  std::vector<std::byte> dense, sparse(kPages * sparse_bytes, std::byte{0xaa}), expected = sparse;
  std::vector<float> weights, tokens;
  std::vector<std::uint8_t> mask(kPages * elements), channels(kPages * static_cast<std::size_t>(head_dim));
  for (int page = 0; page < kPages; ++page) {
    const auto values = make_page(dtype, head_dim, page % kKinds, random);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    dense.insert(dense.end(), bytes, bytes + dense_bytes);
    const auto more = make_weights(random);
    tokens.insert(tokens.end(), more.begin(), more.end());
    for (int c = 0; c < head_dim; ++c)
      weights.push_back(page % 2 == 1 && random() % 7 == 0 ? 0.f : 0.1f + static_cast<float>(random() % 1000) / 250);
  }
  for (auto& c : channels) c = random() % 3 != 0;
  const int along = side == Side::K ? 1 : head_dim;
  for (std::size_t page = 0; page < kPages; ++page)
    for (int group = 0; group < kBlock * head_dim / 4; ++group) {
      const int first = side == Side::K ? group * 4 : group / head_dim * 4 * head_dim + group % head_dim;
      for (auto left = random() % 3; left > 0; --left)
        mask[page * elements + static_cast<std::size_t>(first + static_cast<int>(random() % 4) * along)] = 1;
    }
  const OnDevice d_dense(dense, stream), d_sparse(sparse, stream);
  const OnDevice d_weights(weights, stream), d_tokens(tokens, stream);
  const OnDevice d_mask(mask, stream), d_channels(channels, stream);
  const Buffer d_loss(kPages * 4, stream.device());
  std::vector<CompressJob> jobs(kPages);
  std::vector<float> loss(kPages);
  for (std::size_t page = 0; page < kPages; ++page) {
    CompressJob host{dense.data() + page * dense_bytes, expected.data() + page * sparse_bytes, {.rule = rule.rule}};
    jobs[page] = {d_dense.data() + page * dense_bytes, d_sparse.data() + page * sparse_bytes, {.rule = rule.rule}};
    const std::size_t at = page * static_cast<std::size_t>(head_dim);
    if (rule.weights) {
      host.prune.channel_weights = weights.data() + at;
      jobs[page].prune.channel_weights = d_weights.data() + at;
      host.prune.token_weights = tokens.data() + page * kBlock;
      jobs[page].prune.token_weights = d_tokens.data() + page * kBlock;
    }
    host.prune.elements = mask.data() + page * elements, host.prune.channels = channels.data() + at;
    jobs[page].prune.elements = d_mask.data() + page * elements, jobs[page].prune.channels = d_channels.data() + at;
    if (page % 5 == 4) host.sparse = jobs[page].sparse = nullptr;  // only the loss; the page must stay as it is
    loss[page] = cpu::compress_page(side, dtype, head_dim, host, kind);
  }
  for (const bool losses : {true, false}) {
    copy_bytes(d_sparse.data(), sparse.data(), static_cast<std::int64_t>(sparse.size()), stream);
    compress(side, dtype, head_dim, jobs, kind, losses ? d_loss.as<float>() : nullptr, stream);
    const auto got = to_host(d_sparse.data(), sparse.size(), stream);
    const auto got_loss = to_host(d_loss.as<float>(), kPages, stream);
    const bool computed = side == Side::V && rule.rule == PruneRule::Calibrated;
    for (std::size_t page = 0; page < kPages; ++page) {
      const auto what =
          fmt::format("{} {} {} {} page {} (kind {}) loss {}", side == Side::K ? "K" : "V", to_string(dtype), head_dim,
                      rule.name, page, page % kKinds, losses ? (kind == LossKind::L1 ? "L1" : "energy") : "none");
      expect(same_pages(dtype, head_dim, computed, got.data() + page * sparse_bytes,
                        expected.data() + page * sparse_bytes),
             what + ": bytes");
      const bool equal =
          std::memcmp(&got_loss[page], &loss[page], 4) == 0 || (std::isnan(got_loss[page]) && std::isnan(loss[page]));
      if (losses) expect(equal, what + fmt::format(": loss {} instead of {}", got_loss[page], loss[page]));
    }
  }
}

void check_all_compress(Stream& stream) {
  constexpr RuleCase kRules[] = {{PruneRule::Magnitude, false, "magnitude"},
                                 {PruneRule::Calibrated, false, "calibrated, no weights"},
                                 {PruneRule::Calibrated, true, "calibrated"},
                                 {PruneRule::Elements, false, "elements"},
                                 {PruneRule::Channels, false, "channels"}};
  int cases = 0;
  for (const Side side : {Side::K, Side::V})
    for (const DType dtype : {DType::F16, DType::BF16})
      for (const int head_dim : {64, 128})
        for (const RuleCase& rule : kRules)
          for (const LossKind kind : {LossKind::L1, LossKind::Energy})
            check_compress(side, dtype, head_dim, rule, kind, static_cast<unsigned>(++cases), stream);
  // A mask that keeps three of four is refused, by its job's index.
  std::vector<std::byte> dense(static_cast<std::size_t>(dense_page_bytes(64)));
  std::vector<std::uint8_t> mask(2 * kBlock * 64);
  for (const int i : {0, 1, 2}) mask[static_cast<std::size_t>(kBlock * 64 + i)] = 1;
  const OnDevice d_dense(dense, stream);
  const OnDevice d_mask(mask, stream);
  const Buffer out(sparse_page_bytes(64), stream.device());
  std::vector<CompressJob> jobs(2, {d_dense.data(), out.data(), {.rule = PruneRule::Elements}});
  for (std::size_t i = 0; i < 2; ++i) jobs[i].prune.elements = d_mask.data() + i * kBlock * 64;
  std::string message;
  try {
    compress(Side::K, DType::F16, 64, jobs, LossKind::L1, nullptr, stream);
  } catch (const Error& error) {
    message = error.what();
  }
  expect(message.find("job 1") != std::string::npos, "a bad mask must be refused: " + message);
  std::printf("compress: %d cases of %d pages, and a bad mask\n", cases, 4 * kKinds);
}

// ---- Token weights
// ---------------------------------------------------------------------------------------------------

struct WeighCase {
  DType dtype, query_dtype;
  int head_dim, query_heads, queries;
  bool whole, chosen;
  float sharpness;  // of the queries
};

/// Values of a query as the kernel reads them.
float rounded(DType dtype, float x) {
  if (dtype == DType::F32) return x;
  return dtype == DType::F16 ? to_float(from_float<Half>(x)) : to_float(from_float<BFloat16>(x));
}

void check_weights(const WeighCase& c, unsigned seed, Stream& stream) {
  constexpr int kHeads = 3, kMaxBlocks = 11;
  constexpr int kTokens[kHeads] = {kMaxBlocks * kBlock, 9 * kBlock + 37, 3 * kBlock + 1};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto dense_bytes = static_cast<std::size_t>(dense_page_bytes(c.head_dim));
  const auto sparse_bytes = static_cast<std::size_t>(sparse_page_bytes(c.head_dim));
  std::vector<std::byte> dense(kHeads * kMaxBlocks * dense_bytes), sparse(kHeads * kMaxBlocks * sparse_bytes);
  std::vector<std::int32_t> map(kHeads * kMaxBlocks);
  std::vector<std::byte> seen = dense;  // what the CPU reads: sealed pages unpacked
  for (int head = 0; head < kHeads; ++head)
    for (int block = 0; block * kBlock < kTokens[head]; ++block) {
      const auto page = static_cast<std::size_t>(head * kMaxBlocks + block);
      std::byte* to = dense.data() + page * dense_bytes;
      for (int t = 0; t < kBlock; ++t)
        for (int ch = 0; ch < c.head_dim; ++ch) {
          const bool past = block * kBlock + t >= kTokens[head];
          const std::uint16_t bits = past ? 0x7fff : bits_of(c.dtype, normal(random) * (t % 7 == 0 ? 2.f : 1.f));
          std::memcpy(to + dense_offset(t, ch), &bits, 2);
        }
      const bool sealed = random() % 2 == 0 && (block + 1) * kBlock <= kTokens[head];
      map[page] = static_cast<std::int32_t>(page + 1) * (sealed ? -1 : 1);
      std::memcpy(seen.data() + page * dense_bytes, to, dense_bytes);
      if (!sealed) continue;
      cpu::compress_page(Side::K, c.dtype, c.head_dim, {to, sparse.data() + page * sparse_bytes, {}}, LossKind::L1);
      decompress(Side::K, c.dtype, c.head_dim, sparse.data() + page * sparse_bytes, seen.data() + page * dense_bytes);
      std::memset(to, 0xff, dense_bytes);
    }
  const int row = c.head_dim, per_head = c.query_heads * c.queries * row;
  std::vector<float> queries(static_cast<std::size_t>(kHeads * per_head));
  for (float& q : queries) q = rounded(c.query_dtype, normal(random) * c.sharpness);
  std::vector<std::byte> raw;
  for (const float q : queries) {
    const std::uint16_t bits = c.query_dtype == DType::F32 ? 0 : bits_of(c.query_dtype, q);
    const auto* from = c.query_dtype == DType::F32 ? reinterpret_cast<const std::byte*>(&q)
                                                   : reinterpret_cast<const std::byte*>(&bits);
    raw.insert(raw.end(), from, from + (c.query_dtype == DType::F32 ? 4 : 2));
  }
  std::vector<std::uint8_t> chosen(kHeads * kMaxBlocks);
  for (auto& x : chosen) x = !c.chosen || random() % 3 != 0;

  const OnDevice d_dense(dense, stream), d_sparse(sparse, stream), d_raw(raw, stream);
  const OnDevice d_map(map, stream);
  const OnDevice d_chosen(chosen, stream);
  const Buffer weights(kHeads * kMaxBlocks * kBlock * 4, stream.device());
  std::vector<cuda::WeighHead> heads(kHeads);
  for (int head = 0; head < kHeads; ++head)
    heads[static_cast<std::size_t>(head)] = {
        .k_map = d_map.data() + head * kMaxBlocks,
        .queries = d_raw.data() + static_cast<std::size_t>(head) * raw.size() / kHeads,
        .chosen = c.chosen ? d_chosen.data() + head * kMaxBlocks : nullptr,
        .weights = weights.as<float>() + head * kMaxBlocks * kBlock,
        .tokens = kTokens[head],
        .begin = 1,
        .end = kTokens[head] / kBlock};
  const OnDevice d_heads(heads, stream);
  const cuda::WeighLaunch launch{.dtype = c.dtype,
                                 .head_dim = c.head_dim,
                                 .dense = d_dense.data(),
                                 .sparse = d_sparse.data(),
                                 .query_dtype = c.query_dtype,
                                 .query_heads = c.query_heads,
                                 .queries = c.queries,
                                 .head_stride = c.queries * row,
                                 .query_stride = row,
                                 .whole = c.whole,
                                 .heads = d_heads.data(),
                                 .count = kHeads,
                                 .max_blocks = kMaxBlocks,
                                 .multiprocessors = 10};
  const Buffer workspace(cuda::weigh_workspace_bytes(launch), stream.device());
  std::vector<std::vector<float>> runs;
  for (int run = 0; run < 2; ++run) {
    CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xff, static_cast<std::size_t>(workspace.size()),
                               static_cast<cudaStream_t>(stream.handle())));
    CUDA_CHECK(cudaMemsetAsync(weights.data(), 0xff, static_cast<std::size_t>(weights.size()),
                               static_cast<cudaStream_t>(stream.handle())));
    cuda::launch_token_weights(launch, workspace.data(), stream.handle());
    runs.push_back(to_host(weights.as<float>(), static_cast<std::size_t>(weights.size() / 4), stream));
  }
  expect(std::memcmp(runs[0].data(), runs[1].data(), runs[0].size() * 4) == 0, "weights: reruns differ");

  double worst = 0, squares = 0, norm = 0;
  int above = 0, all = 0;
  for (int head = 0; head < kHeads; ++head) {
    std::vector<QuerySet> sets;
    for (int h = 0; h < c.query_heads; ++h)
      sets.push_back({queries.data() + head * per_head + h * c.queries * row, c.queries, row});
    const auto keys = [&](int block) {
      return KeyPage{seen.data() + static_cast<std::size_t>(head * kMaxBlocks + block) * dense_bytes, c.dtype,
                     c.head_dim, std::min(kBlock, kTokens[head] - block * kBlock)};
    };
    std::vector<float> lse(static_cast<std::size_t>(c.query_heads * c.queries),
                           -std::numeric_limits<float>::infinity());
    for (int block = 0; block * kBlock < kTokens[head]; ++block) add_log_sums(keys(block), sets, lse.data());
    std::vector<float> mass(kMaxBlocks * kBlock);
    double total = 0;
    int count = 0;
    for (int block = 1; block < kTokens[head] / kBlock; ++block) {
      if (chosen[static_cast<std::size_t>(head * kMaxBlocks + block - 1)] == 0) continue;
      float* mine = mass.data() + block * kBlock;
      expected_attention(keys(block), sets, c.whole ? lse.data() : nullptr, mine);
      for (int t = 0; t < kBlock; ++t) total += mine[t];
      ++count;
    }
    const float mean = c.whole && c.queries > 0 ? static_cast<float>(total / (count * kBlock)) : 1.f / kBlock;
    for (int block = 1; block < kTokens[head] / kBlock; ++block) {
      const int at = head * kMaxBlocks + block - 1;
      float expected[kBlock];
      weights_of(mass.data() + block * kBlock, mean, expected);
      for (int t = 0; t < kBlock; ++t) {
        const double got = runs[0][static_cast<std::size_t>(at * kBlock + t)];
        if (chosen[static_cast<std::size_t>(at)] == 0) {
          expect(std::isnan(got), "weights of a block that is not chosen were written");
          continue;
        }
        const double error = std::abs(got - expected[t]) / expected[t];
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
        squares += (got - expected[t]) * (got - expected[t]);
        norm += double{expected[t]} * expected[t];
        above += expected[t] > 1;
        ++all;
      }
    }
  }
  const auto what = fmt::format("weights {} {} queries {} {} x {}{}{} sharp {}", to_string(c.dtype), c.head_dim,
                                to_string(c.query_dtype), c.query_heads, c.queries, c.whole ? "" : ", block alone",
                                c.chosen ? ", chosen" : "", c.sharpness);
  std::printf("%s: largest relative error %.2g, of the whole %.2g (%d of %d above 1)\n", what.c_str(), worst,
              std::sqrt(squares / norm), above, all);
  expect(worst < 1e-2, what);
}

void check_all_weights(Stream& stream) {
  const WeighCase kCases[] = {
      {DType::F16, DType::F32, 128, 4, 48, true, false, 1}, {DType::BF16, DType::BF16, 128, 4, 64, true, true, 2},
      {DType::F16, DType::F16, 64, 3, 64, true, true, 2},   {DType::BF16, DType::F32, 64, 3, 48, false, true, 0.5f},
      {DType::F16, DType::F16, 128, 6, 64, true, true, 3},  {DType::F16, DType::F32, 128, 6, 48, false, false, 1},
      {DType::F16, DType::F16, 64, 1, 5, true, false, 1},   {DType::BF16, DType::BF16, 128, 16, 64, false, true, 1},
      {DType::F16, DType::F32, 64, 0, 0, true, false, 1}};
  unsigned seed = 100;
  for (const WeighCase& c : kCases) check_weights(c, ++seed, stream);
}

// ---- The least losses
// ------------------------------------------------------------------------------------------------

void check_select(Stream& stream) {
  std::mt19937 random(5);
  for (const int count : {1, 31, 510, 1024, 5000}) {
    constexpr int kRows = 12;
    std::vector<float> losses(static_cast<std::size_t>(kRows * count));
    std::vector<std::int32_t> take(kRows);
    for (int row = 0; row < kRows; ++row) {
      take[static_cast<std::size_t>(row)] = row == 0   ? 0
                                            : row == 1 ? count + 3
                                                       : static_cast<int>(random() % static_cast<unsigned>(count + 1));
      for (int i = 0; i < count; ++i) {
        float& x = losses[static_cast<std::size_t>(row * count + i)];
        x = static_cast<float>(random() % (row % 3 == 0 ? 4 : 1000000)) * (row % 2 == 0 ? 1e-3f : 1e20f);
        if (random() % 9 == 0) x = row % 4 == 0 ? NAN : row % 4 == 1 ? INFINITY : 0.f;
      }
    }
    const OnDevice d_losses(losses, stream);
    const OnDevice d_take(take, stream);
    const Buffer chosen(kRows * count, stream.device()), largest(kRows * 4, stream.device());
    cuda::launch_select_least(d_losses.data(), d_take.data(), kRows, count, chosen.as<std::uint8_t>(),
                              largest.as<float>(), stream.handle());
    const auto got = to_host(chosen.as<std::uint8_t>(), losses.size(), stream);
    const auto limit = to_host(largest.as<float>(), kRows, stream);
    for (int row = 0; row < kRows; ++row) {
      std::vector<int> order;
      const float* mine = losses.data() + row * count;
      for (int i = 0; i < count; ++i)
        if (!std::isnan(mine[i])) order.push_back(i);
      std::stable_sort(order.begin(), order.end(), [mine](int a, int b) { return mine[a] < mine[b]; });
      order.resize(std::min(order.size(), static_cast<std::size_t>(take[static_cast<std::size_t>(row)])));
      std::vector<std::uint8_t> expected(static_cast<std::size_t>(count));
      for (const int i : order) expected[static_cast<std::size_t>(i)] = 1;
      expect(std::memcmp(expected.data(), got.data() + row * count, expected.size()) == 0,
             fmt::format("least: {} of {}, row {}", take[static_cast<std::size_t>(row)], count, row));
      expect(limit[static_cast<std::size_t>(row)] == (order.empty() ? -INFINITY : mine[order.back()]),
             fmt::format("least: largest of row {} of {}: {}", row, count, limit[static_cast<std::size_t>(row)]));
    }
  }
  std::printf("least losses: 60 rows\n");
}

// ---- Times
// -----------------------------------------------------------------------------------------------------------

/// Roughly normal values: the sum of four uniform ones.
template <typename T>
__global__ void fill_kernel(T* out, std::int64_t count, std::uint32_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b9u ^ seed;
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
      sum += static_cast<float>(x) * 0x1p-32f;
    }
    out[i] = static_cast<T>((sum - 2) * 1.7f);
  }
}

class Bench {
 public:
  Bench(int head_dim, int batch, int tokens, Stream& stream)
      : stream_(stream),
        head_dim_(head_dim),
        heads_(batch * 8),
        blocks_(tokens / kBlock),
        pages_(std::int64_t{heads_} * blocks_),
        bandwidth_(bench::gpu_read_bandwidth(stream)),
        dense_{fresh(pages_ * dense_page_bytes(head_dim)), fresh(pages_ * dense_page_bytes(head_dim))},
        sparse_{fresh(pages_ * sparse_page_bytes(head_dim)), fresh(pages_ * sparse_page_bytes(head_dim))},
        weights_(fresh(head_dim * 4)),
        tokens_(fresh(pages_ * kBlock * 4)),
        loss_(fresh(pages_ * 4)),
        mask_(fresh(kBlock * head_dim)) {
    for (unsigned side = 0; side < 2; ++side)
      fill_kernel<<<4096, 256, 0, handle()>>>(dense_[side].as<__half>(), pages_ * kBlock * head_dim, side + 1);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(mask_.size()));
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = (i + i / static_cast<std::size_t>(head_dim)) % 2;
    copy_bytes(mask_.data(), mask.data(), mask_.size(), stream);
    std::vector<float> weights(static_cast<std::size_t>(head_dim));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.5f + static_cast<float>(i * 7 % 13) / 5;
    copy_bytes(weights_.data(), weights.data(), weights_.size(), stream);
    std::vector<float> token_weights;  // of 64 pages, for all
    std::mt19937 random(3);
    for (int page = 0; page < 64; ++page) {
      const auto more = make_weights(random);
      token_weights.insert(token_weights.end(), more.begin(), more.end());
    }
    for (std::int64_t page = 0; page < pages_; page += 64)
      copy_bytes(tokens_.as<float>() + page * kBlock, token_weights.data(), 64 * kBlock * 4, stream);
    stream.synchronize();
    std::printf("\nhead_dim %d, batch %d, %d tokens, 8 KV heads: %lld pages a side; reads at %.2f TB/s\n", head_dim,
                batch, tokens, static_cast<long long>(pages_), bandwidth_ / 1e12);
  }

  void compression() {
    for (const PruneRule rule : {PruneRule::Elements, PruneRule::Channels, PruneRule::Magnitude, PruneRule::Calibrated})
      for (const bool losses : {false, true}) {
        if (losses && rule != PruneRule::Magnitude && rule != PruneRule::Calibrated) continue;
        double both = 0;
        for (const Side side : {Side::K, Side::V}) both += time_compress(side, rule, losses, false);
        row(fmt::format("K and V {}{}", name(rule), losses ? ", with losses" : ""), both,
            2 * static_cast<double>(pages_ * (dense_page_bytes(head_dim_) + sparse_page_bytes(head_dim_))));
      }
    for (const PruneRule rule : {PruneRule::Magnitude, PruneRule::Calibrated})
      for (const Side side : {Side::K, Side::V}) time_compress(side, rule, true, true);
  }

  /// Token weights from keys that are dense, or sealed.
  double weights(bool sealed, int query_heads, int queries, bool whole) {
    std::vector<std::int32_t> map(static_cast<std::size_t>(pages_));
    for (std::size_t i = 0; i < map.size(); ++i) map[i] = static_cast<std::int32_t>(i + 1) * (sealed ? -1 : 1);
    const OnDevice d_map(map, stream_);
    const std::int64_t per_head = std::int64_t{query_heads} * queries * head_dim_;
    const Buffer q = fresh(heads_ * per_head * 2);
    fill_kernel<<<256, 256, 0, handle()>>>(q.as<__half>(), heads_ * per_head, 9u);
    std::vector<cuda::WeighHead> heads(static_cast<std::size_t>(heads_));
    for (int i = 0; i < heads_; ++i)
      heads[static_cast<std::size_t>(i)] = {.k_map = d_map.data() + std::int64_t{i} * blocks_,
                                            .queries = q.data() + i * per_head * 2,
                                            .weights = tokens_.as<float>() + std::int64_t{i} * blocks_ * kBlock,
                                            .tokens = blocks_ * kBlock,
                                            .begin = 0,
                                            .end = blocks_};
    const OnDevice d_heads(heads, stream_);
    const cuda::WeighLaunch launch{.dtype = DType::F16,
                                   .head_dim = head_dim_,
                                   .dense = dense_[0].data(),
                                   .sparse = sparse_[0].data(),
                                   .query_dtype = DType::F16,
                                   .query_heads = query_heads,
                                   .queries = queries,
                                   .head_stride = std::int64_t{queries} * head_dim_,
                                   .query_stride = head_dim_,
                                   .whole = whole,
                                   .heads = d_heads.data(),
                                   .count = heads_,
                                   .max_blocks = blocks_,
                                   .multiprocessors = cuda::properties(0).multiprocessors};
    const Buffer workspace = fresh(cuda::weigh_workspace_bytes(launch));
    const auto time =
        bench::time_gpu(stream_, [&] { cuda::launch_token_weights(launch, workspace.data(), stream_.handle()); });
    const double passes = 2, products = 2.0 * head_dim_ * pages_ * kBlock * query_heads * queries * passes;
    std::printf("  %-44s %8.3f ms (%.3f to %.3f)  %4.0f TFLOP/s of dense products\n",
                fmt::format("token weights, K {}, {} x {} queries{}", sealed ? "sealed" : "dense", query_heads, queries,
                            whole ? "" : ", block alone")
                    .c_str(),
                time.median_s * 1e3, time.low_s * 1e3, time.high_s * 1e3, products / time.median_s / 1e12);
    return time.median_s;
  }

  void selection() {
    const std::vector<std::int32_t> take(static_cast<std::size_t>(heads_), blocks_ * 9 / 10);
    const OnDevice d_take(take, stream_);
    const Buffer chosen = fresh(pages_), largest = fresh(heads_ * 4);
    const auto time = bench::time_gpu(stream_, [&] {
      cuda::launch_select_least(loss_.as<float>(), d_take.data(), heads_, blocks_, chosen.as<std::uint8_t>(),
                                largest.as<float>(), stream_.handle());
    });
    std::printf("  %-44s %8.3f ms (%.3f to %.3f)\n", "the least losses of each head", time.median_s * 1e3,
                time.low_s * 1e3, time.high_s * 1e3);
  }

 private:
  static const char* name(PruneRule rule) {
    constexpr const char* kNames[] = {"magnitude", "calibrated", "elements", "channels"};
    return kNames[static_cast<int>(rule)];
  }

  void row(const std::string& what, double seconds, double bytes) const {
    std::printf("  %-44s %8.3f ms  %5.2f TB/s  %3.0f %% of the byte floor\n", what.c_str(), seconds * 1e3,
                bytes / seconds / 1e12, bytes / seconds / bandwidth_ * 100);
  }

  double time_compress(Side side, PruneRule rule, bool losses, bool loss_only) {
    const int s = side == Side::V;
    std::vector<format24::cuda::DeviceJob> jobs(static_cast<std::size_t>(pages_));
    for (std::int64_t i = 0; i < pages_; ++i) {
      auto& job = jobs[static_cast<std::size_t>(i)];
      job.dense = dense_[s].data() + i * dense_page_bytes(head_dim_);
      if (!loss_only) job.sparse = sparse_[s].data() + i * sparse_page_bytes(head_dim_);
      if (rule == PruneRule::Calibrated)
        job.weights = side == Side::K ? weights_.as<float>() : tokens_.as<float>() + i * kBlock;
      job.mask = mask_.as<std::uint8_t>();
      if (losses) job.loss = loss_.as<float>() + i;
    }
    const OnDevice d_jobs(jobs, stream_);
    const format24::cuda::CompressLaunch launch{.side = side,
                                                .dtype = DType::F16,
                                                .head_dim = head_dim_,
                                                .rule = rule,
                                                .kind = LossKind::Energy,
                                                .losses = losses,
                                                .jobs = d_jobs.data(),
                                                .count = pages_};
    const auto time = bench::time_gpu(stream_, [&] { format24::cuda::launch_compress(launch, stream_.handle()); });
    row(fmt::format("{} {}{}", side == Side::K ? "K" : "V", name(rule),
                    loss_only ? ", only losses"
                    : losses  ? ", with losses"
                              : ""),
        time.median_s,
        static_cast<double>(pages_ * (dense_page_bytes(head_dim_) + (loss_only ? 0 : sparse_page_bytes(head_dim_)))));
    return time.median_s;
  }

  Buffer fresh(std::int64_t bytes) { return Buffer(bytes, stream_.device()); }
  cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.handle()); }
  Stream& stream_;
  int head_dim_, heads_, blocks_;
  std::int64_t pages_;
  double bandwidth_;
  Buffer dense_[2], sparse_[2], weights_, tokens_, loss_, mask_;
};

void time_all(Stream& stream) {
  for (const int head_dim : {128, 64}) {
    Bench bench(head_dim, 8, 32768, stream);
    bench.compression();
    for (const bool sealed : {true, false})
      for (const int queries : {48, 64}) bench.weights(sealed, 4, queries, true);
    bench.weights(true, 4, 64, false);
    bench.selection();
  }
}

}  // namespace
}  // namespace rarefy

/// `compress_check` checks and times; `compress_check check` only checks.
int main(int argc, char** argv) {
  using namespace rarefy;
  try {
    Stream stream(parse_device("cuda"));
    check_all_compress(stream);
    check_all_weights(stream);
    check_select(stream);
    std::printf("%s\n", failures == 0 ? "all checks passed" : "CHECKS FAILED");
    if (argc < 2 || std::string(argv[1]) != "check") time_all(stream);
  } catch (const Error& error) {
    std::printf("FAIL %s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
