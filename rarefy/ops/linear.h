// Products with weight matrices: y = x W^T + b, for one or several weights that share x.
#pragma once
#include <cstdint>
#include <span>

#include "rarefy/base/device.h"
#include "rarefy/base/precision.h"
#include "rarefy/base/tensor.h"
#include "rarefy/base/workspace.h"

namespace rarefy::ops {

/// A weight matrix as stored in the model file, row-major [out, in], any alignment; bias [out] float32 or null.
struct LinearWeight {
  const std::byte* data = nullptr;
  DType dtype = DType::F32;
  std::int64_t out = 0;
  std::int64_t in = 0;
  const float* bias = nullptr;
};

/// Throws BadInput naming `name` unless in > 0, the sizes fit the type's blocks and data is there, Unsupported for I32.
void check_weight(const char* name, const LinearWeight& weight);

/// Rows up to which `linear` reads the weights in their stored form (decode) instead of a matrix product (prefill).
/// Decode batches never exceed it, so a row's result does not depend on how many rows stand beside it.
inline constexpr std::int64_t kMaxDecodeRows = 32;

/// y_j[i] = W_j x[i] + b_j for every weight j (GPT-style linear layer; q, k, v or gate and up share one call).
///   x        [rows, in]      float32, host
///   weights  [n]             each [out_j, in], any DType but I32
///   y        [n] views       [rows, out_j] float32, host; must not alias x
///   accumulate  adds to y instead of overwriting it (the residual)
/// Up to kMaxDecodeRows rows read each weight once, in its stored form; Fast then rounds the activations that meet
/// quantised weights to int8, one scale for 32 values (256 for the K types). More rows go through oneDNN, in bf16 where
/// the CPU multiplies it and `precision` is Fast. A NaN or infinity in a row reaches all of its results. Results of a
/// row are bit-equal whatever the other rows (decode), and reruns are bit-equal for the same number of threads (both).
/// On CUDA x and the weights are F16 or BF16, y is as x or float32, sums are float32 (cuBLASLt), and `accumulate` wants
/// a float32 y. Zero rows do nothing. Throws BadInput (shapes), Unsupported (dtype, device).
void linear(const TensorView& x, std::span<const LinearWeight> weights, Precision precision, bool accumulate,
            std::span<const TensorView> y, Workspace& workspace, Stream& stream);

/// The plain version in the order of the equation, dequantising to float32: the oracle.
void linear_plain(const TensorView& x, std::span<const LinearWeight> weights, bool accumulate,
                  std::span<const TensorView> y);

}  // namespace rarefy::ops
