// Every family's decoder against tiny models and numpy's logits (tests/goldens/make_families.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "rarefy/base/check.h"
#include "rarefy/engine/engine.h"
#include "rarefy/engine/feed.h"
#include "tests/files/temporary_file.h"

namespace rarefy {
namespace {

const std::string kGoldens = RAREFY_SOURCE_DIR "/tests/goldens/families/";

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, LogitsEqualNumpys) {
  const model::Model model = model::load_model(kGoldens + GetParam());
  constexpr int kTokens = 24;
  const std::int64_t vocab = model.config.vocab;
  std::vector<float> expected(static_cast<std::size_t>(kTokens * vocab));
  std::ifstream(kGoldens + GetParam() + "/logits.bin", std::ios::binary)
      .read(reinterpret_cast<char*>(expected.data()), static_cast<std::streamsize>(expected.size() * 4));
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back(static_cast<std::int32_t>(i * 7 % vocab));
  engine::EngineConfig config;
  config.context = 1024;
  config.precision = Precision::Fp32;
  KvCache cache(engine::cache_config(model.config, config), config.pruner);
  model::Transformer transformer(model, engine::transformer_options(config));
  for (const int first : {kTokens, 5}) {  // in one pass, and in two over the cache
    const SequenceId sequence = *cache.add();
    std::vector<float> logits =
        engine::score(transformer, cache, sequence, std::span(tokens).first(static_cast<std::size_t>(first)));
    if (first < kTokens) {
      const auto rest =
          engine::score(transformer, cache, sequence, std::span(tokens).subspan(static_cast<std::size_t>(first)));
      logits.insert(logits.end(), rest.begin(), rest.end());
    }
    cache.free(sequence);
    // The cache holds keys and values in float16: 3e-3 of the logits' size is its rounding through two layers.
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 0.01) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Values("llama", "mistral", "qwen2", "qwen3", "minicpm"),
                         [](const auto& family) { return family.param; });

std::string copy_with(const testing::TemporaryFolder& folder, const std::string& from, const std::string& to) {
  std::ifstream in(kGoldens + "llama/config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  config.replace(config.find(from), from.size(), to);
  folder.write("config.json", config);
  std::filesystem::copy_file(kGoldens + "llama/model.safetensors", folder.path() / "model.safetensors");
  try {
    model::load_model(folder.path());
    return "loaded";
  } catch (const Error& e) {
    return e.id() + " " + e.what();
  }
}

TEST(Weights, AConfigThatDisagreesNamesTheTensor) {
  EXPECT_EQ(copy_with(testing::TemporaryFolder(), "\"vocab_size\": 40", "\"vocab_size\": 40"), "loaded");
  const std::string size = copy_with(testing::TemporaryFolder(), "\"vocab_size\": 40", "\"vocab_size\": 41");
  EXPECT_TRUE(size.starts_with("E_CFG_MISMATCH")) << size;
  EXPECT_NE(size.find("model.embed_tokens.weight"), std::string::npos) << size;
  const std::string missing =
      copy_with(testing::TemporaryFolder(), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_TRUE(missing.starts_with("E_TENSOR_MISSING")) << missing;
  EXPECT_NE(missing.find("model.layers.2."), std::string::npos) << missing;
}

TEST(Weights, TheHashTellsModelsApart) {
  EXPECT_NE(model::load_model(kGoldens + "llama").hash, model::load_model(kGoldens + "mistral").hash);
  EXPECT_EQ(model::load_model(kGoldens + "llama").hash, model::load_model(kGoldens + "llama").hash);
}

}  // namespace
}  // namespace rarefy
