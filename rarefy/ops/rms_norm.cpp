// Checks and dispatch of rms_norm.
#include "rarefy/ops/rms_norm.h"

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops {

void rms_norm(const TensorView& x, const TensorView& weight, float eps, const TensorView& y, Stream& stream) {
  const Device device = stream.device();
  require_device(device);
  CHECK(x.shape.rank() == 2, "rms_norm: x is {}, not [rows, dim]", to_string(x.shape));
  check_tensor("rms_norm: x", x, device.is_cpu() ? DType::F32 : x.dtype, x.shape, device);
  check_tensor("rms_norm: weight", weight, DType::F32, {x.shape[1]}, device);
  check_tensor("rms_norm: y", y, device.is_cpu() ? DType::F32 : y.dtype, x.shape, device);
  if constexpr (kCudaBuild)
    if (!device.is_cpu()) return cuda::rms_norm(x, weight.as<float>(), eps, y, stream);
  cpu::rms_norm(x.as<float>(), weight.as<float>(), x.shape[0], x.shape[1], eps, y.as<float>());
}

}  // namespace rarefy::ops
