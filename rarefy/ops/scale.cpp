// Checks and CPU version of scale: one line, not worth two files.
#include "rarefy/ops/scale.h"

#include "rarefy/base/check.h"

namespace rarefy::ops {

void scale(const TensorView& x, float factor, Stream&) {
  require_device(x.device);
  if (factor == 1) return;
  float* values = x.as<float>();
  const std::int64_t count = x.shape.elements();
#pragma omp parallel for if (count > 1 << 16)
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace rarefy::ops
