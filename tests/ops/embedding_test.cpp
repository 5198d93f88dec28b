// embedding: rows of the table, scaled.
#include "rarefy/ops/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rarefy/base/quant.h"
#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

TEST(Embedding, CopiesAndScalesRows) {
  Stream stream;
  for (const DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q6_K}) {
    const OwnedWeight table = random_weight(type, 11, 256, 1);
    std::vector<std::int32_t> tokens(40);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7 % 11);
    std::vector<float> y(40 * 256), row(256);
    embedding(tokens.data(), 40, table.view(), 1.5f, make_view(y.data(), {40, 256}), stream);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      dequantize(type, table.view().data + tokens[t] * row_bytes(type, 256), 256, row.data());
      for (std::size_t i = 0; i < 256; ++i) ASSERT_EQ(y[t * 256 + i], 1.5f * row[i]);
    }
  }
}

TEST(Embedding, NoTokensDoNothing) {
  Stream stream;
  embedding(nullptr, 0, random_weight(DType::F32, 3, 4, 1).view(), 1, make_view<float>(nullptr, {0, 4}), stream);
}

TEST(Embedding, NamesTheTokenOutsideTheVocabulary) {
  Stream stream;
  const OwnedWeight table = random_weight(DType::F32, 3, 4, 1);
  std::vector<float> y(8);
  for (const std::int32_t bad : {-1, 3}) {
    const std::int32_t tokens[] = {2, bad};
    try {
      embedding(tokens, 2, table.view(), 1, make_view(y.data(), {2, 4}), stream);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadInput);
      EXPECT_THAT(e.what(), testing::HasSubstr("index 1"));
    }
  }
}

}  // namespace
}  // namespace rarefy::ops
