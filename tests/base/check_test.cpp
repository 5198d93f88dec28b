// Error codes, exit statuses and CHECK.
#include "rarefy/base/check.h"

#include <gtest/gtest.h>

namespace rarefy {
namespace {

TEST(Check, ThrowsBadInputWithExpressionAndValues) {
  try {
    CHECK(1 > 2, "one is {}", 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::BadInput);
    EXPECT_STREQ(e.what(), "one is 1 (check failed: 1 > 2)");
  }
}

TEST(Check, ExitStatuses) {
  EXPECT_EQ(exit_status(Error(ErrorCode::BadInput, "", "")), 2);
  EXPECT_EQ(exit_status(Error(ErrorCode::BadFile, "", "")), 65);
  EXPECT_EQ(exit_status(Error(ErrorCode::NotFound, "", "")), 66);
  EXPECT_EQ(exit_status(Error(ErrorCode::OutOfMemory, "", "")), 71);
  EXPECT_EQ(exit_status(Error(ErrorCode::Io, "", "")), 74);
}

TEST(CheckedArithmetic, ReportsOverflow) {
  std::uint64_t out = 0;
  EXPECT_TRUE(checked_mul(1u << 20, 1u << 20, out));
  EXPECT_EQ(out, 1ull << 40);
  EXPECT_FALSE(checked_mul(~0ull, 2, out));
  EXPECT_FALSE(checked_add(~0ull, 1, out));
}

}  // namespace
}  // namespace rarefy
