// The inner loops of decode products, chosen per CPU: one thread's share of the rows of one weight.
#pragma once
#include <cstdint>

#include "rarefy/ops/linear.h"

namespace rarefy::ops::cpu {

/// Where products go: y [rows, out], with the weight's bias, over or onto what is there.
struct ProductOutput {
  float* y;
  std::int64_t out;
  const float* bias;
  bool accumulate;

  void put(std::int64_t row, std::int64_t o, float product) const {
    float& target = y[row * out + o];
    if (bias != nullptr) product += bias[o];
    target = accumulate ? target + product : product;
  }
};

/// Rows [begin, end) of `weight`, times every row of x, with float32 operands.
///   x [rows, weight.in];   unpacked [weight.in], scratch of this thread
void float_products(const LinearWeight& weight, const float* x, std::int64_t rows, std::int64_t begin, std::int64_t end,
                    float* unpacked, const ProductOutput& output);

/// Activations as two int8 terms: x[i, k] is about scale[2 i, k / 32] q[2 i, k] + scale[2 i + 1, k / 32] q[2 i + 1, k],
/// |q| <= 127. The second term holds what rounding left of the first: one term alone moved the top token of 3.5 % of
/// SmolLM2's positions. One scale serves 32 values or, for the types with blocks of 256, 256 values (then it is stored
/// eight times).
struct QuantizedRows {
  std::int8_t* q;       // [2 rows, in]
  float* scale;         // [2 rows, in / 32]
  float* sum;           // [2 rows, in / 32]  scale * sum of q
  std::int16_t* sum16;  // [2 rows, in / 16]  sum of q
};

/// Values that share a scale when activations meet weights of this type in integer products; 0: this type, or this CPU,
/// has no integer products.
std::int64_t integer_group(DType type);

/// Quantises one row of `in` values (a multiple of `group`, 32 or 256) to the two terms of row `row` of `rows`, each
/// the nearest integers of 127 x / max |x|. A NaN or infinity makes its group's scales NaN.
void quantize_row(const float* x, std::int64_t in, std::int64_t group, std::int64_t row, const QuantizedRows& rows);

/// Rows [begin, end) of `weight`, times every row of `x`, with integer products of blocks. integer_group must not be 0.
void integer_products(const LinearWeight& weight, const QuantizedRows& x, std::int64_t rows, std::int64_t begin,
                      std::int64_t end, const ProductOutput& output);

}  // namespace rarefy::ops::cpu
