// Rounding of rows as GGUF's blocks would hold them.
#include "rarefy/cache/simulated.h"

#include <algorithm>
#include <cmath>

#include "rarefy/base/dtype.h"

namespace rarefy {
namespace {

constexpr int kGroup = 32;

float in_half(float x) { return to_float(from_float<Half>(x)); }

/// values = scale * integer + offset, integers in [low, high].
void round_group(float* values, float scale, float offset, float low, float high) {
  for (int i = 0; i < kGroup; ++i) {
    const float integer = scale > 0 ? std::clamp(std::nearbyint((values[i] - offset) / scale), low, high) : 0;
    values[i] = scale * integer + offset;
  }
}

}  // namespace

void round_as(SimulatedCache type, float* values, int count) {
  for (float* group = values; group < values + count && type != SimulatedCache::None; group += kGroup) {
    const auto [least, most] = std::minmax_element(group, group + kGroup);
    if (type == SimulatedCache::Q8_0)
      round_group(group, in_half(std::max(std::fabs(*least), std::fabs(*most)) / 127), 0, -127, 127);
    else
      round_group(group, in_half((*most - *least) / 15), in_half(*least), 0, 15);
  }
}

}  // namespace rarefy
