// The CPU version of embedding.
#include "rarefy/ops/cpu.h"
#include "rarefy/ops/for_rows.h"
#include "rarefy/ops/unpack.h"

namespace rarefy::ops::cpu {

void embedding(const std::int32_t* tokens, std::int64_t count, const LinearWeight& table, float scale, float* y) {
  const std::int64_t stride = row_bytes(table.dtype, table.in);
  for_rows(count, [&](std::int64_t t) {
    float* row = y + t * table.in;
    unpack(table.dtype, table.data + tokens[t] * stride, table.in, row);
    if (scale != 1.0f)
      for (std::int64_t i = 0; i < table.in; ++i) row[i] *= scale;
  });
}

}  // namespace rarefy::ops::cpu
