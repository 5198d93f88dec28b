// The GGUF reader: a good file, every kind of bad one, and whatever truncation or a flipped bit makes of it.
#include "rarefy/files/gguf.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "rarefy/base/check.h"
#include "tests/files/gguf_writer.h"
#include "tests/files/temporary_file.h"
#include "tests/model_fixture.h"

namespace rarefy::files {
namespace {

using testing::array_key;
using testing::Bytes;
using testing::GgufFile;
using testing::GgufTensor;
using testing::string_key;
using testing::TemporaryFolder;
using testing::u32_key;

TEST(Gguf, ReadsMetadataAndTensors) {
  GgufFile file;
  file.keys = {u32_key("a.count", 7),
               string_key("a.name", "x"),
               array_key<float>("a.scores", 6, {1.5f, 2}),
               array_key<std::string>("a.words", 8, {"one", "two"}),
               array_key<std::int32_t>("a.types", 5, {1, -3}),
               Bytes().text("a.on").put<std::uint32_t>(7).put<std::uint8_t>(1).str(),
               Bytes().text("a.big").put<std::uint32_t>(10).put(~0ull).str()};
  file.tensors = {{"t", {32, 2}, 8, 0}, {"u", {4}, 0, 96}};
  const TemporaryFolder folder;
  const Gguf gguf(folder.write("good.gguf", file.str()));
  EXPECT_EQ(gguf.integer("a.count"), 7);
  EXPECT_EQ(gguf.number("a.count"), 7.0);
  EXPECT_EQ(*gguf.string("a.name"), "x");
  EXPECT_EQ(*gguf.numbers("a.scores"), (std::vector<double>{1.5, 2}));
  EXPECT_EQ(*gguf.strings("a.words"), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(*gguf.integers("a.types"), (std::vector<std::int64_t>{1, -3}));
  EXPECT_EQ(gguf.boolean("a.on"), true);
  EXPECT_EQ(std::get<std::uint64_t>(gguf.metadata().at("a.big")), ~0ull);
  EXPECT_FALSE(gguf.integer("a.missing"));
  const TensorInfo* t = gguf.find("t");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->shape, (std::vector<std::int64_t>{2, 32}));
  EXPECT_EQ(t->dtype, DType::Q8_0);
  EXPECT_EQ(t->bytes, 68);
  EXPECT_EQ(gguf.find("missing"), nullptr);
}

TEST(Gguf, WrongTypeOfAKeyIsNamed) {
  GgufFile file;
  file.keys = {array_key<std::uint8_t>("tokenizer.ggml.scores", 0, {1, 2})};
  const TemporaryFolder folder;
  const Gguf gguf(folder.write("x.gguf", file.str()));
  try {
    gguf.numbers("tokenizer.ggml.scores");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.id(), "E_GGUF_VALUE");
    EXPECT_NE(std::string(e.what()).find("tokenizer.ggml.scores"), std::string::npos);
  }
}

struct BadFile {
  const char* name;
  const char* id;
  std::string bytes;
};

template <typename Change>
std::string changed(Change change) {
  GgufFile file;
  file.keys = {u32_key("a.count", 7)};
  change(file);
  return file.str();
}

std::vector<BadFile> bad_files() {
  using F = GgufFile;
  std::vector<BadFile> out = {
      {"empty", "E_GGUF_TRUNCATED", ""},
      {"magic", "E_GGUF_MAGIC", changed([](F& f) { f.magic = 0x12345678; })},
      {"version 0", "E_GGUF_VERSION", changed([](F& f) { f.version = 0; })},
      {"version 1", "E_GGUF_VERSION", changed([](F& f) { f.version = 1; })},
      {"version 4", "E_GGUF_VERSION", changed([](F& f) { f.version = 4; })},
      {"byte-swapped", "E_GGUF_ENDIAN", changed([](F& f) { f.version = 3u << 24; })},
      {"tensors 2^64-2", "E_GGUF_COUNT", changed([](F& f) { f.claimed_tensors = ~0ull - 1; })},
      {"tensors 10^12", "E_GGUF_COUNT", changed([](F& f) { f.claimed_tensors = 1000000000000; })},
      {"keys 10^12", "E_GGUF_COUNT", changed([](F& f) { f.claimed_keys = 1000000000000; })},
      {"key length 2^64-1", "E_GGUF_STRING",
       changed([](F& f) { f.keys = {Bytes().put(~0ull).raw("abcdefgh").str()}; })},
      {"string past the end", "E_GGUF_STRING",
       changed([](F& f) { f.keys = {Bytes().text("k").put<std::uint32_t>(8).put<std::uint64_t>(1 << 20).str()}; })},
      {"array of arrays", "E_GGUF_ARRAY", changed([](F& f) {
         f.keys = {Bytes().text("k").put<std::uint32_t>(9).put<std::uint32_t>(9).put<std::uint64_t>(1).str()};
       })},
      {"array length wraps", "E_GGUF_ARRAY", changed([](F& f) {
         f.keys = {Bytes().text("k").put<std::uint32_t>(9).put<std::uint32_t>(10).put<std::uint64_t>(1ull << 61).str()};
       })},
      {"array of 2^64-1", "E_GGUF_ARRAY", changed([](F& f) { f.keys = {array_key<std::uint64_t>("k", 10, {~0ull})}; })},
      {"duplicate key", "E_GGUF_DUPLICATE", changed([](F& f) {
         f.keys = {u32_key("k", 1), u32_key("k", 2)};
       })},
      {"empty key", "E_GGUF_KEY", changed([](F& f) { f.keys = {u32_key("", 1)}; })},
      {"value type 13", "E_GGUF_TYPE",
       changed([](F& f) { f.keys = {Bytes().text("k").put<std::uint32_t>(13).put(0ull).str()}; })},
      {"bool of 2", "E_GGUF_TYPE",
       changed([](F& f) { f.keys = {Bytes().text("k").put<std::uint32_t>(7).put<std::uint8_t>(2).put(0ull).str()}; })},
      {"dims 0", "E_GGUF_DIM", changed([](F& f) { f.tensors[0].dims = {}; })},
      {"dims 5", "E_GGUF_DIM", changed([](F& f) {
         f.tensors[0].dims = {1, 1, 1, 1, 1};
       })},
      {"dim -1", "E_GGUF_DIM", changed([](F& f) { f.tensors[0].dims = {-1}; })},
      {"dim 0", "E_GGUF_DIM", changed([](F& f) {
         f.tensors[0].dims = {32, 0};
       })},
      {"elements wrap", "E_GGUF_SIZE", changed([](F& f) {
         f.tensors[0].dims = {1ll << 40, 1ll << 40};
       })},
      {"bytes wrap", "E_GGUF_SIZE", changed([](F& f) { f.tensors[0].dims = {0x7FFFFFFFFFFFFFC0ll}; })},
      {"unknown type", "E_GGUF_QUANT", changed([](F& f) { f.tensors[0].type = 99; })},
      {"row of 33 Q8_0", "E_GGUF_ROW", changed([](F& f) {
         f.tensors[0] = {"t", {33}, 8, 0};
       })},
      {"offset past the end", "E_GGUF_OFFSET", changed([](F& f) { f.tensors[0].offset = 1 << 20; })},
      {"offset 2^64-32", "E_GGUF_OFFSET", changed([](F& f) { f.tensors[0].offset = ~0ull - 31; })},
      {"offset off alignment", "E_GGUF_OFFSET", changed([](F& f) { f.tensors[0].offset = 4; })},
      {"overlap", "E_GGUF_OFFSET", changed([](F& f) {
         f.tensors = {{"t", {16}, 0, 0}, {"u", {8}, 0, 32}};
       })},
      {"data one byte short", "E_GGUF_OFFSET", changed([](F& f) { f.data.pop_back(); })},
      {"duplicate tensor", "E_GGUF_DUPLICATE", changed([](F& f) {
         f.tensors = {{"t", {8}, 0, 0}, {"t", {8}, 0, 32}};
       })},
      {"tensor name of 64", "E_GGUF_NAME", changed([](F& f) { f.tensors[0].name = std::string(64, 'n'); })},
      {"empty tensor name", "E_GGUF_NAME", changed([](F& f) { f.tensors[0].name = ""; })}};
  for (const std::uint32_t alignment : {0u, 13u, 8192u, 0x80000000u})
    out.push_back(
        {"alignment", "E_GGUF_ALIGNMENT", changed([&](F& f) { f.keys = {u32_key("general.alignment", alignment)}; })});
  return out;
}

TEST(Gguf, BadFilesGetTheirError) {
  const TemporaryFolder folder;
  for (const BadFile& bad : bad_files()) {
    try {
      const Gguf gguf(folder.write("bad.gguf", bad.bytes));
      ADD_FAILURE() << bad.name << ": loaded";
    } catch (const Error& e) {
      EXPECT_EQ(e.id(), bad.id) << bad.name << ": " << e.what();
      EXPECT_EQ(e.code(), ErrorCode::BadFile) << bad.name;
      EXPECT_NE(std::string(e.what()).find("bad.gguf"), std::string::npos) << bad.name;
    }
  }
}

TEST(Gguf, MissingFolderAndPipe) {
  const TemporaryFolder folder;
  const auto code_of = [](const std::filesystem::path& path) {
    try {
      const Gguf gguf(path);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::BadInput;
  };
  EXPECT_EQ(code_of(folder.path() / "none.gguf"), ErrorCode::NotFound);
  EXPECT_EQ(code_of(folder.path()), ErrorCode::Io);
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of(folder.path() / "pipe"), ErrorCode::Io);
}

/// Loads and reads every byte that the reader promises; any outcome but a crash or another exception is fine.
void load(const TemporaryFolder& folder, const std::string& bytes) {
  try {
    const Gguf gguf(folder.write("x.gguf", bytes));
    unsigned sum = 0;
    for (const TensorInfo& tensor : gguf.tensors()) {
      for (std::int64_t i = 0; i < tensor.bytes; ++i) sum += static_cast<unsigned>(tensor.data[i]);
      count_nonfinite(tensor);
    }
    EXPECT_LT(sum, ~0u);
  } catch (const Error& e) {
    EXPECT_FALSE(e.id().empty()) << e.what();
  }
}

std::string small_file() {
  GgufFile file;
  file.keys = {u32_key("a.count", 7), string_key("a.name", "x"), array_key<std::string>("a.words", 8, {"one", "two"})};
  file.tensors = {{"t", {32, 2}, 8, 0}, {"u", {4}, 0, 96}};
  return file.str();
}

TEST(Gguf, EveryTruncation) {
  const TemporaryFolder folder;
  const std::string good = small_file();
  for (std::size_t size = 0; size < good.size(); ++size) load(folder, good.substr(0, size));
}

TEST(Gguf, EveryFlippedBit) {
  const TemporaryFolder folder;
  const std::string good = small_file();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    load(folder, bytes);
  }
}

TEST(Gguf, ReadsTheRealModel) {
  SKIP_WITHOUT_MODEL();
  const Gguf gguf(testing::model_path());
  EXPECT_EQ(gguf.tensors().size(), 272u);
  EXPECT_EQ(*gguf.string("general.architecture"), "llama");
  EXPECT_EQ(gguf.strings("tokenizer.ggml.tokens")->size(), 49152u);
  const TensorInfo* embedding = gguf.find("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dtype, DType::Q8_0);
  EXPECT_EQ(embedding->shape, (std::vector<std::int64_t>{49152, 576}));
}

}  // namespace
}  // namespace rarefy::files
