// Checks and dispatch of silu_mul.
#include "rarefy/ops/silu_mul.h"

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops {

void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& y, Stream& stream) {
  const Device device = stream.device();
  require_device(device);
  CHECK(gate.shape.rank() == 2, "silu_mul: gate is {}, not [rows, dim]", to_string(gate.shape));
  const DType dtype = device.is_cpu() ? DType::F32 : gate.dtype;
  check_tensor("silu_mul: gate", gate, dtype, gate.shape, device);
  check_tensor("silu_mul: up", up, dtype, gate.shape, device);
  check_tensor("silu_mul: y", y, dtype, gate.shape, device);
  if constexpr (kCudaBuild)
    if (!device.is_cpu()) return cuda::silu_mul(gate, up, y, stream);
  cpu::silu_mul(gate.as<float>(), up.as<float>(), gate.shape[0], gate.shape[1], y.as<float>());
}

}  // namespace rarefy::ops
