// Checks and dispatch of embedding.
#include "rarefy/ops/embedding.h"

#include "rarefy/ops/cpu.h"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops {

void embedding(const std::int32_t* tokens, std::int64_t count, const LinearWeight& table, float scale,
               const TensorView& y, Stream& stream) {
  require_device(stream.device());
  check_tensor("embedding: y", y, DType::F32, {count, table.in}, stream.device());
  check_weight("embedding: table", table);
  if constexpr (kCudaBuild)
    if (!stream.device().is_cpu()) return cuda::embedding(tokens, table, scale, y, stream);
  for (std::int64_t t = 0; t < count; ++t)
    CHECK(tokens[t] >= 0 && tokens[t] < table.out, "embedding: token {} at index {} is outside the vocabulary of {}",
          tokens[t], t, table.out);
  cpu::embedding(tokens, count, table, scale, y.as<float>());
}

}  // namespace rarefy::ops
