// The real model that end-to-end tests use: fetched by `make model`, named by RAREFY_TEST_MODEL otherwise.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace rarefy::testing {

inline std::string model_path() {
  if (const char* path = std::getenv("RAREFY_TEST_MODEL")) return path;
  return RAREFY_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

inline bool have_model() { return std::filesystem::exists(model_path()); }

}  // namespace rarefy::testing

#define SKIP_WITHOUT_MODEL() \
  if (!rarefy::testing::have_model()) GTEST_SKIP() << "no model at " << rarefy::testing::model_path() << " (make model)"
