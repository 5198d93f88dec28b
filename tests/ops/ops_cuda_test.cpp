// The operations on CUDA against their CPU versions on the same values.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "rarefy/ops/embedding.h"
#include "rarefy/ops/linear.h"
#include "rarefy/ops/rms_norm.h"
#include "rarefy/ops/rope.h"
#include "rarefy/ops/scale.h"
#include "rarefy/ops/silu_mul.h"
#include "tests/gpu.h"

namespace rarefy::ops {
namespace {

class OpsCuda : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    RAREFY_NEEDS_GPU();
    stream_ = Stream(kGpu);
  }
  std::vector<float> random(std::int64_t count, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) x = normal(engine_);
    return rounded_to(GetParam(), std::move(out));
  }
  /// Within one rounding of the dtype, and of float32 sums in another order.
  void expect_near(const std::vector<float>& got, const std::vector<float>& expected, DType dtype, float size = 1) {
    const float unit = dtype == DType::F32 ? 1e-5f : dtype == DType::F16 ? 1 / 1024.f : 1 / 128.f;
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], unit * (std::abs(expected[i]) + 0.01f * size)) << i;
  }

  std::mt19937 engine_{1};
  Stream stream_;
  Stream cpu_;
};

INSTANTIATE_TEST_SUITE_P(All, OpsCuda, testing::Values(DType::F32, DType::F16, DType::BF16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(OpsCuda, RmsNorm) {
  for (const auto& [rows, dim] : {std::pair{1, 64}, {17, 128}, {3, 512}, {5, 576}, {2, 4096}, {300, 96}}) {
    const std::vector<float> x = random(rows * dim, 3), weight = random(dim);
    std::vector<float> expected(x);
    rms_norm(make_view(expected.data(), {rows, dim}), make_view(const_cast<float*>(weight.data()), {dim}), 1e-5f,
             make_view(expected.data(), {rows, dim}), cpu_);
    const GpuArray in(x, DType::F32), as_is(x, GetParam()), w(weight, DType::F32);
    const GpuArray out(std::vector<float>(x.size(), NAN), GetParam());
    rms_norm(in.view({rows, dim}), w.view({dim}), 1e-5f, out.view({rows, dim}), stream_);
    expect_near(out.values(stream_), expected, GetParam());
    rms_norm(as_is.view({rows, dim}), w.view({dim}), 1e-5f, as_is.view({rows, dim}), stream_);
    expect_near(as_is.values(stream_), expected, GetParam());
  }
}

TEST_P(OpsCuda, SiluMulAndScale) {
  for (const std::int64_t dim : {1, 255, 1536}) {
    std::vector<float> gate = random(7 * dim, 4), up = random(7 * dim);
    const GpuArray g(gate, GetParam()), u(up, GetParam());
    silu_mul(make_view(gate.data(), {7, dim}), make_view(up.data(), {7, dim}), make_view(gate.data(), {7, dim}), cpu_);
    silu_mul(g.view({7, dim}), u.view({7, dim}), g.view({7, dim}), stream_);
    expect_near(g.values(stream_), gate, GetParam());
    scale(u.view({7, dim}), 0.25f, stream_);
    for (float& x : up) x *= 0.25f;
    EXPECT_EQ(u.values(stream_), rounded_to(GetParam(), up));
  }
}

TEST_P(OpsCuda, Embedding) {
  constexpr std::int64_t kVocab = 50, kHidden = 96;
  const std::vector<float> table = random(kVocab * kHidden);
  const std::vector<std::int32_t> tokens = {0, 49, 7, 7};
  std::vector<float> expected(tokens.size() * kHidden);
  embedding(tokens.data(), 4, {reinterpret_cast<const std::byte*>(table.data()), DType::F32, kVocab, kHidden, nullptr},
            3, make_view(expected.data(), {4, kHidden}), cpu_);
  const GpuArray t(table, GetParam()), out(std::vector<float>(expected.size(), NAN), DType::F32);
  const LinearWeight weight{t.view({1}).data, GetParam(), kVocab, kHidden, nullptr};
  embedding(gpu_ints(tokens).as<std::int32_t>(), 4, weight, 3, out.view({4, kHidden}), stream_);
  EXPECT_EQ(out.values(stream_), expected);
  const GpuArray bad(std::vector<float>(2 * kHidden), DType::F32);
  embedding(gpu_ints({-1, 50}).as<std::int32_t>(), 2, weight, 3, bad.view({2, kHidden}), stream_);
  for (const float x : bad.values(stream_)) EXPECT_TRUE(std::isnan(x));
}

TEST_P(OpsCuda, Rope) {
  constexpr std::int64_t kTokens = 5, kHeads = 4, kKvHeads = 2;
  for (const RopeLayout layout : {RopeLayout::Halves, RopeLayout::Interleaved})
    for (const auto& [head_dim, rotary] : {std::pair{64, 64}, {128, 128}, {128, 64}})
      for (const bool ordered : {false, true}) {
        Rope rope_of{layout, {}, 1.25f};
        for (int i = 0; i < rotary / 2; ++i) rope_of.inv_freq.push_back(std::pow(10000., -2. * i / rotary));
        const std::vector<std::int32_t> positions = {0, 1, 77, 4095, 1000000};
        const std::vector<float> x = random(kTokens * kHeads * head_dim);
        std::vector<std::int32_t> order;
        for (int h = 0; h < kKvHeads; ++h)
          for (int c = 0; c < head_dim; ++c) order.push_back((c * 5 + h) % head_dim);
        std::vector<float> table(kTokens * static_cast<std::size_t>(rotary)), expected(x.size());
        const Shape shape{kTokens, kHeads, head_dim}, table_shape{kTokens, 2, rotary / 2};
        rope_table(positions, rope_of, make_view(table.data(), table_shape), cpu_);
        rope(make_view(const_cast<float*>(x.data()), shape), make_view(table.data(), table_shape), layout,
             ordered ? order.data() : nullptr, kKvHeads, make_view(expected.data(), shape), cpu_);
        const Buffer p = gpu_ints(positions), o = gpu_ints(order);
        const GpuArray t(std::vector<float>(table.size()), DType::F32), in(x, GetParam()),
            out(std::vector<float>(x.size(), NAN), GetParam());
        rope_table({p.as<std::int32_t>(), positions.size()}, rope_of, t.view(table_shape), stream_);
        expect_near(t.values(stream_), table, DType::F32);
        rope(in.view(shape), t.view(table_shape), layout, ordered ? o.as<std::int32_t>() : nullptr, kKvHeads,
             out.view(shape), stream_);
        expect_near(out.values(stream_), expected, GetParam());
      }
}

TEST_P(OpsCuda, Linear) {
  if (GetParam() == DType::F32) GTEST_SKIP() << "weights on CUDA have 16 bits";
  Workspace workspace(kGpu), host;
  for (const auto& [rows, out, in] : {std::tuple{1, 64, 64}, {3, 576, 1536}, {33, 200, 128}, {257, 192, 576}}) {
    const std::vector<float> x = random(rows * in), w = random(out * in, 0.05f), bias = random(out);
    std::vector<float> expected(static_cast<std::size_t>(rows * out), 0.5f);
    const LinearWeight plain{reinterpret_cast<const std::byte*>(w.data()), DType::F32, out, in, bias.data()};
    const TensorView y = make_view(expected.data(), {rows, out});
    linear_plain(make_view(const_cast<float*>(x.data()), {rows, in}), {&plain, 1}, true, {&y, 1});
    const GpuArray gx(x, GetParam()), gw(w, GetParam()), gb(bias, DType::F32);
    const GpuArray sum(std::vector<float>(expected.size(), 0.5f), DType::F32);
    const GpuArray fresh(std::vector<float>(expected.size(), NAN), GetParam());
    const LinearWeight weight{gw.view({1}).data, GetParam(), out, in, gb.floats()};
    const TensorView to_sum = sum.view({rows, out}), to_fresh = fresh.view({rows, out});
    linear(gx.view({rows, in}), {&weight, 1}, Precision::Fast, true, {&to_sum, 1}, workspace, stream_);
    const auto got = sum.values(stream_);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-4f * (1 + std::abs(expected[i])));
    for (float& v : expected) v -= 0.5f;
    linear(gx.view({rows, in}), {&weight, 1}, Precision::Fast, false, {&to_fresh, 1}, workspace, stream_);
    expect_near(fresh.values(stream_), expected, GetParam(), 100);  // rounded before the bias and after
  }
}

}  // namespace
}  // namespace rarefy::ops
