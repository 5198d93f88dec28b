// Everything that attention refuses: each stable error id, and a message that names the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rarefy/attention/params.h"
#include "tests/attention/attention_oracle.h"

namespace rarefy::attention {
namespace {

using testing::HasSubstr;

CacheSpec small_spec() {
  CacheSpec spec;
  spec.lengths = {130, 70};
  spec.window = true;
  spec.sealed_k = spec.sealed_v = 0.5;
  return spec;
}

template <typename Run>
void expect_refused(const Run& run, ErrorCode code, const std::string& id, const std::string& part) {
  try {
    run();
    ADD_FAILURE() << "accepted; expected " << id;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    EXPECT_EQ(e.id(), id);
    EXPECT_THAT(e.what(), HasSubstr(part));
  }
}

// Both operations must refuse the cache.
void expect_refused(const RandomCache& cache, const std::string& id, const std::string& part, BlockList blocks = {}) {
  const auto q = random_q(cache.spec(), 2, 3);
  const std::vector<std::int32_t> q_start = {0, 1, 2};
  expect_refused([&] { Call(cache, q, 3, {}).decode(blocks); }, ErrorCode::BadInput, id, part);
  expect_refused([&] { Call(cache, q, 3, {}).prefill(q_start, blocks); }, ErrorCode::BadInput, id, part);
}

TEST(AttentionChecks, MapEntriesStayInTheirPools) {
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min(),
                         kMax = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t entry : {kMin, kMin + 1, -100000, 100000, 32768, 65536, kMax}) {
    RandomCache k(small_spec()), v(small_spec()), window(small_spec());
    k.k_map()[k.at(1, 0, 1)] = entry;
    expect_refused(k, "E_MAP_RANGE", fmt::format("k_map: sequence 1, KV head 0, block 1: entry {}", entry));
    v.v_map()[v.at(0, 1, 2)] = entry;
    expect_refused(v, "E_MAP_RANGE", fmt::format("v_map: sequence 0, KV head 1, block 2: entry {}", entry));
    window.k_window()[window.at(0, 1, 0)] = entry;
    expect_refused(window, "E_MAP_RANGE", fmt::format("k_window: sequence 0, KV head 1, block 0: entry {}", entry));
  }
  RandomCache sparse_window(small_spec());
  sparse_window.k_window()[sparse_window.at(0, 0, 0)] = -1;
  expect_refused(sparse_window, "E_MAP_RANGE", "entry -1");
}

TEST(AttentionChecks, TheLastPageOfAPoolIsInside) {
  RandomCache cache(small_spec());
  cache.v_map()[cache.at(0, 0, 0)] = cache.view().dense_pages;
  const auto q = random_q(cache.spec(), 2, 3);
  EXPECT_NO_THROW(Call(cache, q, 3, {}).decode());
  cache.v_map()[cache.at(0, 0, 0)] = cache.view().dense_pages + 1;
  expect_refused(cache, "E_MAP_RANGE", "v_map");
  cache.v_map()[cache.at(0, 0, 0)] = -cache.view().sparse_pages - 1;
  expect_refused(cache, "E_MAP_RANGE", "v_map");
}

TEST(AttentionChecks, BlocksAreResident) {
  RandomCache cache(small_spec());
  cache.v_map()[cache.at(0, 1, 1)] = 0;
  expect_refused(cache, "E_NOT_RESIDENT", "sequence 0, KV head 1: block 1");
  // A list that leaves the block out may be read.
  const std::vector<std::int32_t> without = {0, 2, 0, 2, 0, 1, 0, 1}, with = {0, 2, 1, 2, 0, 1, 0, 1};
  const auto q = random_q(cache.spec(), 2, 3);
  EXPECT_NO_THROW(Call(cache, q, 3, {}).decode({without.data(), 2}));
  expect_refused(cache, "E_NOT_RESIDENT", "sequence 0, KV head 1: block 1", {with.data(), 2});
}

TEST(AttentionChecks, ListsAscendInsideTheSequence) {
  const RandomCache cache(small_spec());
  const struct {
    std::vector<std::int32_t> ids;  // [2 rows, 2 KV heads, 2]
    const char* id;
    const char* part;
  } cases[] = {
      {{0, 3, 0, 1, 0, 1, 0, 1}, "E_LIST_RANGE", "row 0 of the block list, KV head 0: block 3 at 1"},
      {{0, 2, 0, 1, 0, 1, 0, 2}, "E_LIST_RANGE", "row 1 of the block list, KV head 1: block 2 at 1"},
      {{0, 2, -2, 1, 0, 1, 0, 1}, "E_LIST_RANGE", "block -2 at 0"},
      {{0, 2, 0, 2147483647, 0, 1, 0, 1}, "E_LIST_RANGE", "block 2147483647"},
      {{1, 0, 0, 1, 0, 1, 0, 1}, "E_LIST_ORDER", "block 0 at 1 follows 1"},
      {{0, 2, 1, 1, 0, 1, 0, 1}, "E_LIST_ORDER", "block 1 at 1 follows 1"},
      {{0, 2, 0, 1, -1, 1, 0, 1}, "E_LIST_ORDER", "row 1 of the block list, KV head 0: block 1 at 1 follows -1"},
  };
  for (const auto& c : cases) expect_refused(cache, c.id, c.part, {c.ids.data(), 2});
}

TEST(AttentionChecks, LengthsFitTheMaps) {
  for (const int length : {-1, std::numeric_limits<int>::min(), 64 * 4 + 1, std::numeric_limits<int>::max()}) {
    RandomCache cache(small_spec());
    ASSERT_EQ(cache.view().max_blocks, 4);
    cache.lengths()[1] = length;
    expect_refused(cache, "E_KV_LEN", fmt::format("sequence 1: kv_len {}", length));
  }
  RandomCache cache(small_spec());
  cache.slots()[1] = -1;
  expect_refused(cache, "E_SLOT", "sequence 1: slot -1");
}

TEST(AttentionChecks, Shapes) {
  const RandomCache cache(small_spec());
  const auto q = random_q(cache.spec(), 2, 3);
  for (const std::vector<std::int32_t>& q_start :
       {std::vector<std::int32_t>{0, 2}, {0, 1, 1}, {1, 1, 2}, {0, 3, 2}, {0, -1, 2}})
    expect_refused([&] { Call(cache, q, 3, {}).prefill(q_start); }, ErrorCode::BadInput, "E_CHECK", "q_start");
  expect_refused([&] { Call(cache, random_q(cache.spec(), 3, 3), 3, {}).decode(); }, ErrorCode::BadInput, "E_CHECK",
                 "3");

  std::vector<float> o(q.size());
  Workspace workspace;
  Stream stream;
  const auto call = [&](const Shape& q_shape, const Shape& o_shape, const Shape& lse_shape) {
    return [&, q_shape, o_shape, lse_shape] {
      std::vector<float> in = q;
      decode(make_view(in.data(), q_shape), cache.view(), {}, {}, make_view(o.data(), o_shape),
             make_view(o.data(), lse_shape), workspace, stream);
    };
  };
  expect_refused(call({2, 6, 32}, {2, 6, 32}, {2, 6}), ErrorCode::BadInput, "E_CHECK", "q: expected");
  expect_refused(call({2, 5, 64}, {2, 5, 64}, {2, 5}), ErrorCode::BadInput, "E_CHECK", "5 query heads over 2 KV heads");
  expect_refused(call({2, 6, 64}, {2, 5, 64}, {2, 6}), ErrorCode::BadInput, "E_CHECK", "o: expected");
  expect_refused(call({2, 6, 64}, {2, 6, 64}, {6, 2}), ErrorCode::BadInput, "E_CHECK", "lse: expected");
}

TEST(AttentionChecks, AMissingKernelNamesWhatExists) {
  const RandomCache cache(small_spec());
  std::vector<float> q(2 * 6 * 96);
  Workspace workspace;
  Stream stream;
  KvView view = cache.view();
  const auto run = [&] {
    const TensorView x = make_view(q.data(), {2, 6, view.head_dim});
    decode(x, view, {}, {}, x, {}, workspace, stream);
  };
  view.head_dim = 96;
  expect_refused(run, ErrorCode::Unsupported, "E_NO_KERNEL", "\"decode cpu fast F16 head_dim 96\"");
  expect_refused(run, ErrorCode::Unsupported, "E_NO_KERNEL", "decode cpu fast BF16 head_dim 128");
  view = cache.view();
  view.dtype = DType::F32;
  expect_refused(run, ErrorCode::Unsupported, "E_NO_KERNEL", "F32");
  view = cache.view();
  view.device = {Device::Kind::Cuda, 0};
  expect_refused(run, ErrorCode::Unsupported, "E_NO_KERNEL", "decode cuda");
}

TEST(AttentionKernels, AreDescribed) {
  const auto lines = describe_kernels();
  EXPECT_EQ(lines.size(), 16u);
  EXPECT_THAT(lines.front(), HasSubstr("decode cpu fast F16 head_dim 64"));
}

// No pool of this size fits a test: the arithmetic is checked on its own.
TEST(PageOffset, Beyond31Bits) {
  EXPECT_EQ(page_offset(1, 64), 0);
  EXPECT_EQ(page_offset(-1, 64), 0);
  EXPECT_EQ(page_offset(32768, 128), 32767ll * 16384);
  EXPECT_EQ(page_offset(131073, 128), 1ll << 31);
  EXPECT_EQ(page_offset(-233018, 128), 233017ll * 9216);
  EXPECT_EQ(page_offset(std::numeric_limits<std::int32_t>::max(), 128), 2147483646ll * 16384);
  EXPECT_EQ(page_offset(std::numeric_limits<std::int32_t>::min(), 64), 2147483647ll * 4608);
}

TEST(MapRow, Beyond31Bits) {
  const std::int32_t slot = 1 << 20;
  KvView view;
  view.slots = &slot;
  view.kv_heads = 8;
  view.max_blocks = 4096;
  EXPECT_EQ(view.row(0, 7), ((1ll << 20) * 8 + 7) * 4096);
}

}  // namespace
}  // namespace rarefy::attention
