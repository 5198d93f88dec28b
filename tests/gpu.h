// Tests that need a GPU are skipped, visibly, where there is none.
#pragma once
#include <gtest/gtest.h>

#include "rarefy/base/check.h"
#include "rarefy/base/device.h"

namespace rarefy {

inline constexpr Device kGpu{Device::Kind::Cuda, 0};

/// Why the GPU cannot be used, empty if it can.
inline std::string no_gpu() {
  try {
    require_device(kGpu);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace rarefy

#define RAREFY_NEEDS_GPU() \
  if (const std::string reason = ::rarefy::no_gpu(); !reason.empty()) GTEST_SKIP() << reason
