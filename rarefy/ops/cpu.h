// The CPU versions of the operations, called by their dispatchers with checked arguments.
#pragma once
#include <cstdint>
#include <span>

#include "rarefy/base/precision.h"
#include "rarefy/base/workspace.h"
#include "rarefy/ops/linear.h"
#include "rarefy/ops/rope.h"

namespace rarefy::ops::cpu {

void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t dim, float eps, float* y);

void silu_mul(const float* gate, const float* up, std::int64_t rows, std::int64_t dim, float* y);

void embedding(const std::int32_t* tokens, std::int64_t count, const LinearWeight& table, float scale, float* y);

void rope_table(std::span<const std::int32_t> positions, const Rope& rope, float* table);

/// Sizes of one call of rope: x and y are [tokens, heads, head_dim], the table is [tokens, 2, rotary / 2].
struct RopeShape {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_dim;
  std::int64_t rotary;
  std::int64_t group;
};
void rope(const float* x, const float* table, RopeLayout layout, const std::int32_t* order, const RopeShape& shape,
          float* y);

/// The largest logit, -inf if there is none; NaN if one of them is NaN or +inf.
float largest_logit(std::span<const float> logits);

/// values[i] = exp((values[i] - max) / temperature), values <= max, temperature > 0.
void softmax_weights(std::span<float> values, float max, float temperature);

/// `y[j]` points to [rows, weights[j].out] float32.
struct LinearCall {
  const float* x;
  std::int64_t rows;
  std::int64_t in;
  std::span<const LinearWeight> weights;
  std::span<const TensorView> y;
  bool accumulate;
};
/// The plain version; writes y in the order of the equation.
void linear_plain(const LinearCall& call);
void linear_decode(const LinearCall& call, Precision precision, Workspace& workspace);
void linear_prefill(const LinearCall& call, Precision precision, Workspace& workspace);

}  // namespace rarefy::ops::cpu
