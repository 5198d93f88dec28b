// Calibration: deterministic, independent of the order in which scores are taken, and worth its file.
#include "rarefy/train/calibrate.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "rarefy/base/check.h"
#include "rarefy/cache/pruners.h"
#include "rarefy/engine/engine.h"
#include "rarefy/eval/perplexity.h"
#include "rarefy/files/gguf.h"
#include "tests/files/temporary_file.h"
#include "tests/model_fixture.h"

namespace rarefy::train {
namespace {

const std::string kModel = RAREFY_SOURCE_DIR "/tests/goldens/families/qwen3";

std::vector<files::TokenId> tokens_of(const model::Model& model, std::size_t count) {
  std::vector<files::TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<files::TokenId>(i * 7919 % 104729 % static_cast<std::size_t>(model.config.vocab));
  return tokens;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Calibration small_calibration(const model::Model& model, std::uint64_t seed = 1) {
  return calibrate(model, tokens_of(model, 600), {.context = 1024, .probes = 8, .swaps = 50, .seed = seed});
}

TEST(Calibrate, TheSameSeedGivesTheSameFile) {
  const model::Model model = model::load_model(kModel);
  const testing::TemporaryFolder folder;
  save_calibration(small_calibration(model), folder.path() / "a");
  save_calibration(small_calibration(model), folder.path() / "b");
  save_calibration(small_calibration(model, 2), folder.path() / "c");
  EXPECT_EQ(read(folder.path() / "a"), read(folder.path() / "b"));
  EXPECT_NE(read(folder.path() / "a"), read(folder.path() / "c"));
  // Reading what was written and writing it again gives the same bytes.
  save_calibration(load_calibration(folder.path() / "a", calibration_of(model)), folder.path() / "d");
  EXPECT_EQ(read(folder.path() / "a"), read(folder.path() / "d"));
}

TEST(Calibrate, TooLittleText) {
  const model::Model model = model::load_model(kModel);
  try {
    calibrate(model, tokens_of(model, 100), {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.id(), "E_CAL_TEXT");
  }
}

TEST(Calibrate, TheBuiltInTextIsLongEnough) { EXPECT_GT(builtin_text().size(), 9000u); }

TEST(CalibrationFile, BrokenAndForeignFilesAreRefused) {
  const model::Model model = model::load_model(kModel);
  const Calibration expected = calibration_of(model);
  const testing::TemporaryFolder folder;
  Calibration good = small_calibration(model);
  const auto error = [&](const std::filesystem::path& path, const Calibration& wanted) -> std::string {
    try {
      load_calibration(path, wanted);
      return "loaded";
    } catch (const Error& e) {
      return e.id();
    }
  };
  const auto saved = [&](const Calibration& c) {
    save_calibration(c, folder.path() / "x");
    return error(folder.path() / "x", expected);
  };
  EXPECT_EQ(saved(good), "loaded");
  Calibration bad = good;
  bad.model_hash = "another";
  EXPECT_EQ(saved(bad), "E_CAL_MODEL");
  bad = good;
  bad.order[1] = bad.order[0];
  EXPECT_EQ(saved(bad), "E_CAL_VALUE");
  bad = good;
  bad.weights[3] = -1;
  EXPECT_EQ(saved(bad), "E_CAL_VALUE");
  bad = good;
  bad.queries[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(saved(bad), "E_CAL_VALUE");
  EXPECT_EQ(error(kModel + "/model.safetensors", expected), "E_CAL_FORMAT");
  EXPECT_EQ(error(folder.path() / "none", expected), "E_FILE_MISSING");
  save_calibration(good, folder.path() / "x");
  const std::string bytes = read(folder.path() / "x");
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
    folder.write("short", bytes.substr(0, size));
    EXPECT_NE(error(folder.path() / "short", expected), "loaded") << size;
  }
  for (std::size_t bit = 0; bit < 8 * 400; ++bit) {  // the header: every bit must end in an error or in a checked load
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    folder.write("flipped", flipped);
    EXPECT_NE(error(folder.path() / "flipped", expected), "");
  }
}

/// Logits of a dense cache must not depend on the channel order, but for sums taken in another order.
TEST(ChannelOrder, ScoresDoNotChange) {
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const model::Model model = model::load_model(RAREFY_SOURCE_DIR "/tests/goldens/families/" + std::string(family));
    const auto tokens = tokens_of(model, 100);
    std::vector<float> logits[2];
    for (int ordered = 0; ordered < 2; ++ordered) {
      engine::EngineConfig config;
      config.context = 1024;
      config.precision = Precision::Fp32;
      if (ordered == 1) config.calibration = std::make_shared<const Calibration>(small_calibration(model));
      KvCache cache(engine::cache_config(model.config, config), config.pruner);
      model::Transformer transformer(model, engine::transformer_options(config));
      logits[ordered] = engine::score(transformer, cache, *cache.add(), tokens);
    }
    for (std::size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[0][i], logits[1][i], 2e-3) << family;
  }
}

TEST(SlowCalibrate, LosesASmallPartOfWhatMagnitudeLoses) {
  SKIP_WITHOUT_MODEL();
  const model::Model model = model::load_model(testing::model_path());
  const files::Tokenizer tokenizer = files::Tokenizer::from_gguf(files::Gguf(testing::model_path()));
  const auto calibration = std::make_shared<const Calibration>(calibrate(model, tokenizer.encode(builtin_text()), {}));
  std::vector<files::TokenId> text = tokenizer.encode(read(RAREFY_SOURCE_DIR "/LICENSE"));
  text.resize(std::min<std::size_t>(text.size(), 1600));
  engine::EngineConfig magnitude;
  magnitude.context = 2048;
  magnitude.decode = {1, 1};
  engine::EngineConfig calibrated = magnitude;
  calibrated.calibration = calibration;
  calibrated.pruner = std::make_shared<CalibratedPruner>(calibration->layers, calibration->kv_heads,
                                                         calibration->head_dim, calibration->weights);
  calibrated.token_weights = TokenWeights::Probe;
  calibrated.loss = format24::LossKind::Energy;
  const double worst = eval::perplexity(model, magnitude, text, 256).divergence.kl_mean;
  const double best = eval::perplexity(model, calibrated, text, 256).divergence.kl_mean;
  std::printf("KL magnitude %.4f, calibrated %.4f\n", worst, best);
  EXPECT_LT(best, 0.15 * worst);  // about 0.05 on most texts; they differ
}

}  // namespace
}  // namespace rarefy::train
