// The life cycle of blocks against a plain model of it.
#include "rarefy/cache/kv_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "rarefy/base/check.h"
#include "rarefy/cache/page_plan.h"
#include "rarefy/cache/pruners.h"
#include "rarefy/format24/compress.h"

namespace rarefy {
namespace {

int kLayers = 2;  // tests of pool plans change it
constexpr int kKvHeads = 2, kQHeads = 4, kDim = 64;

CacheConfig config_of(Sparsity prefill, Sparsity decode, int sink = 64, int local = 256) {
  CacheConfig c;
  c.layers = kLayers;
  c.q_heads = kQHeads;
  c.kv_heads = kKvHeads;
  c.head_dim = kDim;
  c.max_sequences = 3;
  c.max_tokens = 1024;
  c.max_chunk = 512;
  c.sink = sink;
  c.local = local;
  c.prefill = prefill;
  c.decode = decode;
  return c;
}

std::shared_ptr<const Pruner> magnitude() { return std::make_shared<MagnitudePruner>(); }

/// The value of one element of the stream of keys or values of a sequence that `seed` names: the same whatever the
/// chunks.
float value_of(unsigned seed, int layer, bool v, std::int64_t token, int head, int channel) {
  std::uint32_t x = seed * 2654435761u ^ static_cast<std::uint32_t>(layer * 2 + v) * 40503u;
  x ^=
      static_cast<std::uint32_t>(token) * 2246822519u ^ static_cast<std::uint32_t>(head * kDim + channel) * 3266489917u;
  x = (x ^ x >> 15) * 2246822519u;
  x = (x ^ x >> 13) * 3266489917u;
  return static_cast<float>(static_cast<std::int32_t>(x ^ x >> 16)) / 1e9f;
}

/// Appends tokens to several sequences in one step; `seeds[i]` names the stream of sequence i.
bool run_step(KvCache& cache, const std::vector<StepSequence>& step, const std::vector<unsigned>& seeds,
              const std::function<void(int layer)>& before_settle = {}) {
  std::vector<std::int64_t> begin;
  std::int64_t rows = 0;
  for (const StepSequence& s : step) {
    begin.push_back(cache.length(s.sequence));
    rows += s.q_len;
  }
  if (!cache.begin_step(step)) return false;
  std::vector<float> q(static_cast<std::size_t>(rows * kQHeads * kDim), 1.f);
  Stream stream;
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<float> k, v;
    for (std::size_t i = 0; i < step.size(); ++i)
      for (std::int64_t t = begin[i]; t < begin[i] + step[i].q_len; ++t)
        for (int head = 0; head < kKvHeads; ++head)
          for (int c = 0; c < kDim; ++c) {
            k.push_back(value_of(seeds[i], layer, false, t, head, c));
            v.push_back(value_of(seeds[i], layer, true, t, head, c));
          }
    cache.append(layer, make_view(q.data(), {rows, kQHeads, kDim}), make_view(k.data(), {rows, kKvHeads, kDim}),
                 make_view(v.data(), {rows, kKvHeads, kDim}), stream);
    cache.fetch(layer, {}, stream);
    if (before_settle) before_settle(layer);
    cache.settle(layer, stream);
  }
  cache.end_step();
  return true;
}

bool feed(KvCache& cache, SequenceId id, unsigned seed, int q_len, Phase phase, std::int64_t prompt_len = 0) {
  return run_step(cache, {{id, q_len, phase, prompt_len}}, {seed});
}

/// Everything that attention could read of a sequence, as values, with zeros where a seal dropped them.
std::vector<float> contents(const KvCache& cache, SequenceId id, std::vector<bool>* sealed = nullptr) {
  std::vector<float> out;
  const std::int64_t length = cache.length(id);
  for (int layer = 0; layer < kLayers; ++layer) {
    const KvView view = cache.view(layer);
    for (const auto side : {format24::Side::K, format24::Side::V})
      for (int head = 0; head < kKvHeads; ++head)
        for (std::int64_t block = 0; block < blocks_of(length); ++block) {
          const std::int32_t* map = side == format24::Side::K ? view.k_map : view.v_map;
          const std::int32_t entry = map[(static_cast<std::int64_t>(id) * kKvHeads + head) * view.max_blocks + block];
          EXPECT_NE(entry, 0);
          if (sealed != nullptr) sealed->push_back(entry < 0);
          std::vector<std::byte> page(static_cast<std::size_t>(format24::dense_page_bytes(kDim)));
          if (entry > 0)
            std::memcpy(page.data(), view.dense + (entry - 1) * format24::dense_page_bytes(kDim), page.size());
          else
            format24::decompress(side, view.dtype, kDim, view.sparse + (-entry - 1) * format24::sparse_page_bytes(kDim),
                                 page.data());
          for (int t = 0; t < std::min<std::int64_t>(kBlock, length - block * kBlock); ++t)
            for (int c = 0; c < kDim; ++c) {
              Half x;
              std::memcpy(&x, page.data() + format24::dense_offset(t, c), 2);
              out.push_back(to_float(x));
            }
        }
  }
  return out;
}

std::vector<bool> sealed_blocks(const KvCache& cache, SequenceId id) {
  std::vector<bool> sealed;
  contents(cache, id, &sealed);
  return sealed;
}

TEST(KvCache, DenseHoldsTheRoundedValuesAtEveryLength) {
  for (int length : {1, 2, 63, 64, 65, 127, 128, 129, 319, 320, 321, 400}) {
    KvCache cache(config_of({}, {}), magnitude());
    const SequenceId id = *cache.add();
    ASSERT_TRUE(feed(cache, id, 1, length, Phase::PrefillEnd));
    std::vector<float> expected;
    for (int layer = 0; layer < kLayers; ++layer)
      for (const bool v : {false, true})
        for (int head = 0; head < kKvHeads; ++head)
          for (int t = 0; t < length; ++t)
            for (int c = 0; c < kDim; ++c)
              expected.push_back(to_float(from_float<Half>(value_of(1, layer, v, t, head, c))));
    EXPECT_EQ(contents(cache, id), expected) << length;
  }
}

TEST(KvCache, SealsExactlyWhatHasLeftSinkAndWindow) {
  for (int length = 1; length <= 700; length += length < 70 || length % 64 == 1 ? 1 : 21) {
    KvCache cache(config_of({}, {1, 1}), magnitude());
    const SequenceId id = *cache.add();
    ASSERT_TRUE(feed(cache, id, 1, std::min(length, 500), length <= 500 ? Phase::PrefillEnd : Phase::Prefill));
    if (length > 500) {
      ASSERT_TRUE(feed(cache, id, 1, length - 500, Phase::PrefillEnd));
    }
    const std::vector<bool> sealed = sealed_blocks(cache, id);
    const std::int64_t blocks = blocks_of(length);
    for (std::size_t i = 0; i < sealed.size(); ++i) {
      const auto block = static_cast<std::int64_t>(i) % blocks;
      EXPECT_EQ(sealed[i], block >= 1 && (block + 1) * 64 <= length - 256) << "length " << length << " block " << block;
    }
  }
}

TEST(KvCache, DecodeOf400TokensEqualsOnePrompt) {
  KvCache stepped(config_of({}, {1, 1}), magnitude()), whole(config_of({}, {1, 1}), magnitude());
  const SequenceId a = *stepped.add(), b = *whole.add();
  ASSERT_TRUE(feed(stepped, a, 5, 300, Phase::PrefillEnd));
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(feed(stepped, a, 5, 1, Phase::Decode));
  // A decode step seals before its query reads, so it knows one token less than a prompt of the same length.
  ASSERT_TRUE(feed(whole, b, 5, 699, Phase::PrefillEnd));
  ASSERT_TRUE(feed(whole, b, 5, 1, Phase::Decode));
  EXPECT_EQ(contents(stepped, a), contents(whole, b));
  EXPECT_EQ(sealed_blocks(stepped, a), sealed_blocks(whole, b));
}

TEST(KvCache, ChunkedPrefillEqualsOneShot) {
  for (const Sparsity prefill : {Sparsity{0, 0}, Sparsity{1, 1}, Sparsity{0, 1}}) {
    KvCache one(config_of(prefill, {1, 1}), magnitude()), many(config_of(prefill, {1, 1}), magnitude());
    const SequenceId a = *one.add(), b = *many.add();
    ASSERT_TRUE(feed(one, a, 9, 500, Phase::PrefillEnd, 500));
    for (const int chunk : {100, 1, 63, 200}) ASSERT_TRUE(feed(many, b, 9, chunk, Phase::Prefill, 500));
    ASSERT_TRUE(feed(many, b, 9, 136, Phase::PrefillEnd, 500));
    EXPECT_EQ(contents(one, a), contents(many, b));
  }
}

/// A calibration of random probes and weights, in the order that the tests' values have.
std::shared_ptr<const Calibration> random_calibration() {
  Calibration c{kLayers, kQHeads, kKvHeads, kDim, 12, "test", {}, {}, {}};
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  c.weights.resize(static_cast<std::size_t>(kLayers * kKvHeads * kDim));
  c.queries.resize(static_cast<std::size_t>(kLayers * kQHeads * c.probes * kDim));
  for (float& x : c.weights) x = 0.1f + std::abs(normal(random));
  for (float& x : c.queries) x = normal(random);
  return std::make_shared<const Calibration>(std::move(c));
}

TEST(KvCache, ChunkedPrefillEqualsOneShotUnderTheCalibratedRule) {
  // Probes are the same queries whatever the chunks, so every bit of every sealed page must be too.
  const auto calibration = random_calibration();
  const auto pruner = std::make_shared<CalibratedPruner>(kLayers, kKvHeads, kDim, calibration->weights);
  for (const Sparsity prefill : {Sparsity{0, 0}, Sparsity{1, 1}, Sparsity{0, 1}})
    for (const format24::LossKind loss : {format24::LossKind::L1, format24::LossKind::Energy}) {
      CacheConfig config = config_of(prefill, {1, 1});
      config.loss = loss;
      config.token_weights = TokenWeights::Probe;
      config.calibration = calibration;
      KvCache one(config, pruner), many(config, pruner);
      const SequenceId a = *one.add(), b = *many.add();
      ASSERT_TRUE(feed(one, a, 9, 500, Phase::PrefillEnd, 500));
      for (const int chunk : {100, 1, 63, 200}) ASSERT_TRUE(feed(many, b, 9, chunk, Phase::Prefill, 500));
      ASSERT_TRUE(feed(many, b, 9, 136, Phase::PrefillEnd, 500));
      EXPECT_EQ(contents(one, a), contents(many, b));
      KvCache magnitude_cache(config_of(prefill, {1, 1}), magnitude());
      const SequenceId c = *magnitude_cache.add();
      ASSERT_TRUE(feed(magnitude_cache, c, 9, 500, Phase::PrefillEnd, 500));
      EXPECT_NE(contents(one, a), contents(magnitude_cache, c));
    }
}

TEST(KvCache, MovingWindowKeepsDensePagesUntilSettle) {
  KvCache cache(config_of({1, 1}, {1, 1}), magnitude());
  const SequenceId id = *cache.add();
  ASSERT_TRUE(run_step(cache, {{id, 512, Phase::Prefill, 1000}}, {3}, [&](int layer) {
    const KvView view = cache.view(layer);
    for (int head = 0; head < kKvHeads; ++head)
      for (std::int64_t block = 0; block < 8; ++block) {
        const std::int64_t at = view.row(0, head) + block;
        const bool due = block >= 1 && (block + 1) * 64 <= 512 - 256;
        EXPECT_EQ(view.k_map[at] < 0, due) << block;
        EXPECT_EQ(view.k_window[at] > 0, due) << block;
        EXPECT_EQ(view.v_window[at] > 0, due) << block;
      }
  }));
  const KvView after = cache.view(kLayers - 1);
  for (std::int64_t i = 0; i < after.max_blocks; ++i) EXPECT_EQ(after.k_window[i], 0);
  EXPECT_EQ(cache.sparse_pages_used(), kLayers * kKvHeads * 2 * 3);
  EXPECT_EQ(cache.dense_pages_used(), kLayers * kKvHeads * 2 * 5);
}

TEST(KvCache, PromptWindowReadsTheChunkItselfSealed) {
  CacheConfig config = config_of({1, 1}, {1, 1});
  config.window = PrefillWindow::Prompt;
  KvCache cache(config, magnitude());
  const SequenceId id = *cache.add();
  ASSERT_TRUE(run_step(cache, {{id, 512, Phase::Prefill, 800}}, {3}, [&](int layer) {
    const KvView view = cache.view(layer);
    for (std::int64_t block = 0; block < 8; ++block) {
      EXPECT_EQ(view.k_map[view.row(0, 0) + block] < 0, block >= 1 && (block + 1) * 64 <= 800 - 256);
      EXPECT_EQ(view.k_window[view.row(0, 0) + block], 0);
    }
  }));
}

TEST(KvCache, ShareOfBlocksIsCeilAndTakesTheLeastLoss) {
  KvCache cache(config_of({}, {0.5f, 0.25f}, 0, 0), magnitude());
  const SequenceId id = *cache.add();
  ASSERT_TRUE(feed(cache, id, 11, 64 * 7, Phase::PrefillEnd));
  const CacheStats stats = cache.stats(id);
  EXPECT_EQ(stats.sealed_k, kLayers * kKvHeads * 4);
  EXPECT_EQ(stats.sealed_v, kLayers * kKvHeads * 2);
  // Decode seals a block only if its loss is at most the threshold, so not all of the next ones.
  for (int i = 0; i < 64 * 8; ++i) ASSERT_TRUE(feed(cache, id, 11, 1, Phase::Decode));
  EXPECT_GT(cache.stats(id).sealed_k, stats.sealed_k);
  EXPECT_LT(cache.stats(id).sealed_k, kLayers * kKvHeads * 15);
}

TEST(KvCache, CompressionRatioIsEquationSixToTheByte) {
  for (const Sparsity s : {Sparsity{0, 0}, Sparsity{0, 1}, Sparsity{0.5f, 1}, Sparsity{1, 1}}) {
    KvCache cache(config_of({}, s, 0, 0), magnitude());
    const SequenceId id = *cache.add();
    constexpr std::int64_t kTokens = 64 * 8;
    ASSERT_TRUE(feed(cache, id, 2, kTokens, Phase::PrefillEnd));
    const CacheStats stats = cache.stats(id);
    const double dense = 2.0 * kTokens * kDim * 2 * kLayers * kKvHeads;
    // Equation 6 with 4 bytes of map per block and side, where the paper has 2.
    const double stored = dense * (1 - 0.21875 * (s.k + s.v)) + 2.0 * 4 * kTokens / 64 * kLayers * kKvHeads;
    EXPECT_EQ(static_cast<double>(stats.k_bytes + stats.v_bytes + stats.map_bytes), stored);
    EXPECT_EQ(static_cast<double>(2 * stats.dense_bytes), dense);
  }
}

TEST(KvCache, ForksDivergeWithoutTouchingEachOther) {
  KvCache cache(config_of({}, {1, 1}), magnitude());
  const SequenceId a = *cache.add();
  ASSERT_TRUE(feed(cache, a, 1, 410, Phase::PrefillEnd));
  const auto before = contents(cache, a);
  const SequenceId b = *cache.fork(a);
  EXPECT_EQ(contents(cache, b), before);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(feed(cache, b, 77, 1, Phase::Decode));
  EXPECT_EQ(contents(cache, a), before);
  const std::int64_t both = cache.stats().k_bytes, first = cache.stats(a).k_bytes, second = cache.stats(b).k_bytes;
  EXPECT_LT(both, first + second);  // the shared pages count once
  cache.free(a);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(feed(cache, b, 77, 1, Phase::Decode));
  cache.free(b);
  EXPECT_EQ(cache.dense_pages_used(), 0);
  EXPECT_EQ(cache.sparse_pages_used(), 0);
}

TEST(KvCache, SequencesOfAStepDoNotDisturbEachOther) {
  KvCache together(config_of({}, {1, 1}), magnitude()), alone(config_of({}, {1, 1}), magnitude());
  std::vector<SequenceId> ids;
  std::vector<StepSequence> step;
  for (const int length : {400, 1, 350}) {
    ids.push_back(*together.add());
    ASSERT_TRUE(feed(together, ids.back(), static_cast<unsigned>(length), length, Phase::PrefillEnd));
    step.push_back({ids.back(), 1, Phase::Decode, 0});
  }
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(run_step(together, step, {400, 1, 350}));
  const SequenceId one = *alone.add();
  ASSERT_TRUE(feed(alone, one, 350, 350, Phase::PrefillEnd));
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(feed(alone, one, 350, 1, Phase::Decode));
  EXPECT_EQ(contents(together, ids[2]), contents(alone, one));
}

TEST(KvCache, TooFewPagesIsAnAnswerAndChangesNothing) {
  CacheConfig config = config_of({}, {1, 1});
  config.dense_pages = kLayers * kKvHeads * 2 * 3;
  KvCache cache(config, magnitude());
  const SequenceId id = *cache.add();
  ASSERT_TRUE(feed(cache, id, 1, 64 * 3, Phase::Prefill));
  const auto before = contents(cache, id);
  EXPECT_FALSE(feed(cache, id, 1, 1, Phase::Decode));
  EXPECT_EQ(cache.length(id), 64 * 3);
  EXPECT_EQ(contents(cache, id), before);
  EXPECT_TRUE(cache.fork(id));  // full pages are shared: a fork needs none
  cache.free(id);
}

TEST(KvCache, Errors) {
  KvCache cache(config_of({}, {1, 1}), magnitude());
  const SequenceId id = *cache.add();
  const auto step = [&](std::vector<StepSequence> s) { (void)cache.begin_step(s); };
  EXPECT_THROW(step({{2, 1, Phase::Decode, 0}}), Error);
  EXPECT_THROW(step({{-1, 1, Phase::Decode, 0}}), Error);
  EXPECT_THROW(step({{id, 0, Phase::Decode, 0}}), Error);
  EXPECT_THROW(step({{id, 1025, Phase::Prefill, 0}}), Error);
  EXPECT_THROW(step({{id, 1, Phase::Decode, 0}, {id, 1, Phase::Decode, 0}}), Error);
  EXPECT_THROW(cache.free(2), Error);
  EXPECT_THROW(cache.length(7), Error);
  ASSERT_TRUE(cache.add() && cache.add());
  EXPECT_FALSE(cache.add());
  CacheConfig bad = config_of({1, 1}, {0, 1});
  EXPECT_THROW(KvCache(bad, magnitude()), Error);
  bad = config_of({}, {});
  bad.head_dim = 80;
  EXPECT_THROW(KvCache(bad, magnitude()), Error);
  bad = config_of({}, {});
  bad.sink = 10;
  EXPECT_THROW(KvCache(bad, magnitude()), Error);
  bad = config_of({}, {std::nanf(""), 0});
  EXPECT_THROW(KvCache(bad, magnitude()), Error);
}

/// A cache of few or many layers: what one layer takes before another gives back differs.
struct LayersGuard {
  int before = kLayers;
  explicit LayersGuard(int layers) { kLayers = layers; }
  ~LayersGuard() { kLayers = before; }
};

TEST(KvCache, OneSequenceFillsItsPlannedPools) {
  const LayersGuard layers(12);
  for (const Sparsity prefill : {Sparsity{0, 0}, Sparsity{0, 1}, Sparsity{0.5f, 1}, Sparsity{1, 1}})
    for (const PrefillWindow window : {PrefillWindow::Moving, PrefillWindow::Prompt}) {
      CacheConfig config = config_of(prefill, {prefill.k, 1});
      config.max_sequences = 1;
      config.window = window;
      KvCache cache(config, magnitude());
      const SequenceId id = *cache.add();
      ASSERT_TRUE(feed(cache, id, 1, 512, Phase::Prefill, 1000));
      ASSERT_TRUE(feed(cache, id, 1, 488, Phase::PrefillEnd, 1000)) << prefill.k << " " << prefill.v;
      for (int i = 0; i < 24; ++i) ASSERT_TRUE(feed(cache, id, 1, 1, Phase::Decode));
    }
}

TEST(KvCache, ScoringAChunkFitsThePlannedPools) {
  const LayersGuard layers(12);
  CacheConfig config = config_of({1, 1}, {1, 1});
  config.max_sequences = 1;
  KvCache cache(config, magnitude());
  const SequenceId id = *cache.add();
  ASSERT_TRUE(feed(cache, id, 1, 512, Phase::PrefillEnd, 512));
  ASSERT_TRUE(feed(cache, id, 1, 512, Phase::Decode));
}

/// Random schedules of prompts, chunks, decode, scoring, forks and frees must never run out of the planned pages.
RC_GTEST_PROP(KvCache, PlannedPoolsNeverRunOut, (unsigned seed)) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int some_layers[] = {1, 2, 5, 9};
  const LayersGuard layers(some_layers[below(4)]);
  const float shares[] = {0, 0.3f, 0.5f, 1, 1};
  const auto share = [&] { return shares[below(5)]; };
  const Sparsity prefill{share(), share()};
  const Sparsity decode{std::max(share(), prefill.k), std::max(share(), prefill.v)};
  CacheConfig config = config_of(prefill, decode, 64 * below(2), 64 * below(4));
  config.max_sequences = 1 + below(3);
  config.max_tokens = 640;
  config.max_chunk = 1 + below(256);
  config.window = below(2) == 0 ? PrefillWindow::Moving : PrefillWindow::Prompt;
  KvCache cache(config, magnitude());
  struct Live {
    SequenceId id;
    std::int64_t prompt;  // tokens at which the prompt ends
  };
  std::vector<Live> live;
  for (int round = 0; round < 24; ++round) {
    if (below(3) == 0)
      if (const auto id = cache.add()) live.push_back({*id, 1 + below(640)});
    if (!live.empty() && below(4) == 0) {
      const Live parent = live[static_cast<std::size_t>(below(static_cast<std::int64_t>(live.size())))];
      if (const auto id = cache.fork(parent.id)) live.push_back({*id, parent.prompt});
    }
    if (!live.empty() && below(12) == 0) {
      cache.free(live.back().id);
      live.pop_back();
    }
    std::vector<StepSequence> step;
    std::int64_t left = config.max_chunk;
    for (const Live& s : live) {
      const std::int64_t length = cache.length(s.id);
      const bool prompt = length < s.prompt;
      const std::int64_t room = std::min(left, (prompt ? s.prompt : config.max_tokens) - length);
      if (room <= 0 || below(5) == 0) continue;
      const int q_len = !prompt && below(2) == 0 ? 1 : static_cast<int>(room - (below(2) == 0 ? 0 : below(room)));
      left -= q_len;
      const Phase phase = !prompt ? Phase::Decode : length + q_len == s.prompt ? Phase::PrefillEnd : Phase::Prefill;
      step.push_back({s.id, q_len, phase, s.prompt});
    }
    if (!step.empty()) RC_ASSERT(run_step(cache, step, std::vector<unsigned>(step.size(), seed)));
  }
  for (const Live& s : live) cache.free(s.id);
  RC_ASSERT(cache.dense_pages_used() == 0 && cache.sparse_pages_used() == 0);
}

}  // namespace
}  // namespace rarefy
