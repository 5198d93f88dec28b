// CUDA attention against float64 over the decompressed values: every dtype, head_dim, group and page kind.
#include <gtest/gtest.h>

#include <tuple>

#include "rarefy/attention/attention.h"
#include "rarefy/base/convert.h"
#include "tests/attention/attention_oracle.h"
#include "tests/gpu.h"

namespace rarefy::attention {
namespace {

/// A RandomCache in the memory of the GPU.
class DeviceCache {
 public:
  /// Of the sequences from `first` on.
  explicit DeviceCache(const RandomCache& cache, int first = 0) : view_(cache.view()), stream_(kGpu) {
    const auto entries = static_cast<std::int64_t>(cache.map_entries());
    const KvView host = view_;
    view_.device = kGpu;
    view_.dense = copy(host.dense, host.dense_pages * format24::dense_page_bytes(host.head_dim));
    view_.sparse = copy(host.sparse, host.sparse_pages * format24::sparse_page_bytes(host.head_dim));
    view_.k_map = ints(host.k_map, entries);
    view_.v_map = ints(host.v_map, entries);
    view_.k_window = ints(host.k_window, entries);
    view_.v_window = ints(host.v_window, entries);
    view_.batch = host.batch - first;
    view_.slots = ints(host.slots + first, view_.batch);
    view_.kv_len = ints(host.kv_len + first, view_.batch);
    view_.k_sealed = cache.spec().sealed_k > 0;
    view_.v_sealed = cache.spec().sealed_v > 0;
  }
  const KvView& view() const { return view_; }

  const std::byte* copy(const void* from, std::int64_t bytes) {
    if (from == nullptr || bytes == 0) return nullptr;
    buffers_.emplace_back(bytes, kGpu);
    copy_bytes(buffers_.back().data(), from, bytes, stream_);
    return buffers_.back().data();
  }
  const std::int32_t* ints(const std::int32_t* from, std::int64_t count) {
    return reinterpret_cast<const std::int32_t*>(copy(from, count * 4));
  }

 private:
  KvView view_;
  Stream stream_;
  std::vector<Buffer> buffers_;
};

/// Runs on the GPU with q, o and lse there; outputs start as NaN.
class CudaCall {
 public:
  CudaCall(const RandomCache& cache, const std::vector<float>& q, int group, float scale, int first = 0)
      : cache_(cache), device_(cache, first), dtype_(cache.spec().dtype), stream_(kGpu), workspace_(kGpu) {
    heads_ = cache.spec().kv_heads * group;
    rows_ = static_cast<std::int64_t>(q.size()) / (heads_ * cache.spec().head_dim);
    std::vector<std::uint16_t> bits(q.size());
    for (std::size_t i = 0; i < q.size(); ++i) bits[i] = encoded(dtype_, q[i]);
    q_ = upload(bits.data(), 2 * bits.size());
    const std::vector<std::uint16_t> nan(q.size(), 0xffff);
    o_ = upload(nan.data(), 2 * nan.size());
    const std::vector<float> lse(static_cast<std::size_t>(rows_ * heads_), std::nanf(""));
    lse_ = upload(lse.data(), 4 * lse.size());
    const std::int32_t none = 0;
    error_ = upload(&none, 4);
    options_.scale = scale;
    options_.error = error_.as<std::int32_t>();
  }

  Result decode(const std::vector<std::int32_t>& ids = {}, int max_selected = 0) {
    BlockList blocks;
    if (!ids.empty()) blocks = {device_.ints(ids.data(), static_cast<std::int64_t>(ids.size())), max_selected};
    attention::decode(tensor(q_), device_.view(), blocks, options_, tensor(o_), lse(), workspace_, stream_);
    return result();
  }
  Result prefill(std::span<const std::int32_t> q_start, int local) {
    options_.local = local;
    attention::prefill(tensor(q_), q_start, device_.view(), {}, options_, tensor(o_), lse(), workspace_, stream_);
    return result();
  }
  bool error() {
    std::int32_t flag = 0;
    copy_bytes(&flag, error_.data(), 4, stream_);
    stream_.synchronize();
    return flag != 0;
  }

 private:
  Buffer upload(const void* from, std::size_t bytes) {
    Buffer out(static_cast<std::int64_t>(bytes), kGpu);
    copy_bytes(out.data(), from, static_cast<std::int64_t>(bytes), stream_);
    stream_.synchronize();
    return out;
  }
  TensorView tensor(const Buffer& buffer) {
    return {buffer.data(), dtype_, {rows_, heads_, cache_.spec().head_dim}, kGpu};
  }
  TensorView lse() { return make_view(lse_.as<float>(), {rows_, heads_}, kGpu); }
  Result result() {
    std::vector<std::uint16_t> o(static_cast<std::size_t>(o_.size()) / 2);
    std::vector<float> lse(static_cast<std::size_t>(lse_.size()) / 4);
    copy_bytes(o.data(), o_.data(), o_.size(), stream_);
    copy_bytes(lse.data(), lse_.data(), lse_.size(), stream_);
    stream_.synchronize();
    Result out;
    for (const std::uint16_t bits : o) out.o.push_back(decoded(dtype_, bits));
    out.lse.assign(lse.begin(), lse.end());
    return out;
  }

