// Matrix products of prefill, by oneDNN: the one place that knows it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rarefy::ops {

/// y[m, n] = x[m, k] w[n, k]^T, plus bias[n] if `bias`, plus y if `accumulate`. x and w are bf16 if `bf16`, else
/// float32; bias and y are float32; all row-major, the rows of y `y_stride` floats apart.
struct GemmShape {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  std::int64_t y_stride;
  bool bf16;
  bool bias;
  bool accumulate;
  bool operator==(const GemmShape&) const = default;
};

/// Whether this CPU multiplies bf16 in hardware (AVX512-BF16 or AMX).
bool gemm_has_bf16();

/// Scratch memory that `gemm` needs for `shape`, all sizes above 0.
std::int64_t gemm_scratch_bytes(const GemmShape& shape);

/// Runs the product; primitives are kept per shape, and calls from several threads are safe.
///   scratch  gemm_scratch_bytes(shape) bytes, aligned to 64;   bias  null unless shape.bias
/// Throws Unsupported if oneDNN has no such product.
void gemm(const GemmShape& shape, const void* x, const void* w, const float* bias, float* y, std::byte* scratch);

}  // namespace rarefy::ops
