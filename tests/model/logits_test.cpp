// Logits of SmolLM2 against the reference of tests/goldens/make_logits.py (float32 from the dequantised weights).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "rarefy/engine/engine.h"
#include "rarefy/engine/feed.h"
#include "rarefy/eval/distribution.h"
#include "tests/model_fixture.h"

namespace rarefy {
namespace {

constexpr int kTop = 64;

struct GoldenPosition {
  std::int32_t ids[kTop];
  float log_p[kTop];
  float rest;
};
struct GoldenPrompt {
  std::vector<std::int32_t> tokens;
  std::vector<GoldenPosition> positions;
};

std::vector<GoldenPrompt> read_goldens() {
  std::ifstream in(RAREFY_SOURCE_DIR "/tests/goldens/logits.bin", std::ios::binary);
  const auto read = [&](void* data, std::size_t size) {
    in.read(static_cast<char*>(data), static_cast<std::streamsize>(size));
  };
  std::int32_t prompts = 0;
  read(&prompts, 4);
  std::vector<GoldenPrompt> out(static_cast<std::size_t>(prompts));
  for (GoldenPrompt& prompt : out) {
    std::int32_t count = 0;
    read(&count, 4);
    prompt.tokens.resize(static_cast<std::size_t>(count));
    prompt.positions.resize(prompt.tokens.size());
    read(prompt.tokens.data(), prompt.tokens.size() * 4);
    for (GoldenPosition& p : prompt.positions) read(p.ids, sizeof p.ids);
    for (GoldenPosition& p : prompt.positions) read(p.log_p, sizeof p.log_p);
    for (GoldenPosition& p : prompt.positions) read(&p.rest, sizeof p.rest);
  }
  EXPECT_TRUE(in.good());
  return out;
}

/// Sum over positions of KL(golden || ours) on the golden's top tokens and one bucket for the rest; equal top tokens.
struct Distance {
  double kl = 0;
  int same = 0, positions = 0;

  void add(const GoldenPosition& golden, std::span<const float> logits) {
    std::vector<float> log_p(logits.size());
    eval::log_softmax(logits, log_p);
    double seen = 0;
    for (int i = 0; i < kTop; ++i) {
      const double ours = log_p[static_cast<std::size_t>(golden.ids[i])];
      seen += std::exp(ours);
      kl += std::exp(golden.log_p[i]) * (golden.log_p[i] - ours);
    }
    kl += std::exp(golden.rest) * (golden.rest - std::log(std::max(1 - seen, 1e-30)));
    same += std::max_element(log_p.begin(), log_p.end()) - log_p.begin() == golden.ids[0];
    ++positions;
  }
};

/// All positions, in chunks over the cache (prefill) or one by one (decode).
Distance measure(Precision precision, std::int64_t rows_per_pass) {
  const model::Model model = model::load_model(testing::model_path());
  engine::EngineConfig config;
  config.context = 512;
  config.chunk = rows_per_pass;
  config.precision = precision;
  KvCache cache(engine::cache_config(model.config, config), config.pruner);
  model::Transformer transformer(model, engine::transformer_options(config));
  Distance distance;
  for (const GoldenPrompt& prompt : read_goldens()) {
    const SequenceId sequence = *cache.add();
    for (std::size_t at = 0; at < prompt.tokens.size(); at += static_cast<std::size_t>(rows_per_pass)) {
      const std::size_t count = std::min(static_cast<std::size_t>(rows_per_pass), prompt.tokens.size() - at);
      const std::vector<float> logits =
          engine::score(transformer, cache, sequence, std::span(prompt.tokens).subspan(at, count));
      const auto vocab = static_cast<std::size_t>(model.config.vocab);
      for (std::size_t i = 0; i < count; ++i)
        distance.add(prompt.positions[at + i], std::span(logits).subspan(i * vocab, vocab));
    }
    cache.free(sequence);
  }
  return distance;
}

void expect_within(const Distance& d, double kl, double same) {
  ASSERT_GE(d.positions, 500);
  std::printf("KL %.6f, same top token %.2f %% of %d positions\n", d.kl / d.positions, 100.0 * d.same / d.positions,
              d.positions);
  EXPECT_LE(d.kl / d.positions, kl);
  EXPECT_GE(d.same, same * d.positions);
}

TEST(SlowLogits, PrefillFp32) {
  SKIP_WITHOUT_MODEL();
  expect_within(measure(Precision::Fp32, 512), 1e-4, 0.995);
}
TEST(SlowLogits, PrefillFast) {
  SKIP_WITHOUT_MODEL();
  expect_within(measure(Precision::Fast, 200), 0.003, 0.975);
}
TEST(SlowLogits, DecodeFp32) {
  SKIP_WITHOUT_MODEL();
  expect_within(measure(Precision::Fp32, 1), 1e-4, 0.995);
}
TEST(SlowLogits, DecodeFast) {
  SKIP_WITHOUT_MODEL();
  expect_within(measure(Precision::Fast, 1), 0.003, 0.975);
}

}  // namespace
}  // namespace rarefy
