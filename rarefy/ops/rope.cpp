// Checks and dispatch of rope_table and rope.
#include "rarefy/ops/rope.h"

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops {

void rope_table(std::span<const std::int32_t> positions, const Rope& rope, const TensorView& table, Stream& stream) {
  require_device(stream.device());
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const auto half = static_cast<std::int64_t>(rope.inv_freq.size());
  check_tensor("rope_table: table", table, DType::F32, {tokens, 2, half}, stream.device());
  if (2 * half > kMaxRopeHeadDim)
    fail(ErrorCode::Unsupported, "E_HEAD_DIM", "rope_table: rotary {} is above {}", 2 * half, kMaxRopeHeadDim);
  if constexpr (kCudaBuild)
    if (!stream.device().is_cpu()) return cuda::rope_table(positions, rope, table.as<float>(), stream);
  cpu::rope_table(positions, rope, table.as<float>());
}

void rope(const TensorView& x, const TensorView& table, RopeLayout layout, const std::int32_t* order,
          std::int64_t kv_heads, const TensorView& y, Stream& stream) {
  const Device device = stream.device();
  require_device(device);
  CHECK(x.shape.rank() == 3, "rope: x is {}, not [tokens, heads, head_dim]", to_string(x.shape));
  CHECK(table.shape.rank() == 3, "rope: table is {}, not [tokens, 2, rotary / 2]", to_string(table.shape));
  const std::int64_t tokens = x.shape[0], heads = x.shape[1], head_dim = x.shape[2], rotary = 2 * table.shape[2];
  const DType dtype = device.is_cpu() ? DType::F32 : x.dtype;
  check_tensor("rope: x", x, dtype, x.shape, device);
  check_tensor("rope: table", table, DType::F32, {tokens, 2, table.shape[2]}, device);
  check_tensor("rope: y", y, dtype, x.shape, device);
  if (head_dim > kMaxRopeHeadDim)
    fail(ErrorCode::Unsupported, "E_HEAD_DIM", "rope: head_dim {} is above {}", head_dim, kMaxRopeHeadDim);
  CHECK(rotary <= head_dim, "rope: rotary {} is above head_dim {}", rotary, head_dim);
  CHECK(kv_heads > 0 && heads % kv_heads == 0, "rope: {} heads are not a multiple of {} kv_heads", heads, kv_heads);
  CHECK(tokens == 0 || x.data != y.data, "rope: y must not be x");
  if constexpr (kCudaBuild)
    if (!device.is_cpu()) return cuda::rope(x, table, layout, order, kv_heads, y, stream);
  if (order != nullptr)
    for (std::int64_t i = 0; i < kv_heads * head_dim; ++i)
      CHECK(order[i] >= 0 && order[i] < head_dim, "rope: order[{}, {}] is {}, outside head_dim {}", i / head_dim,
            i % head_dim, order[i], head_dim);
  cpu::rope(x.as<float>(), table.as<float>(), layout, order, {tokens, heads, head_dim, rotary, heads / kv_heads},
            y.as<float>());
}

}  // namespace rarefy::ops
