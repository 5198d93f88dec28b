// Fast and plain CPU attention against float64 over the decompressed values: every dtype, head_dim, group and page
// kind.
#include "rarefy/attention/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <tuple>

#include "tests/attention/attention_oracle.h"

namespace rarefy::attention {
namespace {

enum class Kinds { Dense, SealedV, SealedKV, Mixed };

using Case = std::tuple<DType, int, int, Kinds>;  // dtype, head_dim, group, kinds of pages

CacheSpec spec_of(const Case& c, std::vector<int> lengths) {
  CacheSpec spec;
  spec.dtype = std::get<0>(c);
  spec.head_dim = std::get<1>(c);
  spec.lengths = std::move(lengths);
  const Kinds kinds = std::get<3>(c);
  spec.sealed_k = kinds == Kinds::SealedKV ? 1 : kinds == Kinds::Mixed ? 0.5 : 0;
  spec.sealed_v = kinds == Kinds::Dense ? 0 : kinds == Kinds::Mixed ? 0.5 : 1;
  return spec;
}

float scale_of(const CacheSpec& spec) { return 1 / std::sqrt(static_cast<float>(spec.head_dim)); }

class Attention : public testing::TestWithParam<Case> {};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [dtype, head_dim, group, kinds] = info.param;
  static constexpr const char* kNames[] = {"dense", "sealed_v", "sealed_kv", "mixed"};
  return fmt::format("{}_d{}_g{}_{}", dtype == DType::F16 ? "f16" : "bf16", head_dim, group,
                     kNames[static_cast<int>(kinds)]);
}

INSTANTIATE_TEST_SUITE_P(All, Attention,
                         testing::Combine(testing::Values(DType::F16, DType::BF16), testing::Values(64, 128),
                                          testing::Values(1, 2, 3, 4, 6, 8, 19),
                                          testing::Values(Kinds::Dense, Kinds::SealedV, Kinds::SealedKV, Kinds::Mixed)),
                         case_name);

const std::vector<int> kCorners = {0, 1, 2, 63, 64, 65, 66, 127, 128, 129, 255, 256, 257, 450};

TEST_P(Attention, DecodeMatchesFloat64) {
  const int group = std::get<2>(GetParam());
  const RandomCache cache(spec_of(GetParam(), kCorners));
  const float scale = scale_of(cache.spec());
  const auto q = random_q(cache.spec(), static_cast<int>(kCorners.size()), group);
  const auto queries = decode_queries(cache);
  const Result exact = oracle<double>(cache, queries, q, group, scale);
  const Result plain = oracle<float>(cache, queries, q, group, scale);
  expect_close(Call(cache, q, group, {.scale = scale}).decode(), exact, plain);
  if (group <= 3)
    expect_close(Call(cache, q, group, {.scale = scale, .version = Version::Plain}).decode(), exact, plain);
}

TEST_P(Attention, PrefillMatchesFloat64) {
  const int group = std::get<2>(GetParam());
  const RandomCache cache(spec_of(GetParam(), {1, 64, 65, 203, 40, 0}));
  const std::vector<int> q_lens = {1, 64, 3, 37, 0, 0};
  const float scale = scale_of(cache.spec());
  std::vector<std::int32_t> q_start;
  const auto queries = prefill_queries(cache, q_lens, 256, q_start);
  const auto q = random_q(cache.spec(), q_start.back(), group);
  const Result exact = oracle<double>(cache, queries, q, group, scale);
  const Result plain = oracle<float>(cache, queries, q, group, scale);
  expect_close(Call(cache, q, group, {.scale = scale, .precision = Precision::Fp32}).prefill(q_start), exact, plain);
}

// The named cases below need no full product of parameters; these four cover the code paths.
class AttentionPaths : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Some, AttentionPaths,
                         testing::Values(Case{DType::F16, 64, 3, Kinds::Mixed}, Case{DType::BF16, 128, 4, Kinds::Mixed},
                                         Case{DType::F16, 64, 3, Kinds::SealedKV},
                                         Case{DType::F16, 128, 1, Kinds::Dense}),
                         case_name);

TEST_P(AttentionPaths, LengthsOneToFourHundred) {
  std::vector<int> lengths;
  for (int n = 1; n <= 400; n += n < 70 ? 1 : 11) lengths.push_back(n);
  const int group = std::get<2>(GetParam());
  const RandomCache cache(spec_of(GetParam(), lengths));
  const float scale = scale_of(cache.spec());
  const auto q = random_q(cache.spec(), static_cast<int>(lengths.size()), group);
  const auto queries = decode_queries(cache);
  expect_close(Call(cache, q, group, {.scale = scale}).decode(), oracle<double>(cache, queries, q, group, scale),
               oracle<float>(cache, queries, q, group, scale));
}

