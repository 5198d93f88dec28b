// The program from outside: exit statuses, one clear line for every error, output that machines can read.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/files/gguf_writer.h"
#include "tests/files/temporary_file.h"
#include "tests/model_fixture.h"

namespace rarefy {
namespace {

using testing::GgufFile;
using testing::string_key;
using testing::TemporaryFolder;

struct Outcome {
  int status;
  std::string out, err;
};

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Outcome rarefy(const std::string& arguments, const std::string& environment = "") {
  const TemporaryFolder folder;
  const std::string command = environment + " '" RAREFY_BINARY_DIR "/rarefy' " + arguments + " > '" +
                              (folder.path() / "out").string() + "' 2> '" + (folder.path() / "err").string() +
                              "' < /dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder.path() / "out"), read(folder.path() / "err")};
}

/// One line that holds `part`, and this exit status.
void expect_error(const std::string& arguments, int status, const std::string& part) {
  const Outcome o = rarefy(arguments);
  EXPECT_EQ(o.status, status) << arguments << "\n" << o.err;
  EXPECT_NE(o.err.find(part), std::string::npos) << arguments << "\n" << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_EQ(o.out, "");
}

TEST(Cli, VersionHelpAndDoctor) {
  EXPECT_NE(rarefy("--version").out.find("compiler"), std::string::npos);
  EXPECT_EQ(rarefy("run --help").status, 0);
  EXPECT_EQ(rarefy("").status, 2);
  EXPECT_EQ(rarefy("dance").status, 2);
  EXPECT_EQ(rarefy("run").status, 2);
  EXPECT_NE(rarefy("inspect kernels").out.find("decode cpu fast"), std::string::npos);
}

TEST(Cli, MissingFilesAndFolders) {
  const TemporaryFolder folder;
  expect_error("run -m /nonexistent.gguf -p x", 66, "/nonexistent.gguf");
  expect_error("run -m '" + folder.path().string() + "' -p x", 66, "config.json");
  expect_error("run -m /nonexistent.gguf -f /nonexistent.txt", 66, "/nonexistent.txt");
}

TEST(Cli, BadFiles) {
  const TemporaryFolder folder;
  expect_error("run -m '" + folder.write("text.gguf", "this is no model at all").string() + "' -p x", 65,
               "not a GGUF file");
  GgufFile file;
  file.keys = {string_key("general.architecture", "mamba")};
  expect_error("run -m '" + folder.write("mamba.gguf", file.str()).string() + "' -p x", 65, "mamba");
  file.keys = {};
  expect_error("run -m '" + folder.write("none.gguf", file.str()).string() + "' -p x", 65, "general.architecture");
}

TEST(Cli, BadOptions) {
  expect_error("run -m x.gguf", 2, "--prompt, --file and --chat");
  expect_error("run -m x.gguf -p a --temp nan", 2, "temperature");
  expect_error("run -m x.gguf -p a -n -5", 2, "--n-predict");
  expect_error("run -m x.gguf -p a --device tpu", 2, "tpu");
  expect_error("run -m x.gguf -p a --device cuda", 65, "no CUDA support");
}

class SlowCli : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_MODEL(); }
  std::string model() const { return "-m '" + testing::model_path() + "' "; }
};

TEST_F(SlowCli, RunAnswers) {
  const Outcome o = rarefy("run " + model() + "-p 'The capital of France is' -n 8 --decode-sparsity 0,0");
  EXPECT_EQ(o.status, 0);
  EXPECT_NE(o.out.find("Paris"), std::string::npos) << o.out;
  EXPECT_NE(o.err.find("TTFT"), std::string::npos) << o.err;
}

TEST_F(SlowCli, JsonEnvironmentAndConfigFile) {
  const TemporaryFolder folder;
  const auto config = folder.write("c.toml", "[run]\nn-predict = 3\n");
  const Outcome o =
      rarefy("--config '" + config.string() + "' run " + model() + "-p 'One two' --json", "RAREFY_DECODE_SPARSITY=0,0");
  ASSERT_EQ(o.status, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["generated_tokens"], 3);
  EXPECT_EQ(json["prompt_tokens"], 2);
  EXPECT_EQ(json["kv"]["sealed_v"], 0);
}

TEST_F(SlowCli, APromptLongerThanTheContextIsRefused) {
  std::string prompt;
  for (int i = 0; i < 100; ++i) prompt += "word ";
  expect_error("run " + model() + "-c 64 --decode-sparsity 0,0 -p '" + prompt + "'", 2, "context of 64");
  expect_error("run " + model() + "-c 64 --decode-sparsity 0,0 -n 100 -p x", 2, "context of 64");
  expect_error("run " + model() + "-c 100000 -p x", 2, "8192");
  expect_error("run " + model() + "--decode-sparsity 2,0 -p x", 2, "--decode-sparsity");
  expect_error("run " + model() + "--pruner dice -p x", 2, "dice");
  expect_error("run " + model() + "--pruner calibrated:/nonexistent -p x", 66, "/nonexistent");
}

TEST_F(SlowCli, CalibrateKeepsAFileThatRunUses) {
  const TemporaryFolder folder;
  const std::string cache = "XDG_CACHE_HOME='" + folder.path().string() + "'";
  const Outcome made = rarefy("calibrate " + model(), cache);
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find(folder.path().string()), std::string::npos);
  const Outcome o = rarefy("run " + model() + "-p 'The capital of France is' -n 2 --json", cache);
  ASSERT_EQ(o.status, 0);
  EXPECT_EQ(o.err.find("calibrating"), std::string::npos) << o.err;
}

TEST_F(SlowCli, InspectAndEval) {
  EXPECT_NE(rarefy("inspect model " + model()).out.find("tied to the embedding"), std::string::npos);
  EXPECT_NE(rarefy("inspect tensors --check-tensors " + model()).out.find("token_embd.weight"), std::string::npos);
  EXPECT_NE(rarefy("inspect cache --sparsity 1,1 " + model()).out.find("1.778x"), std::string::npos);
  const Outcome o = rarefy("eval perplexity " + model() +
                           "-f '" RAREFY_SOURCE_DIR "/LICENSE' -c 800 --tail 128 --pruner magnitude --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  for (const char* key :
       {"tokens", "kl_mean", "kl_stderr", "kl_p99", "top1", "ppl", "ppl_dense", "kv_bytes", "kv_bytes_dense"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_LT(json["kv_bytes"], json["kv_bytes_dense"]);
}

TEST_F(SlowCli, Needle) {
  const Outcome o = rarefy("eval needle " + model() +
                           "-f '" RAREFY_SOURCE_DIR "/LICENSE' -c 1000 --needles 2 --pruner magnitude --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  for (const char* way : {"aware", "agnostic"}) {
    EXPECT_EQ(json[way]["needles"], 2);
    EXPECT_LE(json[way]["dlogp_worst"].get<double>(), json[way]["dlogp_mean"].get<double>());
  }
}

TEST_F(SlowCli, BenchPrintsRows) {
  const Outcome o = rarefy("bench " + model() + "-p 32 -n 2 -d 0,128 -r 1 --pruner magnitude --json");
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(nlohmann::json::parse(o.out).size(), 8u);
}

}  // namespace
}  // namespace rarefy
