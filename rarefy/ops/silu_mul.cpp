// Checks and dispatch of silu_mul.
#include "rarefy/ops/silu_mul.h"

#include "rarefy/ops/cpu.h"

namespace rarefy::ops {

void silu_mul(const TensorView& gate, const TensorView& up, const TensorView& y, Stream& stream) {
  const Device device = stream.device();
  require_device(device);
  CHECK(gate.shape.rank() == 2, "silu_mul: gate is {}, not [rows, dim]", to_string(gate.shape));
  check_tensor("silu_mul: gate", gate, DType::F32, gate.shape, device);
  check_tensor("silu_mul: up", up, DType::F32, gate.shape, device);
  check_tensor("silu_mul: y", y, DType::F32, gate.shape, device);
  cpu::silu_mul(gate.as<float>(), up.as<float>(), gate.shape[0], gate.shape[1], y.as<float>());
}

}  // namespace rarefy::ops
