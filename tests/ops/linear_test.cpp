// linear against a float64 loop over the dequantised weights: every dtype, both precisions, decode and prefill.
#include "rarefy/ops/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "rarefy/base/check.h"
#include "rarefy/base/quant.h"
#include "tests/ops/op_test.h"

namespace rarefy::ops {
namespace {

std::vector<float> run_linear(const std::vector<float>& x, std::int64_t rows, const OwnedWeight& w, Precision precision,
                              const std::vector<float>* residual = nullptr) {
  std::vector<float> y =
      residual != nullptr ? *residual : std::vector<float>(static_cast<std::size_t>(rows * w.out), NAN);
  const LinearWeight weights[] = {w.view()};
  const TensorView outputs[] = {make_view(y.data(), {rows, w.out})};
  Workspace workspace;
  Stream stream;
  linear(make_view(const_cast<float*>(x.data()), {rows, w.in}), weights, precision, residual != nullptr, outputs,
         workspace, stream);
  return y;
}

// The product in float64, and a bound of what the precision may lose.
struct Expected {
  double value = 0;
  double bound = 0;
};

// Bounds, each the worst case:
//   float32 sums of n terms lose at most n eps sum|x w|;
//   int8 activations (Fast, quantised weights) are off by at most half a step, largest / 254, of their block: 32
//   values, 256
//     for the K types; the step of 127 is itself rounded, hence 1 % more;
//   bf16 operands (Fast, prefill) are off by at most 2^-9 each.
Expected expect(const float* x, const float* w, const OwnedWeight& weight, std::int64_t rows, Precision precision) {
  const std::int64_t n = weight.in;
  const std::int64_t group = block_size(weight.dtype).elements == 256 ? 256 : 32;
  Expected e;
  double magnitude = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    e.value += static_cast<double>(x[i]) * w[i];
    magnitude += std::abs(static_cast<double>(x[i]) * w[i]);
  }
  e.bound = (static_cast<double>(n) + 8) * 0x1p-24 * magnitude + 1e-30;
  if (precision == Precision::Fp32) return e;
  if (rows > kMaxDecodeRows) {
    e.bound += 0x1.01p-8 * magnitude;
  } else if (is_quantized(weight.dtype)) {
    for (std::int64_t begin = 0; begin < n; begin += group) {
      double largest = 0, sum = 0;
      for (std::int64_t i = begin; i < std::min(n, begin + group); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(x[i])));
        sum += std::abs(static_cast<double>(w[i]));
      }
      e.bound += 1.01 * largest / 254 * sum;
    }
    // Minima and biases of a block are split off the integer sum, which enlarges the rounding of the float32 sums.
    e.bound += 64 * (static_cast<double>(n) + 8) * 0x1p-24 * magnitude;
  }
  return e;
}

void check_product(DType type, std::int64_t rows, std::int64_t out, std::int64_t in, Precision precision, bool bias,
                   bool accumulate, std::uint32_t seed) {
  const OwnedWeight weight = random_weight(type, out, in, seed, bias);
  const std::vector<float> x = random_floats(rows * in, seed + 2);
  const std::vector<float> residual = random_floats(rows * out, seed + 3);
  const std::vector<float> y = run_linear(x, rows, weight, precision, accumulate ? &residual : nullptr);
  std::vector<float> w(static_cast<std::size_t>(in));
  for (std::int64_t o = 0; o < out; ++o) {
    dequantize(type, weight.view().data + o * row_bytes(type, in), in, w.data());
    for (std::int64_t i = 0; i < rows; ++i) {
      Expected e = expect(x.data() + i * in, w.data(), weight, rows, precision);
      if (bias) e.value += weight.bias[static_cast<std::size_t>(o)];
      if (accumulate) e.value += residual[static_cast<std::size_t>(i * out + o)];
      e.bound += 4 * 0x1p-24 * (std::abs(e.value) + 8);
      ASSERT_NEAR(y[static_cast<std::size_t>(i * out + o)], e.value, e.bound)
          << to_string(type) << " rows " << rows << " [" << out << ", " << in << "] at " << i << ", " << o;
    }
  }
}

TEST(Linear, LiteralCase) {
  OwnedWeight w{std::vector<std::byte>(25), {0.5f, -1}, DType::F32, 2, 3};
  const float values[] = {1, 2, 3, -1, 0, 4};
  std::memcpy(w.bytes.data() + 1, values, sizeof values);
  const std::vector<float> x{1, 1, 1, 2, 0, -1};
  EXPECT_THAT(run_linear(x, 2, w, Precision::Fp32), testing::ElementsAre(6.5f, 2, -0.5f, -7));
  const std::vector<float> residual{10, 20, 30, 40};
  EXPECT_THAT(run_linear(x, 2, w, Precision::Fast, &residual), testing::ElementsAre(16.5f, 22, 29.5f, 33));
}

