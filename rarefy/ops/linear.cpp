// Checks and dispatch of linear.
#include "rarefy/ops/linear.h"

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops {
namespace {

std::int64_t check_call(const TensorView& x, std::span<const LinearWeight> weights, std::span<const TensorView> y,
                        Device device) {
  CHECK(x.shape.rank() == 2, "linear: x is {}, not [rows, in]", to_string(x.shape));
  check_tensor("linear: x", x, device.is_cpu() ? DType::F32 : x.dtype, x.shape, device);
  CHECK(weights.size() == y.size(), "linear: {} weights, {} outputs", weights.size(), y.size());
  for (std::size_t j = 0; j < weights.size(); ++j) {
    check_weight("linear: weight", weights[j]);
    CHECK(weights[j].in == x.shape[1], "linear: weight {} is [{}, {}], x is {}", j, weights[j].out, weights[j].in,
          to_string(x.shape));
    const bool as_x = !device.is_cpu() && y[j].dtype != DType::F32;
    check_tensor("linear: y", y[j], as_x ? x.dtype : DType::F32, {x.shape[0], weights[j].out}, device);
    CHECK(x.shape[0] == 0 || y[j].data != x.data, "linear: y must not be x");
    if (device.is_cpu()) continue;
    if ((x.dtype != DType::F16 && x.dtype != DType::BF16) || weights[j].dtype != x.dtype)
      fail(ErrorCode::Unsupported, "E_DTYPE", "linear on CUDA: x is {}, weight {} is {}; both must be F16 or BF16",
           to_string(x.dtype), j, to_string(weights[j].dtype));
  }
  return x.shape[0];
}

}  // namespace

void check_weight(const char* name, const LinearWeight& weight) {
  if (weight.dtype == DType::I32)
    fail(ErrorCode::Unsupported, "E_DTYPE", "{} has dtype {}", name, to_string(weight.dtype));
  CHECK(weight.out >= 0 && weight.in > 0, "{} is [{}, {}]", name, weight.out, weight.in);
  CHECK(weight.in % block_size(weight.dtype).elements == 0, "{} has rows of {}, not a multiple of {}'s block of {}",
        name, weight.in, to_string(weight.dtype), block_size(weight.dtype).elements);
  CHECK(weight.data != nullptr || weight.out == 0, "{} [{}, {}] has no data", name, weight.out, weight.in);
}

void linear(const TensorView& x, std::span<const LinearWeight> weights, Precision precision, bool accumulate,
            std::span<const TensorView> y, Workspace& workspace, Stream& stream) {
  require_device(stream.device());
  const std::int64_t rows = check_call(x, weights, y, stream.device());
  if (rows == 0) return;
  if constexpr (kCudaBuild) {
    if (!stream.device().is_cpu()) {
      for (std::size_t j = 0; j < weights.size(); ++j) {
        cuda::linear(x, weights[j], accumulate, y[j], workspace, stream);
        if (weights[j].bias != nullptr) cuda::add_bias(weights[j].bias, y[j], stream);
      }
      return;
    }
  }
  const cpu::LinearCall call{x.as<float>(), rows, x.shape[1], weights, y, accumulate};
  if (rows <= kMaxDecodeRows)
    cpu::linear_decode(call, precision, workspace);
  else
    cpu::linear_prefill(call, precision, workspace);
}

void linear_plain(const TensorView& x, std::span<const LinearWeight> weights, bool accumulate,
                  std::span<const TensorView> y) {
  const std::int64_t rows = check_call(x, weights, y, kCpu);
  cpu::linear_plain({x.as<float>(), rows, x.shape[1], weights, y, accumulate});
}

}  // namespace rarefy::ops
