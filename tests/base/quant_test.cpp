// dequantize against PyPI gguf (tests/goldens/make_dequant.py).
#include "rarefy/base/quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include "rarefy/base/check.h"

namespace rarefy {
namespace {

TEST(Dequantize, EqualsTheFieldsOwnTool) {
  const std::map<int, DType> kTypes = {{8, DType::Q8_0}, {2, DType::Q4_0},  {3, DType::Q4_1},  {6, DType::Q5_0},
                                       {7, DType::Q5_1}, {12, DType::Q4_K}, {13, DType::Q5_K}, {14, DType::Q6_K}};
  std::ifstream in(RAREFY_SOURCE_DIR "/tests/goldens/dequant.bin", std::ios::binary);
  std::size_t seen = 0;
  for (std::int32_t head[3]; in.read(reinterpret_cast<char*>(head), sizeof head); ++seen) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(head[2]));
    std::vector<float> expected(static_cast<std::size_t>(head[1])), got(expected.size());
    in.read(reinterpret_cast<char*>(bytes.data()), head[2]);
    in.read(reinterpret_cast<char*>(expected.data()), head[1] * 4);
    const DType type = kTypes.at(head[0]);
    dequantize(type, bytes.data(), head[1], got.data());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], expected[i]) << to_string(type) << " value " << i;
  }
  EXPECT_EQ(seen, kTypes.size());
}

TEST(Dequantize, PlainTypesAndEmptyRows) {
  const Half halves[] = {from_float<Half>(1.5f), from_float<Half>(-0.25f)};
  float out[2] = {};
  dequantize(DType::F16, reinterpret_cast<const std::byte*>(halves), 2, out);
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_EQ(out[1], -0.25f);
  dequantize(DType::Q8_0, nullptr, 0, nullptr);
}

TEST(Dequantize, RefusesPartsOfBlocksAndIntegers) {
  float out[64];
  const std::byte bytes[64] = {};
  EXPECT_THROW(dequantize(DType::Q8_0, bytes, 31, out), Error);
  EXPECT_THROW(dequantize(DType::I32, bytes, 4, out), Error);
}

}  // namespace
}  // namespace rarefy
