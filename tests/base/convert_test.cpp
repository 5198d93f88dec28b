// Row conversions against the scalar ones.
#include "rarefy/base/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace rarefy {
namespace {

template <typename T>
void every_sixteen_bit_value() {
  std::vector<T> in(65536);
  for (std::size_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> out(in.size());
  convert(in.data(), static_cast<std::int64_t>(in.size()), out.data());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float expected = to_float(in[i]);
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(out[i])) << i;
    else
      EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(expected)) << i;
  }
}

template <typename T>
void many_floats() {
  std::vector<float> in = {0.f,   -0.f,     1.f,    65504.f,  65519.f,   65520.f, 1e38f,
                           6e-8f, 2.98e-8f, 1e-45f, INFINITY, -INFINITY, NAN};
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) in.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (int i = 0; i < 4096; ++i)
    in.push_back(std::bit_cast<float>(0x3f800000u + (static_cast<std::uint32_t>(i) << 11)));  // ties
  std::vector<T> out(in.size());
  for (const std::size_t offset : {std::size_t{0}, std::size_t{3}}) {
    convert(in.data() + offset, static_cast<std::int64_t>(in.size() - offset), out.data());
    for (std::size_t i = offset; i < in.size(); ++i) {
      const T expected = from_float<T>(in[i]);
      if (std::isnan(in[i]))
        EXPECT_TRUE(std::isnan(to_float(out[i - offset])));
      else
        EXPECT_EQ(out[i - offset].bits, expected.bits) << in[i];
    }
  }
}

TEST(Convert, HalfToFloat) { every_sixteen_bit_value<Half>(); }
TEST(Convert, BFloat16ToFloat) { every_sixteen_bit_value<BFloat16>(); }
TEST(Convert, FloatToHalf) { many_floats<Half>(); }
TEST(Convert, FloatToBFloat16) { many_floats<BFloat16>(); }

}  // namespace
}  // namespace rarefy