class LinearOfType : public testing::TestWithParam<DType> {};

TEST_P(LinearOfType, MatchesFloat64) {
  const std::int64_t block = block_size(GetParam()).elements;
  for (const Precision precision : {Precision::Fp32, Precision::Fast})
    for (const std::int64_t rows : {1, 2, 3, 5, 31, 32, 33, 70})
      for (const std::int64_t in : {block == 1 ? 37 : block, 9 * block, block == 1 ? 576 : 3 * block})
        check_product(GetParam(), rows, 13, in, precision, rows % 2 == 0, rows % 3 == 0,
                      static_cast<std::uint32_t>(rows + in));
}

TEST_P(LinearOfType, MatchesFloat64OnRandomShapes) {
  rc::check([&] {
    const auto rows = *rc::gen::weightedElement<std::int64_t>({{4, 1}, {2, 4}, {1, 32}, {1, 40}});
    const std::int64_t block = block_size(GetParam()).elements;
    const std::int64_t in =
        block == 1 ? *rc::gen::inRange<std::int64_t>(1, 300) : block * *rc::gen::inRange<std::int64_t>(1, 5);
    const auto out = *rc::gen::inRange<std::int64_t>(0, 40);
    check_product(GetParam(), rows, out, in, *rc::gen::element(Precision::Fp32, Precision::Fast),
                  *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<std::uint32_t>());
    RC_ASSERT(!testing::Test::HasFailure());
  });
}

TEST_P(LinearOfType, DecodeRowsDoNotDependOnTheirNeighbours) {
  const std::int64_t in = block_size(GetParam()).elements == 256 ? 512 : 288;
  const OwnedWeight weight = random_weight(GetParam(), 21, in, 5, true);
  const std::vector<float> x = random_floats(kMaxDecodeRows * in, 6);
  for (const Precision precision : {Precision::Fp32, Precision::Fast}) {
    const std::vector<float> all = run_linear(x, kMaxDecodeRows, weight, precision);
    for (const std::int64_t rows : {1, 2, 3, 4, 7, 31}) {
      const std::int64_t first = kMaxDecodeRows - rows;
      const std::vector<float> some = run_linear({x.begin() + first * in, x.end()}, rows, weight, precision);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * weight.out)) << rows << " rows";
    }
  }
}

TEST_P(LinearOfType, RerunsAreBitEqual) {
  const OwnedWeight weight = random_weight(GetParam(), 50, 512, 7);
  const std::vector<float> x = random_floats(64 * 512, 8);
  for (const Precision precision : {Precision::Fp32, Precision::Fast})
    for (const std::int64_t rows : {1, 17, 64}) {
      const std::vector<float> first = run_linear(x, rows, weight, precision);
      EXPECT_EQ(first, run_linear(x, rows, weight, precision));
    }
}

TEST_P(LinearOfType, PlainVersionIsTheEquation) {
  const OwnedWeight weight = random_weight(GetParam(), 9, 256, 9, true);
  const std::vector<float> x = random_floats(3 * 256, 10);
  std::vector<float> y(27);
  const LinearWeight weights[] = {weight.view()};
  const TensorView outputs[] = {make_view(y.data(), {3, 9})};
  linear_plain(make_view(const_cast<float*>(x.data()), {3, 256}), weights, false, outputs);
  const std::vector<float> fast = run_linear(x, 3, weight, Precision::Fp32);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], fast[i], 1e-4);
}

TEST_P(LinearOfType, NonFiniteActivationsReachTheOutput) {
  const OwnedWeight weight = random_weight(GetParam(), 6, 512, 11);
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const std::int64_t rows : {2, 5, 40}) {
      std::vector<float> x = random_floats(rows * 512, 12);
      x[512 + 300] = bad;
      for (const Precision precision : {Precision::Fp32, Precision::Fast}) {
        const std::vector<float> y = run_linear(x, rows, weight, precision);
        for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 6 != 1) << rows << " " << i;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearOfType, testing::ValuesIn(kWeightTypes),
                         [](const auto& type) { return std::string(to_string(type.param)); });

