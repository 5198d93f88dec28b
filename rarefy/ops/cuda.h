// The CUDA versions of the operations, called by their dispatchers with checked arguments.
#pragma once
#include <cstdint>
#include <span>

#include "rarefy/base/device.h"
#include "rarefy/base/tensor.h"
#include "rarefy/base/workspace.h"
#include "rarefy/ops/linear.h"
#include "rarefy/ops/rope.h"

namespace rarefy::ops::cuda {

void rms_norm(const TensorView& x, const float* weight, float eps, const TensorView& y, Stream& stream);

void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& y, Stream& stream);

void scale(const TensorView& x, float factor, Stream& stream);

/// `tokens` on the device; one outside the table gives a row of NaN.
void embedding(const std::int32_t* tokens, const LinearWeight& table, float scale, const TensorView& y, Stream& stream);

/// `positions` on the device.
void rope_table(std::span<const std::int32_t> positions, const Rope& rope, float* table, Stream& stream);

void rope(const TensorView& x, const TensorView& table, RopeLayout layout, const std::int32_t* order,
          std::int64_t kv_heads, const TensorView& y, Stream& stream);

/// One product; `y` of x's dtype or float32.
void linear(const TensorView& x, const LinearWeight& weight, bool accumulate, const TensorView& y, Workspace& workspace,
            Stream& stream);

void add_bias(const float* bias, const TensorView& y, Stream& stream);

}  // namespace rarefy::ops::cuda
