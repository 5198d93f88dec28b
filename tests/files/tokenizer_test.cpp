// Tokenizers against PyPI tokenizers (tests/goldens/make_tokenizers.py), hostile files, and properties.
#include "rarefy/files/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "rarefy/base/check.h"
#include "rarefy/files/gguf.h"
#include "tests/files/gguf_writer.h"
#include "tests/files/temporary_file.h"
#include "tests/model_fixture.h"

namespace rarefy::files {
namespace {

using testing::TemporaryFolder;

const std::string kGoldens = RAREFY_SOURCE_DIR "/tests/goldens/tokenizers/";

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void check_cases(const Tokenizer& tokenizer, const std::string& family) {
  const auto cases = nlohmann::json::parse(read(kGoldens + family + "/cases.json"));
  ASSERT_EQ(cases.size(), 200u);
  for (const auto& one : cases) {
    const auto text = one["text"].get<std::string>();
    const auto as_text = one["as_text"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text, Specials::Parse), one["parsed"].get<std::vector<TokenId>>())
        << family << ": " << one["text"];
    EXPECT_EQ(tokenizer.encode(text, Specials::AsText), as_text) << family << ": " << one["text"];
    Utf8Stream stream;
    const std::string bytes = stream.push(tokenizer.decode(as_text)) + stream.finish();
    EXPECT_EQ(bytes, one["decoded"].get<std::string>()) << family << ": " << one["text"];
    for (const TokenId token : as_text) EXPECT_FALSE(tokenizer.is_special(token));
  }
}

TEST(Tokenizer, Gpt2) { check_cases(Tokenizer::from_folder(kGoldens + "gpt2"), "gpt2"); }
TEST(Tokenizer, Llama3) { check_cases(Tokenizer::from_folder(kGoldens + "llama3"), "llama3"); }
TEST(Tokenizer, Qwen2) { check_cases(Tokenizer::from_folder(kGoldens + "qwen2"), "qwen2"); }
TEST(Tokenizer, Mistral) { check_cases(Tokenizer::from_folder(kGoldens + "mistral"), "mistral"); }
TEST(Tokenizer, Metaspace) { check_cases(Tokenizer::from_folder(kGoldens + "metaspace"), "metaspace"); }
TEST(Tokenizer, MistralFromGguf) {
  check_cases(Tokenizer::from_gguf(Gguf(kGoldens + "mistral/tokenizer.gguf")), "mistral");
}
TEST(Tokenizer, SmolLm2FromGguf) {
  SKIP_WITHOUT_MODEL();
  check_cases(Tokenizer::from_gguf(Gguf(testing::model_path())), "smollm2");
}

const Tokenizer& small() {
  static const Tokenizer tokenizer = Tokenizer::from_folder(kGoldens + "qwen2");
  return tokenizer;
}

TEST(Tokenizer, InvalidUtf8IsEncodedAsItsBytes) {
  const Tokenizer gpt2 = Tokenizer::from_folder(kGoldens + "gpt2");
  const std::string text = "a\xff\xfe b\xe6\x97 c";
  EXPECT_EQ(gpt2.decode(gpt2.encode(text)), text);
  const Tokenizer mistral = Tokenizer::from_folder(kGoldens + "mistral");
  EXPECT_EQ(mistral.decode(mistral.encode("a\xff")), "a\xEF\xBF\xBD");
}

TEST(Tokenizer, ARunOfSixteenMebibytes) {
  // Must end within the test's time-out: quadratic work or recursion over the run would not.
  const std::string run(16 << 20, 'A');
  EXPECT_GT(small().encode(run).size(), 0u);
  EXPECT_GT(Tokenizer::from_folder(kGoldens + "mistral").encode(run).size(), 0u);
}

RC_GTEST_PROP(Tokenizer, ByteLevelDecodesWhatItEncoded, ()) {
  static const Tokenizer gpt2 = Tokenizer::from_folder(kGoldens + "gpt2");
  const auto text = *rc::gen::arbitrary<std::string>();
  RC_ASSERT(gpt2.decode(gpt2.encode(text)) == text);
}

RC_GTEST_PROP(Bpe, LongAndShortPiecesAgree, ()) {
  // A piece of letters between spaces is encoded alone; glued runs take the path for long pieces. Both are checked
  // against the library by the goldens; here against each other through a vocabulary with overlapping merges.
  static const Tokenizer gpt2 = Tokenizer::from_folder(kGoldens + "gpt2");
  const auto word = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("etaoin")));
  std::string longer = word;
  while (longer.size() < 60) longer += "the";
  RC_ASSERT(gpt2.decode(gpt2.encode(longer)) == longer);
}

std::string error_of(const std::string& json) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", json);
  try {
    Tokenizer::from_folder(folder.path());
    return "loaded";
  } catch (const Error& e) {
    return e.id();
  }
}

std::string bpe(const std::string& vocab, const std::string& merges, const std::string& more = "") {
  return R"({"model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":)" + merges + "}" + more + "}";
}

