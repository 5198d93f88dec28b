// rope_table and rope against float64, in both layouts and any channel order.
#include "rarefy/ops/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

std::vector<double> frequencies(std::int64_t rotary) {
  std::vector<double> f;
  for (std::int64_t i = 0; i < rotary / 2; ++i)
    f.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary)));
  return f;
}

std::vector<float> make_table(const std::vector<std::int32_t>& positions, const Rope& rope) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const auto half = static_cast<std::int64_t>(rope.inv_freq.size());
  std::vector<float> table(static_cast<std::size_t>(tokens * 2 * half));
  Stream stream;
  rope_table(positions, rope, make_view(table.data(), {tokens, 2, half}), stream);
  return table;
}

TEST(Rope, LiteralQuarterTurn) {
  const Rope quarter{RopeLayout::Halves, {std::acos(-1.0) / 2, 0}, 1};
  std::vector<float> table = make_table({1}, quarter);
  float x[] = {1, 2, 3, 4, 9}, y[5];
  Stream stream;
  const TensorView t = make_view(table.data(), {1, 2, 2});
  rope(make_view(x, {1, 1, 5}), t, RopeLayout::Halves, nullptr, 1, make_view(y, {1, 1, 5}), stream);
  EXPECT_NEAR(y[0], -3, 1e-6);
  EXPECT_NEAR(y[2], 1, 1e-6);
  EXPECT_EQ(y[1], 2);
  EXPECT_EQ(y[3], 4);
  EXPECT_EQ(y[4], 9);
  rope(make_view(x, {1, 1, 5}), t, RopeLayout::Interleaved, nullptr, 1, make_view(y, {1, 1, 5}), stream);
  EXPECT_NEAR(y[0], -2, 1e-6);
  EXPECT_NEAR(y[1], 1, 1e-6);
  EXPECT_EQ(y[2], 3);
}

TEST(Rope, MatchesFloat64InEveryLayoutAndOrder) {
  Stream stream;
  for (const auto& [tokens, heads, kv_heads, head_dim, rotary] :
       {std::array<std::int64_t, 5>{1, 9, 3, 64, 64}, {40, 4, 2, 128, 96}, {3, 2, 2, 6, 2}, {0, 1, 1, 64, 64}})
    for (const RopeLayout layout : {RopeLayout::Halves, RopeLayout::Interleaved})
      for (const bool ordered : {false, true}) {
        const Rope angles{layout, frequencies(rotary), 1.25f};
        std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens)),
            order(static_cast<std::size_t>(kv_heads * head_dim));
        for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int32_t>(131071 - 997 * t);
        std::mt19937 engine(1);
        for (std::int64_t h = 0; h < kv_heads; ++h) {
          const auto begin = order.begin() + h * head_dim;
          std::iota(begin, begin + head_dim, 0);
          if (ordered) std::shuffle(begin, begin + head_dim, engine);
        }
        std::vector<float> x = random_floats(tokens * heads * head_dim, 2), y(x.size()),
                           table = make_table(positions, angles);
        const Shape shape{tokens, heads, head_dim};
        rope(make_view(x.data(), shape), make_view(table.data(), {tokens, 2, rotary / 2}), layout,
             ordered ? order.data() : nullptr, kv_heads, make_view(y.data(), shape), stream);
        for (std::int64_t row = 0; row < tokens * heads; ++row) {
          const float* in = x.data() + row * head_dim;
          std::vector<double> rotated(in, in + head_dim);
          for (std::int64_t i = 0; i < rotary / 2; ++i) {
            const std::int64_t a = layout == RopeLayout::Halves ? i : 2 * i,
                               b = layout == RopeLayout::Halves ? i + rotary / 2 : 2 * i + 1;
            const double angle =
                positions[static_cast<std::size_t>(row / heads)] * angles.inv_freq[static_cast<std::size_t>(i)];
            rotated[static_cast<std::size_t>(a)] = 1.25 * (in[a] * std::cos(angle) - in[b] * std::sin(angle));
            rotated[static_cast<std::size_t>(b)] = 1.25 * (in[b] * std::cos(angle) + in[a] * std::sin(angle));
          }
          const std::int32_t* channels = order.data() + row % heads / (heads / kv_heads) * head_dim;
          for (std::int64_t i = 0; i < head_dim; ++i)
            ASSERT_NEAR(y[static_cast<std::size_t>(row * head_dim + i)], rotated[static_cast<std::size_t>(channels[i])],
                        2e-6);
        }
      }
}

TEST(Rope, RefusesBadCalls) {
  Stream stream;
  std::vector<float> x(2 * 4 * 8), y(x.size()), table(2 * 2 * 4);
  const TensorView xv = make_view(x.data(), {2, 4, 8}), yv = make_view(y.data(), {2, 4, 8}),
                   tv = make_view(table.data(), {2, 2, 4});
  const auto call = [&](const TensorView& in, const TensorView& t, const std::int32_t* order, std::int64_t kv_heads,
                        const TensorView& out) { rope(in, t, RopeLayout::Halves, order, kv_heads, out, stream); };
  call(xv, tv, nullptr, 2, yv);
  std::vector<std::int32_t> order(8, 8);
  EXPECT_THROW(call(xv, tv, order.data(), 1, yv), Error);
  EXPECT_THROW(call(xv, tv, nullptr, 3, yv), Error);
  EXPECT_THROW(call(xv, tv, nullptr, 0, yv), Error);
  EXPECT_THROW(call(xv, tv, nullptr, 2, xv), Error);
  EXPECT_THROW(call(make_view(x.data(), {2, 32}), tv, nullptr, 2, yv), Error);
  EXPECT_THROW(call(xv, make_view(table.data(), {1, 2, 8}), nullptr, 2, yv), Error);
  EXPECT_THROW(call(make_view(x.data(), {2, 8, 4}), tv, nullptr, 2, make_view(y.data(), {2, 8, 4})), Error);
  std::vector<float> wide(2048), out(2048), one(2);
  EXPECT_THROW(call(make_view(wide.data(), {1, 1, 2048}), make_view(one.data(), {1, 2, 1}), nullptr, 1,
                    make_view(out.data(), {1, 1, 2048})),
               Error);
  EXPECT_THROW(rope_table(std::vector<std::int32_t>{1}, {RopeLayout::Halves, {1.0}, 1}, tv, stream), Error);
}

}  // namespace
}  // namespace rarefy::ops