// Window pages hold other values than sealed ones, so that one wrong choice of page is far outside the tolerance.
TEST_P(AttentionPaths, WindowMovesWithTheTile) {
  CacheSpec spec = spec_of(GetParam(), {500, 200});
  spec.window = true;
  spec.sealed_k = spec.sealed_v = 0.8;
  const RandomCache cache(spec);
  const int group = std::get<2>(GetParam());
  const float scale = scale_of(spec);
  for (const int local : {0, 64, 256}) {
    std::vector<std::int32_t> q_start;
    const auto queries = prefill_queries(cache, {260, 30}, local, q_start);
    const auto q = random_q(spec, q_start.back(), group);
    const Result exact = oracle<double>(cache, queries, q, group, scale);
    const Result plain = oracle<float>(cache, queries, q, group, scale);
    const Options options{.scale = scale, .local = local, .precision = Precision::Fp32};
    expect_close(Call(cache, q, group, options).prefill(q_start), exact, plain);
    if (local != 64) continue;
    Options plain_options = options;
    plain_options.version = Version::Plain;
    expect_close(Call(cache, q, group, plain_options).prefill(q_start), exact, plain);
  }
}

TEST_P(AttentionPaths, DecodeReadsTheMapAndNotTheWindow) {
  CacheSpec spec = spec_of(GetParam(), {500});
  spec.window = true;
  const RandomCache cache(spec);
  const int group = std::get<2>(GetParam());
  const auto q = random_q(spec, 1, group);
  const auto queries = decode_queries(cache);
  expect_close(Call(cache, q, group, {.scale = 0.1f}).decode(), oracle<double>(cache, queries, q, group, 0.1f),
               oracle<float>(cache, queries, q, group, 0.1f));
}

TEST_P(AttentionPaths, ChunksEqualOneShot) {
  const RandomCache cache(spec_of(GetParam(), {333}));
  const int group = std::get<2>(GetParam());
  const auto q = random_q(cache.spec(), 333, group);
  const std::vector<std::int32_t> one_shot = {0, 333};
  const Options options{.scale = 0.1f, .local = 1 << 20, .precision = Precision::Fp32};
  const Result whole = Call(cache, q, group, options).prefill(one_shot);
  const std::size_t width = q.size() / 333;
  for (const auto& [begin, end] : {std::pair{0, 77}, {77, 78}, {78, 333}}) {
    RandomCache chunk = cache;
    chunk.lengths()[0] = end;
    const std::vector<float> part(q.begin() + begin * width, q.begin() + end * width);
    const std::vector<std::int32_t> q_start = {0, end - begin};
    const Result got = Call(chunk, part, group, options).prefill(q_start);
    for (std::size_t i = 0; i < got.o.size(); ++i) ASSERT_EQ(got.o[i], whole.o[begin * width + i]) << begin << " " << i;
  }
}

// What is past the end is NaN in every RandomCache; here the last blocks are sealed too.
TEST_P(AttentionPaths, PoisonedTailsOfSealedPages) {
  CacheSpec spec = spec_of(GetParam(), {1, 2, 3, 5, 63, 65, 70, 97, 127});
  spec.seal_partial = true;
  spec.sealed_k = spec.sealed_v = 1;
  const RandomCache cache(spec);
  const int group = std::get<2>(GetParam()), rows = static_cast<int>(spec.lengths.size());
  const auto q = random_q(spec, rows, group);
  const auto queries = decode_queries(cache);
  const Result exact = oracle<double>(cache, queries, q, group, 0.1f);
  const Result plain = oracle<float>(cache, queries, q, group, 0.1f);
  expect_close(Call(cache, q, group, {.scale = 0.1f}).decode(), exact, plain);
  std::vector<std::int32_t> q_start(rows + 1);
  std::iota(q_start.begin(), q_start.end(), 0);
  expect_close(Call(cache, q, group, {.scale = 0.1f, .precision = Precision::Fp32}).prefill(q_start), exact, plain);
}

std::vector<std::int32_t> padded(const std::vector<std::vector<int>>& lists, int max_selected) {
  std::vector<std::int32_t> ids;
  for (const auto& list : lists) {
    ids.insert(ids.end(), list.begin(), list.end());
    ids.resize(ids.size() + max_selected - list.size(), -1);
  }
  return ids;
}

