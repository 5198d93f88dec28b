// Checks, dispatch and CPU version of scale: one line, not worth a file.
#include "rarefy/ops/scale.h"

#include "rarefy/base/check.h"
#include "rarefy/ops/cuda.h"

namespace rarefy::ops {

void scale(const TensorView& x, float factor, Stream& stream) {
  require_device(x.device);
  CHECK(x.device == stream.device(), "scale: x is on {}, the stream on {}", to_string(x.device),
        to_string(stream.device()));
  if (factor == 1) return;
  if constexpr (kCudaBuild)
    if (!x.device.is_cpu()) return cuda::scale(x, factor, stream);
  float* values = x.as<float>();
  const std::int64_t count = x.shape.elements();
#pragma omp parallel for if (count > 1 << 16)
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace rarefy::ops
