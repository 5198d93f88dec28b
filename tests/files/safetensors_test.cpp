// The safetensors reader, folders of shards, and the writer.
#include "rarefy/files/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "rarefy/base/check.h"
#include "tests/files/temporary_file.h"

namespace rarefy::files {
namespace {

using testing::TemporaryFolder;

std::string file_of(const std::string& header, std::size_t data, std::uint64_t claimed = ~0ull) {
  const std::uint64_t length = claimed == ~0ull ? header.size() : claimed;
  std::string out(reinterpret_cast<const char*>(&length), 8);
  return out + header + std::string(data, '\x01');
}

std::string one_tensor(const std::string& fields, std::size_t data = 8) {
  return file_of(R"({"t":{)" + fields + "}}", data);
}

const std::string kGood =
    R"({"__metadata__":{"who":"test"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},"none":{"dtype":"F16","shape":[0,5],"data_offsets":[14,14]}})";

TEST(Safetensors, ReadsAGoodFile) {
  const TemporaryFolder folder;
  const Safetensors file(folder.write("good.safetensors", file_of(kGood, 14)));
  ASSERT_NE(file.find("a"), nullptr);
  EXPECT_EQ(file.find("a")->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(file.find("b")->dtype, DType::BF16);
  EXPECT_EQ(file.find("none")->bytes, 0);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.metadata().at("who"), "test");
}

TEST(Safetensors, BadFilesGetTheirError) {
  std::string deep = R"({"t":)" + std::string(100, '[') + std::string(100, ']') + "}";
  std::string many = "{";
  for (int i = 0; i < 150000; ++i)
    many += (i > 0 ? "," : "") + ("\"t" + std::to_string(i)) + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  many += "}";
  const struct {
    const char* name;
    const char* id;
    std::string bytes;
  } kBad[] = {
      {"empty", "E_ST_SHORT", ""},
      {"7 bytes", "E_ST_SHORT", "1234567"},
      {"header past the end", "E_ST_HEADER_RANGE", file_of("{}", 0, 100)},
      {"header of 2^64-1", "E_ST_HEADER_BIG", file_of("{}", 0, ~0ull - 1)},
      {"not JSON", "E_JSON", file_of("{\"t\": nope}", 0)},
      {"not UTF-8", "E_JSON", file_of("{\"\xff\xfe\":1}", 0)},
      {"not an object", "E_ST_JSON", file_of("[1]", 0)},
      {"many tensors on one range", "E_ST_COUNT", file_of(many, 8)},
      {"overlap", "E_ST_OVERLAP",
       file_of(
           R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           8)},
      {"trailing bytes", "E_ST_HOLE", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 9)},
      {"hole", "E_ST_HOLE", one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])")},
      {"truncated", "E_ST_TRUNC", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 7)},
      {"shape wraps", "E_ST_OVERFLOW",
       one_tensor(R"("dtype":"F32","shape":[2,18446744073709551614],"data_offsets":[0,8])")},
      {"size", "E_ST_SIZE", one_tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])")},
      {"begin after end", "E_ST_OFFSET", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])")},
      {"negative", "E_ST_OFFSET", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])")},
      {"1e0", "E_ST_OFFSET", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8e0])")},
      {"1.0", "E_ST_OFFSET", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8.0])")},
      {"dimension -1", "E_ST_SIZE", one_tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,8])")},
      {"duplicate tensor", "E_JSON_DUPLICATE",
       file_of(
           R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
           8)},
      {"duplicate dtype", "E_JSON_DUPLICATE",
       one_tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])")},
      {"deep", "E_JSON_DEPTH", file_of(deep, 0)},
      {"F7", "E_ST_DTYPE", one_tensor(R"("dtype":"F7","shape":[2],"data_offsets":[0,8])")},
      {"no dtype", "E_JSON_KEY", one_tensor(R"("shape":[2],"data_offsets":[0,8])")},
      {"dtype is a number", "E_JSON_TYPE", one_tensor(R"("dtype":4,"shape":[2],"data_offsets":[0,8])")}};
  const TemporaryFolder folder;
  for (const auto& bad : kBad) {
    try {
      const Safetensors file(folder.write("bad.safetensors", bad.bytes));
      ADD_FAILURE() << bad.name << ": loaded";
    } catch (const Error& e) {
      EXPECT_EQ(e.id(), bad.id) << bad.name << ": " << e.what();
      EXPECT_NE(std::string(e.what()).find("bad.safetensors"), std::string::npos) << bad.name;
    }
  }
}

