// unpack against dequantize, bit for bit.
#include "rarefy/ops/unpack.h"

#include <gtest/gtest.h>

#include "rarefy/base/quant.h"
#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

class UnpackOfType : public testing::TestWithParam<DType> {};

TEST_P(UnpackOfType, IsBitEqualToDequantize) {
  const std::int64_t block = block_size(GetParam()).elements;
  for (const std::int64_t count : {std::int64_t{0}, block, block == 1 ? 37 : 3 * block, 256 * block}) {
    const OwnedWeight weight = random_weight(GetParam(), 1, count, static_cast<std::uint32_t>(count));
    std::vector<float> plain(static_cast<std::size_t>(count)), fast(plain);
    dequantize(GetParam(), weight.view().data, count, plain.data());
    unpack(GetParam(), weight.view().data, count, fast.data());
    EXPECT_EQ(plain, fast);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, UnpackOfType, testing::ValuesIn(kWeightTypes),
                         [](const auto& type) { return std::string(to_string(type.param)); });

}  // namespace
}  // namespace rarefy::ops