TEST_P(AttentionPaths, DecodeOfListedBlocks) {
  const RandomCache cache(spec_of(GetParam(), {700, 700, 700, 65}));
  const int group = std::get<2>(GetParam());
  const std::vector<std::vector<int>> lists = {{},  {3},   {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {10}, {0, 5, 10}, {2, 3},
                                               {1}, {0, 1}};
  const auto ids = padded(lists, 11);
  const auto q = random_q(cache.spec(), 4, group);
  const auto queries = decode_queries(cache);
  const Result exact = oracle<double>(cache, queries, q, group, 0.1f, &lists);
  const Result plain = oracle<float>(cache, queries, q, group, 0.1f, &lists);
  for (const Version version : {Version::Fast, Version::Plain})
    expect_close(Call(cache, q, group, {.scale = 0.1f, .version = version}).decode({ids.data(), 11}), exact, plain);
}

TEST_P(AttentionPaths, PrefillOfListedBlocks) {
  CacheSpec spec = spec_of(GetParam(), {400});
  spec.window = true;
  const RandomCache cache(spec);
  const int group = std::get<2>(GetParam());
  std::vector<std::int32_t> q_start;
  const auto queries = prefill_queries(cache, {150}, 64, q_start);
  std::vector<std::vector<int>> lists;
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<int> list;
    for (int b = 0; b < 7; ++b)
      if (random() % 2 || i == 0) list.push_back(b);  // some lie past the query: they add no key
    lists.push_back(list);
  }
  const auto ids = padded(lists, 7);
  const auto q = random_q(spec, 150, group);
  const Result exact = oracle<double>(cache, queries, q, group, 0.1f, &lists);
  const Result plain = oracle<float>(cache, queries, q, group, 0.1f, &lists);
  for (const Version version : {Version::Fast, Version::Plain}) {
    const Options options{.scale = 0.1f, .local = 64, .version = version};
    expect_close(Call(cache, q, group, options).prefill(q_start, {ids.data(), 7}), exact, plain);
  }
}

TEST_P(AttentionPaths, AListOfAllBlocksEqualsNoList) {
  const RandomCache cache(spec_of(GetParam(), {1300}));
  const int group = std::get<2>(GetParam());
  const auto q = random_q(cache.spec(), 1, group);
  std::vector<std::int32_t> all(21 * 2);
  for (int i = 0; i < 42; ++i) all[i] = i % 21;
  const Result listed = Call(cache, q, group, {.scale = 0.1f}).decode({all.data(), 21});
  EXPECT_EQ(listed.o, Call(cache, q, group, {.scale = 0.1f}).decode().o);
}

TEST_P(AttentionPaths, RerunsAndThreadCountsAreBitEqual) {
  const RandomCache cache(spec_of(GetParam(), {1500, 70}));
  const int group = std::get<2>(GetParam());
  std::vector<std::int32_t> q_start = {0, 200, 270};
  const auto q = random_q(cache.spec(), 270, group), q2 = random_q(cache.spec(), 2, group);
  const int threads = omp_get_max_threads();
  Result decoded, prefilled;
  for (const int n : {1, 1, 2, 3, 7}) {
    omp_set_num_threads(n);
    const Result d = Call(cache, q2, group, {.scale = 0.1f}).decode();
    const Result p = Call(cache, q, group, {.scale = 0.1f}).prefill(q_start);
    if (decoded.o.empty()) decoded = d, prefilled = p;
    EXPECT_EQ(d.o, decoded.o) << n;
    EXPECT_EQ(d.lse, decoded.lse) << n;
    EXPECT_EQ(p.o, prefilled.o) << n;
    EXPECT_EQ(p.lse, prefilled.lse) << n;
  }
  omp_set_num_threads(threads);
}

TEST_P(AttentionPaths, ASequenceDoesNotDependOnItsBatch) {
  const RandomCache cache(spec_of(GetParam(), {3, 1500, 70, 640}));
  const int group = std::get<2>(GetParam());
  const auto q = random_q(cache.spec(), 4, group);
  const Result together = Call(cache, q, group, {.scale = 0.1f}).decode();
  const std::size_t width = q.size() / 4;
  for (int b = 0; b < 4; ++b) {
    RandomCache alone = cache;
    std::swap(alone.slots()[0], alone.slots()[b]);
    alone.lengths() = {cache.spec().lengths[b]};
    const std::vector<float> one(q.begin() + b * width, q.begin() + (b + 1) * width);
    const Result got = Call(alone, one, group, {.scale = 0.1f}).decode();
    for (std::size_t i = 0; i < width; ++i) ASSERT_EQ(got.o[i], together.o[b * width + i]);
  }
}

