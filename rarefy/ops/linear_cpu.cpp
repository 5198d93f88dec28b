// The plain CPU version of linear (the oracle), and prefill: weights unpacked once per call, then one product each.
#include <algorithm>
#include <vector>

#include "rarefy/base/convert.h"
#include "rarefy/base/quant.h"
#include "rarefy/ops/cpu.h"
#include "rarefy/ops/gemm.h"
#include "rarefy/ops/unpack.h"

namespace rarefy::ops::cpu {
namespace {

// Weights as operands of the product: [out, in] of float32 or bf16.
void unpack_weight(const LinearWeight& weight, std::byte* operand, bool bf16) {
  const std::int64_t stride = row_bytes(weight.dtype, weight.in);
#pragma omp parallel
  {
    std::vector<float> row(static_cast<std::size_t>(bf16 ? weight.in : 0));
#pragma omp for
    for (std::int64_t o = 0; o < weight.out; ++o) {
      const std::byte* src = weight.data + o * stride;
      if (bf16) {
        unpack(weight.dtype, src, weight.in, row.data());
        convert(row.data(), weight.in, reinterpret_cast<BFloat16*>(operand) + o * weight.in);
      } else {
        unpack(weight.dtype, src, weight.in, reinterpret_cast<float*>(operand) + o * weight.in);
      }
    }
  }
}

// Whether the stored bytes are the operand, and aligned for it.
bool is_operand(const LinearWeight& weight, bool bf16) {
  return weight.dtype == (bf16 ? DType::BF16 : DType::F32) &&
         reinterpret_cast<std::uintptr_t>(weight.data) % (bf16 ? alignof(BFloat16) : alignof(float)) == 0;
}

std::int64_t round_up(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void linear_plain(const LinearCall& call) {
  std::vector<float> w(static_cast<std::size_t>(call.in));
  for (std::size_t j = 0; j < call.weights.size(); ++j) {
    const LinearWeight& weight = call.weights[j];
    float* y = call.y[j].as<float>();
    for (std::int64_t o = 0; o < weight.out; ++o) {
      dequantize(weight.dtype, weight.data + o * row_bytes(weight.dtype, weight.in), weight.in, w.data());
      for (std::int64_t i = 0; i < call.rows; ++i) {
        double sum = weight.bias != nullptr ? weight.bias[o] : 0;
        for (std::int64_t k = 0; k < call.in; ++k)
          sum += static_cast<double>(call.x[i * call.in + k]) * w[static_cast<std::size_t>(k)];
        float& out = y[i * weight.out + o];
        out = static_cast<float>(call.accumulate ? out + sum : sum);
      }
    }
  }
}

void linear_prefill(const LinearCall& call, Precision precision, Workspace& workspace) {
  const bool bf16 = precision == Precision::Fast && gemm_has_bf16();
  const std::int64_t element = bf16 ? 2 : 4;
  const std::int64_t x_bytes = bf16 ? round_up(call.rows * call.in * element) : 0;
  std::int64_t weight_bytes = 0;
  std::int64_t scratch_bytes = 0;
  const auto shape = [&](const LinearWeight& weight) {
    return GemmShape{call.rows, weight.out, call.in, bf16, weight.bias != nullptr, call.accumulate};
  };
  for (const LinearWeight& weight : call.weights) {
    if (weight.out == 0) continue;
    if (!is_operand(weight, bf16)) weight_bytes = std::max(weight_bytes, round_up(weight.out * weight.in * element));
    scratch_bytes = std::max(scratch_bytes, gemm_scratch_bytes(shape(weight)));
  }
  std::byte* operand = workspace.reserve(weight_bytes + x_bytes + scratch_bytes);
  std::byte* x16 = operand + weight_bytes;
  std::byte* scratch = x16 + x_bytes;
  if (bf16) {
#pragma omp parallel for
    for (std::int64_t i = 0; i < call.rows; ++i)
      convert(call.x + i * call.in, call.in, reinterpret_cast<BFloat16*>(x16) + i * call.in);
  }
  for (std::size_t j = 0; j < call.weights.size(); ++j) {
    const LinearWeight& weight = call.weights[j];
    if (weight.out == 0) continue;
    const bool stored = is_operand(weight, bf16);
    if (!stored) unpack_weight(weight, operand, bf16);
    const void* x = bf16 ? static_cast<const void*>(x16) : call.x;
    gemm(shape(weight), x, stored ? weight.data : operand, weight.bias, call.y[j].as<float>(), scratch);
  }
}

}  // namespace rarefy::ops::cpu