TEST(Tokenizer, BadFilesGetTheirError) {
  EXPECT_EQ(error_of(bpe(R"({"a":0,"b":1,"ab":2})", R"(["a b"])")), "loaded");
  EXPECT_EQ(error_of(R"({"model":{"type":"BPE","vocab":{"a":0}}})"), "E_JSON_KEY");
  EXPECT_EQ(error_of(bpe(R"({"a":0,"b":1})", R"(["a b"])")), "E_TOK_MERGE");
  EXPECT_EQ(error_of(bpe(R"({"a":0,"b":1,"ab":2})", R"(["a c"])")), "E_TOK_MERGE");
  EXPECT_EQ(error_of(bpe(R"({"a":0})", R"(["ab"])")), "E_TOK_MERGE");
  EXPECT_EQ(error_of(bpe(R"({"a":0})", R"([["a"]])")), "E_TOK_MERGE");
  EXPECT_EQ(error_of(bpe(R"({"a":-1})", "[]")), "E_TOK_ID");
  EXPECT_EQ(error_of(bpe(R"({"a":99999999999})", "[]")), "E_TOK_ID");
  EXPECT_EQ(error_of(bpe("{}", "[]")), "E_TOK_VOCAB");
  EXPECT_EQ(error_of(bpe(R"({"a":0})", "[]", R"(,"added_tokens":[{"id":1,"content":""}])")), "E_TOK_ADDED");
  EXPECT_EQ(
      error_of(bpe(R"({"a":0})", "[]", R"(,"added_tokens":[{"id":1,"content":")" + std::string(2000, 'x') + R"("}])")),
      "E_TOK_ADDED");
  EXPECT_EQ(error_of(bpe(R"({"a":0})", "[]", R"(,"normalizer":{"type":"Precompiled"})")), "E_TOK_PART");
  EXPECT_EQ(error_of(bpe(R"({"a":0})", "[]",
                         R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated"})")),
            "E_TOK_REGEX");
  EXPECT_EQ(error_of(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})"), "E_TOK_PART");
  EXPECT_EQ(error_of("{"), "E_JSON");
}

TEST(Tokenizer, EveryFlippedBitOfASmallFile) {
  const std::string good =
      bpe(R"({"a":0,"b":1,"ab":2})", R"(["a b"])", R"(,"added_tokens":[{"id":3,"content":"<s>","special":true}])");
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(error_of(bytes), "");
  }
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_NE(error_of(good.substr(0, size)), "");
}

TEST(Tokenizer, BadGgufVocabularies) {
  const TemporaryFolder folder;
  const auto error = [&](std::vector<std::string> keys) -> std::string {
    testing::GgufFile file;
    file.keys = std::move(keys);
    try {
      Tokenizer::from_gguf(Gguf(folder.write("v.gguf", file.str())));
      return "loaded";
    } catch (const Error& e) {
      return e.id();
    }
  };
  using testing::array_key;
  using testing::string_key;
  using testing::u32_key;
  const std::string tokens = array_key<std::string>("tokenizer.ggml.tokens", 8, {"a", "b", "ab"});
  const std::string gpt2 = string_key("tokenizer.ggml.model", "gpt2"),
                    llama = string_key("tokenizer.ggml.model", "llama");
  const std::string pre = string_key("tokenizer.ggml.pre", "gpt-2");
  const std::string merges = array_key<std::string>("tokenizer.ggml.merges", 8, {"a b"});
  EXPECT_EQ(error({gpt2, tokens, merges, pre}), "loaded");
  EXPECT_EQ(error({gpt2, tokens, merges}), "loaded");  // warns
  EXPECT_EQ(error({gpt2, tokens, merges, string_key("tokenizer.ggml.pre", "nobody")}), "E_TOK_PRE");
  EXPECT_EQ(error({tokens, merges, pre}), "E_TOK_KEY");
  EXPECT_EQ(error({gpt2, merges, pre}), "E_TOK_KEY");
  EXPECT_EQ(error({string_key("tokenizer.ggml.model", "bert"), tokens}), "E_TOK_MODEL");
  EXPECT_EQ(error({gpt2, tokens, pre, array_key<std::string>("tokenizer.ggml.merges", 8, {"a x"})}), "E_TOK_MERGE");
  EXPECT_EQ(error({gpt2, tokens, pre, array_key<std::string>("tokenizer.ggml.merges", 8, {"ab"})}), "E_TOK_MERGE");
  EXPECT_EQ(error({gpt2, tokens, pre, merges, u32_key("tokenizer.ggml.eos_token_id", 3)}), "E_TOK_ID");
  EXPECT_EQ(error({llama, tokens}), "E_TOK_SCORES");
  EXPECT_EQ(error({llama, tokens, array_key<std::uint8_t>("tokenizer.ggml.scores", 0, {1, 2, 3})}), "E_GGUF_VALUE");
  EXPECT_EQ(error({llama, tokens, array_key<float>("tokenizer.ggml.scores", 6, {1, 2})}), "E_TOK_SCORES");
  for (const char* byte : {"<0x-1>", "<0xZZ>", "<0x1>", "<0x123>"})
    EXPECT_EQ(error({llama, array_key<std::string>("tokenizer.ggml.tokens", 8, {byte}),
                     array_key<float>("tokenizer.ggml.scores", 6, {0}),
                     array_key<std::int32_t>("tokenizer.ggml.token_type", 5, {6})}),
              "E_TOK_BYTE");
}

TEST(Tokenizer, EndTokensAndBos) {
  SKIP_WITHOUT_MODEL();
  const Tokenizer tokenizer = Tokenizer::from_gguf(Gguf(testing::model_path()));
  EXPECT_FALSE(tokenizer.adds_bos());
  ASSERT_TRUE(tokenizer.find("<|im_end|>"));
  const auto& ends = tokenizer.ends();
  EXPECT_NE(std::find(ends.begin(), ends.end(), *tokenizer.find("<|im_end|>")), ends.end());
}

TEST(Utf8Stream, HoldsBackAndReplaces) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE2\x82"), "a");
  EXPECT_EQ(stream.push("\xAC"
                        "b\xF0"),
            "\xE2\x82\xAC"
            "b");
  EXPECT_EQ(stream.push("x"), "\xEF\xBF\xBDx");
  EXPECT_EQ(stream.push("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(stream.push("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // overlong
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace rarefy::files
