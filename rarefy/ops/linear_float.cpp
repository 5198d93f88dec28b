// Decode products with float32 operands: 16-bit and float32 weights are widened in registers, others unpacked by row.
#include "rarefy/ops/linear_kernels.h"
#include "rarefy/ops/unpack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rarefy/ops/linear_float.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once per target.
#include <hwy/highway.h>

#include "rarefy/ops/widen-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rarefy::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using ops::HWY_NAMESPACE::load;
using ops::HWY_NAMESPACE::load_one;

// R rows of x times one row of weights. Each row has its own two sums, so that R does not change its result.
template <int R, typename T>
void dot_rows(const T* w, const float* x, std::int64_t in, float* products) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = hn::Zero(d);
  std::int64_t k = 0;
  for (; k + 2 * lanes <= in; k += 2 * lanes) {
    const auto a = load(d, w + k);
    const auto b = load(d, w + k + lanes);
    for (int r = 0; r < R; ++r) {
      even[r] = hn::MulAdd(a, hn::LoadU(d, x + r * in + k), even[r]);
      odd[r] = hn::MulAdd(b, hn::LoadU(d, x + r * in + k + lanes), odd[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[r], odd[r])));
    for (std::int64_t i = k; i < in; ++i) sum += load_one(w + i) * x[r * in + i];
    products[r] = sum;
  }
}

template <typename T>
void row_products(const T* w, const float* x, std::int64_t rows, std::int64_t in, std::int64_t o,
                  const ProductOutput& output) {
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    float products[4];
    dot_rows<4>(w, x + i * in, in, products);
    for (int r = 0; r < 4; ++r) output.put(i + r, o, products[r]);
  }
  for (; i < rows; ++i) {
    float product;
    dot_rows<1>(w, x + i * in, in, &product);
    output.put(i, o, product);
  }
}

void float_row(DType type, const std::byte* w, const float* x, std::int64_t rows, std::int64_t in, std::int64_t o,
               const ProductOutput& output) {
  if (type == DType::F16)
    row_products(reinterpret_cast<const Half*>(w), x, rows, in, o, output);
  else if (type == DType::BF16)
    row_products(reinterpret_cast<const BFloat16*>(w), x, rows, in, o, output);
  else
    row_products(reinterpret_cast<const float*>(w), x, rows, in, o, output);
}

}  // namespace rarefy::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rarefy::ops::cpu {
HWY_EXPORT(float_row);

void float_products(const LinearWeight& weight, const float* x, std::int64_t rows, std::int64_t begin, std::int64_t end,
                    float* unpacked, const ProductOutput& output) {
  const std::int64_t stride = row_bytes(weight.dtype, weight.in);
  for (std::int64_t o = begin; o < end; ++o) {
    const std::byte* w = weight.data + o * stride;
    DType type = weight.dtype;
    if (is_quantized(type)) {
      unpack(type, w, weight.in, unpacked);
      w = reinterpret_cast<const std::byte*>(unpacked);
      type = DType::F32;
    }
    HWY_DYNAMIC_DISPATCH(float_row)(type, w, x, rows, weight.in, o, output);
  }
}

}  // namespace rarefy::ops::cpu
#endif