void load(const TemporaryFolder& folder, const std::string& bytes) {
  try {
    const Safetensors file(folder.write("x.safetensors", bytes));
    for (const TensorInfo& tensor : file.tensors()) count_nonfinite(tensor);
  } catch (const Error& e) {
    EXPECT_FALSE(e.id().empty()) << e.what();
  }
}

TEST(Safetensors, EveryTruncationAndEveryFlippedBit) {
  const TemporaryFolder folder;
  const std::string good = file_of(kGood, 14);
  for (std::size_t size = 0; size < good.size(); ++size) load(folder, good.substr(0, size));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    load(folder, bytes);
  }
}

RC_GTEST_PROP(Safetensors, WriteThenReadIsTheSame, ()) {
  const auto values = *rc::gen::arbitrary<std::vector<std::vector<float>>>();
  std::vector<TensorInfo> tensors;
  for (std::size_t i = 0; i < values.size(); ++i)
    tensors.push_back({"tensor" + std::to_string(i),
                       DType::F32,
                       {static_cast<std::int64_t>(values[i].size())},
                       reinterpret_cast<const std::byte*>(values[i].data()),
                       static_cast<std::int64_t>(values[i].size() * 4)});
  const TemporaryFolder folder;
  write_safetensors(folder.path() / "f.safetensors", tensors, {{"key", "value"}});
  const Safetensors file(folder.path() / "f.safetensors");
  RC_ASSERT(file.tensors().size() == values.size());
  RC_ASSERT(file.metadata().at("key") == "value");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const TensorInfo* tensor = file.find("tensor" + std::to_string(i));
    RC_ASSERT(tensor != nullptr && tensor->bytes == tensors[i].bytes);
    const auto* bytes = reinterpret_cast<const std::byte*>(values[i].data());
    RC_ASSERT(std::equal(tensor->data, tensor->data + tensor->bytes, bytes));
  }
  RC_ASSERT(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);  // no temporary file stays
}

TEST(SafetensorsWriter, KeepsTheOldFileWhenItCannotWrite) {
  EXPECT_THROW(write_safetensors("/nonexistent-folder/f.safetensors", {}, {}), Error);
}

const std::string kPart = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);

std::string error_of(const std::filesystem::path& folder) {
  try {
    const SafetensorsFolder files(folder);
    return "loaded";
  } catch (const Error& e) {
    return e.id() + " " + e.what();
  }
}

TEST(SafetensorsFolder, OneFileOrTheShardsOfAnIndex) {
  const TemporaryFolder one;
  one.write("model.safetensors", kPart);
  one.write("other.safetensors", "rubbish that nobody names");
  EXPECT_NE(SafetensorsFolder(one.path()).find("a"), nullptr);

  const TemporaryFolder sharded;
  sharded.write("model.safetensors.index.json", R"({"weight_map":{"a":"s1.safetensors"}})");
  sharded.write("s1.safetensors", kPart);
  sharded.write("s2.safetensors", "rubbish that the index does not name");
  EXPECT_NE(SafetensorsFolder(sharded.path()).find("a"), nullptr);
}

TEST(SafetensorsFolder, MissingShardsAreNamed) {
  const TemporaryFolder folder;
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors","c":"s3.safetensors"}})");
  folder.write("s2.safetensors", kPart);
  const std::string error = error_of(folder.path());
  EXPECT_NE(error.find("E_ST_MISSING_SHARD"), std::string::npos);
  EXPECT_NE(error.find("s1.safetensors, s3.safetensors"), std::string::npos) << error;
  EXPECT_NE(error_of(TemporaryFolder().path()).find("E_ST_MISSING_SHARD"), std::string::npos);
}

TEST(SafetensorsFolder, PathsStayInside) {
  const TemporaryFolder folder, outside;
  outside.write("secret.safetensors", kPart);
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"../../etc/passwd"}})");
  EXPECT_NE(error_of(folder.path()).find("E_PATH_ESCAPE"), std::string::npos);
  std::filesystem::create_symlink(outside.path() / "secret.safetensors", folder.path() / "link.safetensors");
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"link.safetensors"}})");
  EXPECT_NE(error_of(folder.path()).find("E_PATH_ESCAPE"), std::string::npos);
}

}  // namespace
}  // namespace rarefy::files
