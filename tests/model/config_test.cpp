// Configs from config.json and GGUF: ranges, shapes, rope scaling, families.
#include "rarefy/model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"
#include "tests/files/gguf_writer.h"
#include "tests/files/temporary_file.h"

namespace rarefy::model {
namespace {

const std::string kGood =
    R"("model_type":"llama","num_hidden_layers":2,"hidden_size":256,"intermediate_size":512,"num_attention_heads":4,
"num_key_value_heads":2,"vocab_size":1000,"max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000.0)";

Config from_json(const std::string& json) {
  const testing::TemporaryFolder folder;
  folder.write("config.json", json);
  return config_from_folder(folder.path());
}

/// The error of a config that is the good one with `key` replaced or added.
std::string error_with(const std::string& key, const std::string& value) {
  std::string fields = kGood;
  const std::size_t at = fields.find("\"" + key + "\":");
  if (at != std::string::npos) {
    const std::size_t end = fields.find(',', at);
    fields.erase(at, end == std::string::npos ? std::string::npos : end - at + 1);
    if (fields.ends_with(',')) fields.pop_back();
  }
  try {
    from_json("{" + fields + (value.empty() ? "" : ",\"" + key + "\":" + value) + "}");
    return "loaded";
  } catch (const Error& e) {
    return e.id();
  }
}

TEST(Config, GoodJson) {
  const Config c = from_json("{" + kGood + "}");
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.group(), 2);
  EXPECT_EQ(c.rope_layout, ops::RopeLayout::Halves);
  EXPECT_EQ(error_with("auto_map", R"({"AutoModel":"evil.py"})"), "loaded");  // ignored: nothing runs it
}

TEST(Config, BadJsonGetsItsError) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "vocab_size"}) {
    EXPECT_NE(error_with(key, "0"), "loaded") << key;
    EXPECT_NE(error_with(key, "-1"), "loaded") << key;
    EXPECT_NE(error_with(key, "1000000000000"), "loaded") << key;
    EXPECT_EQ(error_with(key, "\"32\""), "E_JSON_TYPE") << key;
    EXPECT_EQ(error_with(key, "1.5"), "E_JSON_TYPE") << key;
  }
  EXPECT_EQ(error_with("num_hidden_layers", "0"), "E_CFG_RANGE");
  EXPECT_EQ(error_with("num_hidden_layers", "1000000000"), "E_CFG_RANGE");
  EXPECT_EQ(error_with("num_hidden_layers", ""), "E_JSON_KEY");
  EXPECT_EQ(error_with("num_key_value_heads", "3"), "E_CFG_SHAPE");
  EXPECT_EQ(error_with("hidden_size", "254"), "E_CFG_SHAPE");
  EXPECT_EQ(error_with("head_dim", "80"), "E_CFG_SHAPE");
  EXPECT_EQ(error_with("rms_norm_eps", "1e400"), "E_JSON");
  EXPECT_EQ(error_with("rms_norm_eps", "NaN"), "E_JSON");
  EXPECT_EQ(error_with("model_type", "\"mamba\""), "E_CFG_ARCH");
  EXPECT_EQ(error_with("rope_scaling", R"({"factor":2})"), "E_CFG_ROPE");
  EXPECT_EQ(error_with("rope_scaling", R"({"rope_type":"spiral"})"), "E_CFG_ROPE");
  for (const char* factor : {"0", "-1"})
    EXPECT_EQ(error_with("rope_scaling", std::string(R"({"rope_type":"linear","factor":)") + factor + "}"),
              "E_CFG_ROPE");
  EXPECT_EQ(
      error_with(
          "rope_scaling",
          R"({"rope_type":"longrope","short_factor":[1],"long_factor":[1],"original_max_position_embeddings":4096})"),
      "E_CFG_ROPE");
}

TEST(Config, UnknownArchitectureListsTheKnownOnes) {
  try {
    from_json(R"({"model_type":"mamba"})");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("qwen3"), std::string::npos);
    EXPECT_EQ(e.code(), ErrorCode::Unsupported);
  }
}