TEST(Linear, SeveralWeightsOfDifferentTypesShareTheInput) {
  const OwnedWeight a = random_weight(DType::Q4_K, 40, 512, 1), b = random_weight(DType::Q6_K, 7, 512, 2, true),
                    c = random_weight(DType::BF16, 1, 512, 3), none = random_weight(DType::F32, 0, 512, 4);
  for (const std::int64_t rows : {1, 6, 50}) {
    const std::vector<float> x = random_floats(rows * 512, 5);
    std::vector<std::vector<float>> y;
    std::vector<TensorView> views;
    std::vector<LinearWeight> weights;
    for (const OwnedWeight* w : {&a, &b, &none, &c}) {
      weights.push_back(w->view());
      y.emplace_back(static_cast<std::size_t>(rows * w->out));
      views.push_back(make_view(y.back().data(), {rows, w->out}));
    }
    Workspace workspace;
    Stream stream;
    linear(make_view(const_cast<float*>(x.data()), {rows, 512}), weights, Precision::Fast, false, views, workspace,
           stream);
    EXPECT_EQ(y[0], run_linear(x, rows, a, Precision::Fast));
    EXPECT_EQ(y[1], run_linear(x, rows, b, Precision::Fast));
    EXPECT_EQ(y[3], run_linear(x, rows, c, Precision::Fast));
  }
}

TEST(Linear, LargeWeightsAreMultipliedInSlabs) {
  // 9 MB and a little as float32: two slabs, the second one smaller.
  check_product(DType::Q8_0, 33, 8200, 288, Precision::Fast, true, true, 1);
}

TEST(Linear, ZeroRowsDoNothing) {
  EXPECT_TRUE(run_linear({}, 0, random_weight(DType::F32, 4, 8, 1), Precision::Fast).empty());
}

TEST(Linear, ConstantAndZeroActivations) {
  for (const DType type : {DType::Q8_0, DType::Q4_1, DType::Q4_K, DType::Q6_K}) {
    const OwnedWeight weight = random_weight(type, 5, 256, 1);
    EXPECT_THAT(run_linear(std::vector<float>(256, 0.0f), 1, weight, Precision::Fast), testing::Each(0.0f));
    std::vector<float> w(256);
    dequantize(type, weight.view().data, 256, w.data());
    double sum = 0;
    for (const float v : w) sum += v;
    EXPECT_NEAR(run_linear(std::vector<float>(256, -3.0f), 1, weight, Precision::Fast)[0], -3 * sum, 2e-3);
  }
}

template <typename F>
void expect_error(ErrorCode code, const char* text, const F& f) {
  try {
    f();
    FAIL() << "no error, expected: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    EXPECT_THAT(e.what(), testing::HasSubstr(text));
  }
}

TEST(Linear, RefusesBadCalls) {
  std::vector<float> x(2 * 64), y(2 * 4);
  OwnedWeight w = random_weight(DType::F32, 4, 64, 1);
  const TensorView xv = make_view(x.data(), {2, 64});
  Workspace workspace;
  Stream stream;
  const auto call = [&](const TensorView& input, const LinearWeight& weight, const TensorView& output) {
    linear(input, {&weight, 1}, Precision::Fp32, false, {&output, 1}, workspace, stream);
  };
  const TensorView yv = make_view(y.data(), {2, 4});
  const auto with = [&](auto change) {
    LinearWeight weight = w.view();
    change(weight);
    return weight;
  };
  expect_error(ErrorCode::BadInput, "[rows, in]", [&] { call(make_view(x.data(), {128}), w.view(), yv); });
  expect_error(ErrorCode::BadInput, "linear: y", [&] { call(xv, w.view(), make_view(y.data(), {4, 2})); });
  expect_error(ErrorCode::BadInput, "x is [2, 64]", [&] { call(xv, with([](auto& v) { v.in = 32; }), yv); });
  expect_error(ErrorCode::BadInput, "has no data", [&] { call(xv, with([](auto& v) { v.data = nullptr; }), yv); });
  expect_error(ErrorCode::BadInput, "block of 256",
               [&] { call(xv, with([](auto& v) { v.dtype = DType::Q4_K; }), yv); });
  expect_error(ErrorCode::BadInput, "is [4, 0]", [&] {
    call(make_view(x.data(), {2, 0}), with([](auto& v) { v.in = 0; }), yv);
  });
  expect_error(ErrorCode::Unsupported, "I32", [&] { call(xv, with([](auto& v) { v.dtype = DType::I32; }), yv); });
  expect_error(ErrorCode::BadInput, "y must not be x", [&] {
    const OwnedWeight square = random_weight(DType::F32, 64, 64, 1);
    call(xv, square.view(), xv);
  });
  expect_error(ErrorCode::BadInput, "1 weights, 0 outputs", [&] {
    const LinearWeight weight = w.view();
    linear(xv, {&weight, 1}, Precision::Fp32, false, {}, workspace, stream);
  });
}

}  // namespace
}  // namespace rarefy::ops