  const RandomCache& cache_;
  DeviceCache device_;
  DType dtype_;
  Stream stream_;
  Workspace workspace_;
  std::int64_t rows_ = 0;
  int heads_ = 0;
  Buffer q_, o_, lse_, error_;
  Options options_;
};

/// FlashAttention's rule with P and o rounded to 16 bits: twice the error of rounding them, which is half a unit of the
/// dtype's last place each.
void expect_close(const Result& got, const Result& exact, DType dtype) {
  const double unit = dtype == DType::F16 ? 1.0 / 2048 : 1.0 / 256;
  EXPECT_LE(max_error(got.o, exact.o), 2 * unit * max_abs(exact.o));
  EXPECT_LE(max_error(got.lse, exact.lse), 1e-5 * std::max(1.0, max_abs(exact.lse)));
}

using Case = std::tuple<DType, int, int, std::pair<double, double>>;  // dtype, head_dim, group, share sealed of K, V

class AttentionCuda : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, AttentionCuda,
                         testing::Combine(testing::Values(DType::F16, DType::BF16), testing::Values(64, 128),
                                          testing::Values(1, 3, 4, 8, 9, 16, 19),
                                          testing::Values(std::pair{0., 0.}, std::pair{0., 1.}, std::pair{1., 1.},
                                                          std::pair{.5, .5})));

CacheSpec spec_of(const Case& c, std::vector<int> lengths) {
  CacheSpec spec;
  spec.dtype = std::get<0>(c);
  spec.head_dim = std::get<1>(c);
  spec.lengths = std::move(lengths);
  spec.sealed_k = std::get<3>(c).first;
  spec.sealed_v = std::get<3>(c).second;
  return spec;
}

float scale_of(const CacheSpec& spec) { return 1 / std::sqrt(static_cast<float>(spec.head_dim)); }

const std::vector<int> kLengths = {0, 1, 2, 63, 64, 65, 127, 128, 129, 450, 2048, 2049, 4500};

TEST_P(AttentionCuda, DecodeMatchesFloat64) {
  RAREFY_NEEDS_GPU();
  const int group = std::get<2>(GetParam());
  CacheSpec spec = spec_of(GetParam(), kLengths);
  spec.seal_partial = true;
  const RandomCache cache(spec);
  const auto q = rounded_to(spec.dtype, random_q(spec, static_cast<std::int64_t>(kLengths.size()), group));
  CudaCall call(cache, q, group, scale_of(spec));
  const Result first = call.decode();
  expect_close(first, oracle<double>(cache, decode_queries(cache), q, group, scale_of(spec)), spec.dtype);
  EXPECT_FALSE(call.error());
  const Result again = call.decode();
  EXPECT_EQ(first.o, again.o);
  EXPECT_EQ(first.lse, again.lse);
}

TEST_P(AttentionCuda, DecodeOfListedBlocks) {
  RAREFY_NEEDS_GPU();
  const int group = std::get<2>(GetParam());
  const CacheSpec spec = spec_of(GetParam(), {450, 70, 6000, 1, 64});
  const RandomCache cache(spec);
  const auto q = rounded_to(spec.dtype, random_q(spec, 5, group));
  std::mt19937 random(3);
  constexpr int kSelected = 70;
  std::vector<std::vector<int>> lists;
  std::vector<std::int32_t> ids;
  for (const int length : spec.lengths)
    for (int head = 0; head < spec.kv_heads; ++head) {
      std::vector<int> list;
      for (int block = 0; block * 64 < length; ++block)
        if (random() % 4 != 0 && static_cast<int>(list.size()) < kSelected) list.push_back(block);
      if (length == 1 && head == 1) list.clear();
      ids.insert(ids.end(), list.begin(), list.end());
      ids.insert(ids.end(), kSelected - list.size(), -1);
      lists.push_back(std::move(list));
    }
  CudaCall call(cache, q, group, scale_of(spec));
  expect_close(call.decode(ids, kSelected),
               oracle<double>(cache, decode_queries(cache), q, group, scale_of(spec), &lists), spec.dtype);
  EXPECT_FALSE(call.error());
}

TEST_P(AttentionCuda, PrefillMatchesFloat64) {
  RAREFY_NEEDS_GPU();
  const int group = std::get<2>(GetParam());
  // Chunks that start off the tile grid, whole prompts, one query, none, and the window of sealed blocks.
  CacheSpec spec = spec_of(GetParam(), {1, 64, 65, 300, 129, 450, 0, 530});
  spec.kv_heads = group <= 4 ? 2 : 1;  // the reference is slow
  spec.window = true;
  spec.seal_partial = true;
  const std::vector<int> q_lens = {1, 64, 3, 140, 129, 1, 0, 70};
  const RandomCache cache(spec);
  std::vector<std::int32_t> q_start;
  const auto queries = prefill_queries(cache, q_lens, 128, q_start);
  const auto q = rounded_to(spec.dtype, random_q(spec, q_start.back(), group));
  CudaCall call(cache, q, group, scale_of(spec));
  const Result first = call.prefill(q_start, 128);
  expect_close(first, oracle<double>(cache, queries, q, group, scale_of(spec)), spec.dtype);
  EXPECT_FALSE(call.error());
  const Result again = call.prefill(q_start, 128);
  EXPECT_EQ(first.o, again.o);
  EXPECT_EQ(first.lse, again.lse);
}

TEST(AttentionCudaPaths, PrefillOfEveryLength) {
  RAREFY_NEEDS_GPU();
  for (int length = 1; length <= 400; length += length < 70 ? 1 : 13) {
    CacheSpec spec;
    spec.kv_heads = 1;
    spec.lengths = {length};
    spec.sealed_k = spec.sealed_v = 0.5;
    spec.window = true;
    const RandomCache cache(spec);
    std::vector<std::int32_t> q_start;
    const auto queries = prefill_queries(cache, {std::max(1, length - length / 3)}, 64, q_start);
    const auto q = rounded_to(spec.dtype, random_q(spec, q_start.back(), 2));
    CudaCall call(cache, q, 2, 0.125f);
    expect_close(call.prefill(q_start, 64), oracle<double>(cache, queries, q, 2, 0.125f), spec.dtype);
    ASSERT_FALSE(HasFailure()) << length;
  }
}

TEST(AttentionCudaPaths, ASequenceDoesNotDependOnItsBatch) {
  RAREFY_NEEDS_GPU();
  CacheSpec spec;
  spec.lengths = {5000, 300, 2500};
  spec.sealed_k = spec.sealed_v = 0.5;
  const RandomCache cache(spec);
  const auto q = rounded_to(spec.dtype, random_q(spec, 3, 4));
  const Result together = CudaCall(cache, q, 4, 0.125f).decode();
  const std::size_t row = static_cast<std::size_t>(2 * spec.kv_heads * 4 * spec.head_dim);
  const Result one = CudaCall(cache, {q.begin() + static_cast<std::ptrdiff_t>(row), q.end()}, 4, 0.125f, 2).decode();
  EXPECT_EQ(std::vector<double>(together.o.begin() + static_cast<std::ptrdiff_t>(row), together.o.end()), one.o);
}

TEST(AttentionCudaPaths, BadEntriesAreReportedAndReadNothing) {
  RAREFY_NEEDS_GPU();
  CacheSpec spec;
  spec.lengths = {450};
  spec.sealed_k = spec.sealed_v = 0.5;
  for (const std::int32_t bad : {0, 1 << 30, -(1 << 30), INT32_MIN, INT32_MAX}) {
    RandomCache cache(spec);
    cache.k_map()[cache.at(0, 1, 3)] = bad;
    CudaCall call(cache, rounded_to(spec.dtype, random_q(spec, 1, 4)), 4, 0.125f);
    for (const double x : call.decode().o) EXPECT_TRUE(std::isfinite(x));
    EXPECT_TRUE(call.error()) << bad;
    CudaCall prefill(cache, rounded_to(spec.dtype, random_q(spec, 1, 4)), 4, 0.125f);
    const std::int32_t q_start[] = {0, 1};
    for (const double x : prefill.prefill(q_start, 64).o) EXPECT_TRUE(std::isfinite(x));
    EXPECT_TRUE(prefill.error()) << bad;
  }
  const RandomCache cache(spec);
  CudaCall call(cache, rounded_to(spec.dtype, random_q(spec, 1, 4)), 4, 0.125f);
  call.decode({0, 8, 0, 1}, 2);
  EXPECT_TRUE(call.error());
}

TEST(AttentionCudaPaths, ScoresOfMinusInfinityAndNan) {
  RAREFY_NEEDS_GPU();
  CacheSpec spec;
  spec.lengths = {200};
  spec.magnitude = 2000;  // huge scores: one key takes all
  const RandomCache cache(spec);
  const auto q = rounded_to(spec.dtype, random_q(spec, 1, 4, 7, 100));
  expect_close(CudaCall(cache, q, 4, 1).decode(), oracle<double>(cache, decode_queries(cache), q, 4, 1), spec.dtype);
}

}  // namespace
}  // namespace rarefy::attention
