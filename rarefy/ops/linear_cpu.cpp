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

// Rows [begin, end) of a weight as operand of the product: [end - begin, in] of float32 or bf16.
void unpack_rows(const LinearWeight& weight, std::int64_t begin, std::int64_t end, bool bf16, std::byte* operand) {
  const std::int64_t stride = row_bytes(weight.dtype, weight.in);
#pragma omp parallel
  {
    std::vector<float> row(static_cast<std::size_t>(bf16 ? weight.in : 0));
#pragma omp for
    for (std::int64_t o = begin; o < end; ++o) {
      const std::byte* src = weight.data + o * stride;
      const std::int64_t offset = (o - begin) * weight.in;
      if (bf16) {
        unpack(weight.dtype, src, weight.in, row.data());
        convert(row.data(), weight.in, reinterpret_cast<BFloat16*>(operand) + offset);
      } else {
        unpack(weight.dtype, src, weight.in, reinterpret_cast<float*>(operand) + offset);
      }
    }
  }
}

// Whether the stored bytes are the operand, and aligned for it.
bool is_operand(const LinearWeight& weight, bool bf16) {
  return weight.dtype == (bf16 ? DType::BF16 : DType::F32) &&
         reinterpret_cast<std::uintptr_t>(weight.data) % (bf16 ? alignof(BFloat16) : alignof(float)) == 0;
}

std::int64_t round_up(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; }

// Rows of a weight that are unpacked at once: all of a small weight; of a large one a slab that stays in the last-level
// cache until it is multiplied, so that an output head needs no copy of itself.
std::int64_t slab_rows(const LinearWeight& weight, bool bf16) {
  constexpr std::int64_t kSlabBytes = 8 << 20;
  if (is_operand(weight, bf16)) return weight.out;
  const std::int64_t bytes = weight.out * weight.in * (bf16 ? 2 : 4);
  const std::int64_t slabs = bytes / kSlabBytes + 1;
  return std::min(weight.out, round_up((weight.out + slabs - 1) / slabs, 64));
}

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
  const auto shape = [&](const LinearWeight& weight, std::int64_t rows) {
    return GemmShape{call.rows, rows, call.in, weight.out, bf16, weight.bias != nullptr, call.accumulate};
  };
  // Calls body(begin, end) for every slab of a weight.
  const auto for_slabs = [&](const LinearWeight& weight, const auto& body) {
    const std::int64_t rows = slab_rows(weight, bf16);
    for (std::int64_t begin = 0; begin < weight.out; begin += rows) body(begin, std::min(weight.out, begin + rows));
  };

  const std::int64_t x_bytes = bf16 ? round_up(call.rows * call.in * element, 64) : 0;
  std::int64_t weight_bytes = 0;
  std::int64_t scratch_bytes = 0;
  for (const LinearWeight& weight : call.weights) {
    if (!is_operand(weight, bf16))
      weight_bytes = std::max(weight_bytes, round_up(slab_rows(weight, bf16) * weight.in * element, 64));
    for_slabs(weight, [&](std::int64_t begin, std::int64_t end) {
      scratch_bytes = std::max(scratch_bytes, gemm_scratch_bytes(shape(weight, end - begin)));
    });
  }
  std::byte* operand = workspace.reserve(weight_bytes + x_bytes + scratch_bytes);
  std::byte* x16 = operand + weight_bytes;
  std::byte* scratch = x16 + x_bytes;

  if (bf16) {
#pragma omp parallel for
    for (std::int64_t i = 0; i < call.rows; ++i)
      convert(call.x + i * call.in, call.in, reinterpret_cast<BFloat16*>(x16) + i * call.in);
  }
  const void* x = bf16 ? static_cast<const void*>(x16) : call.x;
  for (std::size_t j = 0; j < call.weights.size(); ++j) {
    const LinearWeight& weight = call.weights[j];
    for_slabs(weight, [&](std::int64_t begin, std::int64_t end) {
      const bool stored = is_operand(weight, bf16);
      if (!stored) unpack_rows(weight, begin, end, bf16, operand);
      gemm(shape(weight, end - begin), x, stored ? weight.data : operand,
           weight.bias != nullptr ? weight.bias + begin : nullptr, call.y[j].as<float>() + begin, scratch);
    });
  }
}

}  // namespace rarefy::ops::cpu
