// Checks and dispatch of linear.
#include "rarefy/ops/linear.h"

#include "rarefy/ops/cpu.h"

namespace rarefy::ops {
namespace {

std::int64_t check_call(const TensorView& x, std::span<const LinearWeight> weights, std::span<const TensorView> y,
                        Device device) {
  CHECK(x.shape.rank() == 2, "linear: x is {}, not [rows, in]", to_string(x.shape));
  check_tensor("linear: x", x, DType::F32, x.shape, device);
  CHECK(weights.size() == y.size(), "linear: {} weights, {} outputs", weights.size(), y.size());
  for (std::size_t j = 0; j < weights.size(); ++j) {
    check_weight("linear: weight", weights[j]);
    CHECK(weights[j].in == x.shape[1], "linear: weight {} is [{}, {}], x is {}", j, weights[j].out, weights[j].in,
          to_string(x.shape));
    check_tensor("linear: y", y[j], DType::F32, {x.shape[0], weights[j].out}, device);
    CHECK(x.shape[0] == 0 || y[j].data != x.data, "linear: y must not be x");
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
