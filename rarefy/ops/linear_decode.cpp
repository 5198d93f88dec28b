// Decode products: every weight is read once, in its stored form, by one team of threads for the whole call.
#include <omp.h>

#include <algorithm>
#include <array>

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/linear_kernels.h"

namespace rarefy::ops::cpu {
namespace {

// Below, one thread is done before a second one has started.
constexpr std::int64_t kBytesForTwoThreads = 16 << 10;

constexpr std::array<std::int64_t, 2> kGroups{32, 256};

std::int64_t round_up(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t quantized_bytes(std::int64_t rows, std::int64_t in) {
  return round_up(rows * in) + 2 * round_up(rows * (in / 32) * 4) + round_up(rows * (in / 16) * 2);
}

QuantizedRows place(std::byte* memory, std::int64_t rows, std::int64_t in) {
  const std::int64_t floats = round_up(rows * (in / 32) * 4);
  std::byte* scale = memory + round_up(rows * in);
  return {reinterpret_cast<std::int8_t*>(memory), reinterpret_cast<float*>(scale),
          reinterpret_cast<float*>(scale + floats), reinterpret_cast<std::int16_t*>(scale + 2 * floats)};
}

// What one call needs, decided before the threads start.
struct Plan {
  int threads;
  std::array<bool, kGroups.size()> used{};  // activations quantised in groups of kGroups[i]
  std::array<QuantizedRows, kGroups.size()> quantized{};
  float* unpacked;  // [threads, in]
};

Plan make_plan(const LinearCall& call, Precision precision, Workspace& workspace) {
  Plan plan{};
  std::int64_t bytes = 0;
  for (const LinearWeight& weight : call.weights) {
    bytes += weight.out * row_bytes(weight.dtype, weight.in);
    for (std::size_t g = 0; g < kGroups.size(); ++g)
      plan.used[g] |= precision == Precision::Fast && integer_group(weight.dtype) == kGroups[g];
  }
  plan.threads = bytes * call.rows < kBytesForTwoThreads ? 1 : omp_get_max_threads();
  const std::int64_t set = quantized_bytes(2 * call.rows, call.in);
  std::byte* memory =
      workspace.reserve(static_cast<std::int64_t>(kGroups.size()) * set + plan.threads * round_up(call.in * 4));
  for (QuantizedRows& rows : plan.quantized) {
    rows = place(memory, 2 * call.rows, call.in);
    memory += set;
  }
  plan.unpacked = reinterpret_cast<float*>(memory);
  return plan;
}

void quantize_rows(const LinearCall& call, const Plan& plan, std::int64_t row) {
  for (std::size_t g = 0; g < kGroups.size(); ++g)
    if (plan.used[g]) quantize_row(call.x + row * call.in, call.in, kGroups[g], row, plan.quantized[g]);
}

// The share of one thread: an equal part of every weight, so that types of different speed balance.
void thread_products(const LinearCall& call, Precision precision, const Plan& plan, int thread, int threads) {
  for (std::size_t j = 0; j < call.weights.size(); ++j) {
    const LinearWeight& weight = call.weights[j];
    const std::int64_t begin = weight.out * thread / threads;
    const std::int64_t end = weight.out * (thread + 1) / threads;
    const ProductOutput output{reinterpret_cast<float*>(call.y[j].data), weight.out, weight.bias, call.accumulate};
    const std::int64_t group = precision == Precision::Fast ? integer_group(weight.dtype) : 0;
    if (group == 0)
      float_products(weight, call.x, call.rows, begin, end, plan.unpacked + thread * (round_up(call.in * 4) / 4),
                     output);
    else
      integer_products(weight, plan.quantized[group == kGroups[0] ? 0 : 1], call.rows, begin, end, output);
  }
}

}  // namespace

void linear_decode(const LinearCall& call, Precision precision, Workspace& workspace) {
  const Plan plan = make_plan(call, precision, workspace);
  // One row is quantised sooner than a barrier is passed.
  if (call.rows == 1 || plan.threads == 1)
    for (std::int64_t i = 0; i < call.rows; ++i) quantize_rows(call, plan, i);
  if (plan.threads == 1) {
    thread_products(call, precision, plan, 0, 1);
    return;
  }
#pragma omp parallel num_threads(plan.threads)
  {
    if (call.rows > 1) {
#pragma omp for
      for (std::int64_t i = 0; i < call.rows; ++i) quantize_rows(call, plan, i);
    }
    thread_products(call, precision, plan, omp_get_thread_num(), omp_get_num_threads());
  }
}

}  // namespace rarefy::ops::cpu