TEST_P(AttentionPaths, HugeScores) {
  CacheSpec spec = spec_of(GetParam(), {300, 64});
  spec.magnitude = 100;
  const RandomCache cache(spec);
  const int group = std::get<2>(GetParam());
  const auto q = random_q(spec, 2, group, 7, 1e4f);
  const auto queries = decode_queries(cache);
  const Result exact = oracle<double>(cache, queries, q, group, 1);
  const Result got = Call(cache, q, group, {.scale = 1}).decode();
  // One key takes all: with scores of 1e7 only a tie within float32's rounding could differ, and there is none here.
  for (std::size_t i = 0; i < got.o.size(); ++i) ASSERT_NEAR(got.o[i], exact.o[i], 1e-3 * 100) << i;
  for (std::size_t i = 0; i < got.lse.size(); ++i) ASSERT_NEAR(got.lse[i], exact.lse[i], 2e-6 * std::abs(exact.lse[i]));
}

// Scores that overflow to -inf, all of them: no key is left, and the row says so instead of NaN.
TEST_P(AttentionPaths, MinusInfinityScores) {
  CacheSpec spec = spec_of(GetParam(), {1});
  spec.sealed_k = 0;
  const RandomCache cache(spec);
  const int group = std::get<2>(GetParam());
  auto q = random_q(spec, 1, group);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const int kv_head = static_cast<int>(i) / (group * spec.head_dim);
    const double key = cache.values(false, 0, kv_head, 0, false)[i % spec.head_dim];
    q[i] = key > 0 ? -3e38f : 3e38f;
  }
  const Result got = Call(cache, q, group, {.scale = 0.5f}).decode();
  const std::vector<std::int32_t> q_start = {0, 1};
  const Result prefilled = Call(cache, q, group, {.scale = 0.5f}).prefill(q_start);
  for (const double x : got.lse) EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
  for (const double x : got.o) EXPECT_EQ(x, 0);
  EXPECT_EQ(prefilled.lse, got.lse);
  EXPECT_EQ(prefilled.o, got.o);
}

TEST_P(AttentionPaths, EqualScoresAverage) {
  const RandomCache cache(spec_of(GetParam(), {130, 130}));
  const int group = std::get<2>(GetParam());
  for (const Version version : {Version::Fast, Version::Plain}) {
    const Options options{.scale = 0, .version = version};
    const Result got = Call(cache, random_q(cache.spec(), 2, group), group, options).decode();
    for (const double x : got.lse) EXPECT_NEAR(x, std::log(130.0), 1e-5);
  }
}

// A NaN among a sequence's own keys reaches its row, and no other row.
TEST_P(AttentionPaths, NanOfTheSequenceItselfShows) {
  const RandomCache cache(spec_of(GetParam(), {130, 130}));
  const int group = std::get<2>(GetParam());
  auto q = random_q(cache.spec(), 2, group);
  q[0] = std::nanf("");
  const Result got = Call(cache, q, group, {.scale = 0.1f}).decode();
  EXPECT_TRUE(std::isnan(got.o[0]));
  for (std::size_t i = cache.spec().head_dim; i < got.o.size(); ++i) ASSERT_FALSE(std::isnan(got.o[i]));
}

TEST(AttentionShapes, MoreQueriesThanKeys) {
  CacheSpec spec;
  spec.lengths = {113};
  const RandomCache cache(spec);
  std::vector<std::int32_t> q_start;
  const auto queries = prefill_queries(cache, {203}, 256, q_start);
  const auto q = random_q(spec, 203, 3);
  const Result exact = oracle<double>(cache, queries, q, 3, 0.1f);
  const Result got = Call(cache, q, 3, {.scale = 0.1f, .precision = Precision::Fp32}).prefill(q_start);
  expect_close(got, exact, oracle<float>(cache, queries, q, 3, 0.1f));
  EXPECT_EQ(got.o[0], 0);
  EXPECT_EQ(got.lse[0], -std::numeric_limits<double>::infinity());
}

TEST(DecodeSplit, FillsTheGpuOnce) {
  EXPECT_EQ(decode_split_blocks(8, 512, 132), 16);
  EXPECT_EQ(decode_split_blocks(8, 2048, 132), 64);
  EXPECT_EQ(decode_split_blocks(64, 512, 132), 128);
  EXPECT_EQ(decode_split_blocks(1 << 20, 1 << 14, 1), 512);
  EXPECT_EQ(decode_split_blocks(0, 0, 0), 16);
}

TEST(AttentionShapes, EmptyBatch) {
  const RandomCache cache{CacheSpec{}};
  const std::vector<std::int32_t> q_start = {0};
  EXPECT_TRUE(Call(cache, {}, 3, {}).decode().o.empty());
  EXPECT_TRUE(Call(cache, {}, 3, {}).prefill(q_start).o.empty());
}

}  // namespace
}  // namespace rarefy::attention