TEST(Config, Llama3AnglesAreTheSameFromBothFormats) {
  // Llama 3.1's parameters: short waves stay, long ones are 8 times longer.
  const Config json =
      from_json("{" + kGood +
                R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
                                "original_max_position_embeddings":8192}})");
  const ops::Rope rope = make_rope(json, 8192);
  ASSERT_EQ(rope.inv_freq.size(), 32u);
  EXPECT_DOUBLE_EQ(rope.inv_freq[0], 1);
  EXPECT_NEAR(rope.inv_freq[31], std::pow(500000.0, -31.0 / 32) / 8, 1e-12);
  // GGUF holds the same factors as a tensor.
  testing::GgufFile file;
  testing::Bytes data;
  for (const double factor : json.rope_factors) data.put(static_cast<float>(factor));
  file.data = data.str();
  file.tensors = {{"rope_freqs.weight", {32}, 0, 0}};
  file.keys = {testing::string_key("general.architecture", "llama"),
               testing::u32_key("llama.block_count", 2),
               testing::u32_key("llama.embedding_length", 256),
               testing::u32_key("llama.feed_forward_length", 512),
               testing::u32_key("llama.attention.head_count", 4),
               testing::u32_key("llama.attention.head_count_kv", 2),
               testing::u32_key("llama.context_length", 131072),
               testing::u32_key("llama.vocab_size", 1000),
               testing::Bytes().text("llama.rope.freq_base").put<std::uint32_t>(6).put(500000.f).str()};
  const testing::TemporaryFolder folder;
  const Config gguf = config_from_gguf(files::Gguf(folder.write("m.gguf", file.str())));
  const ops::Rope other = make_rope(gguf, 8192);
  EXPECT_EQ(other.layout, ops::RopeLayout::Interleaved);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_NEAR(other.inv_freq[i] / rope.inv_freq[i], 1, 1e-6);
}

TEST(Config, LongRopeChoosesByContext) {
  std::string shorts, longs;
  for (int i = 0; i < 32; ++i) {
    shorts += (i > 0 ? "," : "") + std::string("1.0");
    longs += (i > 0 ? "," : "") + std::string("4.0");
  }
  const Config c = from_json("{" + kGood + R"(,"rope_scaling":{"rope_type":"longrope","short_factor":[)" + shorts +
                             R"(],"long_factor":[)" + longs + R"(],"original_max_position_embeddings":32768}})");
  EXPECT_DOUBLE_EQ(make_rope(c, 32768).inv_freq[0], 1);
  EXPECT_DOUBLE_EQ(make_rope(c, 32769).inv_freq[0], 0.25);
  EXPECT_NEAR(c.rope_scale, std::sqrt(1 + std::log(4.0) / std::log(32768.0)), 1e-6);
}

TEST(Config, MiniCpmScales) {
  const Config c = from_json(
      R"({"model_type":"minicpm","num_hidden_layers":4,"hidden_size":512,"intermediate_size":512,"num_attention_heads":8,
    "num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":4096,"rms_norm_eps":1e-5,"scale_emb":12,"scale_depth":1.4,"dim_model_base":256})");
  EXPECT_EQ(c.embedding_scale, 12);
  EXPECT_FLOAT_EQ(c.residual_scale, 0.7f);
  EXPECT_EQ(c.logit_scale, 2);
}

TEST(Config, NaturalOrderOfInterleavedFiles) {
  Config c = from_json("{" + kGood + "}");
  EXPECT_EQ(natural_order(c)[1], 1);
  c.rope_layout = ops::RopeLayout::Interleaved;
  const auto order = natural_order(c);
  EXPECT_EQ(order[0], 0);
  EXPECT_EQ(order[1], 2);
  EXPECT_EQ(order[32], 1);
  EXPECT_EQ(order[63], 63);
}

}  // namespace
}  // namespace rarefy::model
