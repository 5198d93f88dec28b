// Merging of partials by their log-sum-exp.
#include "rarefy/attention/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rarefy::attention {

void merge(const Partials& partials, int head_dim, float* o, float* lse) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float max = kNone;
  for (int i = 0; i < partials.parts; ++i) {
    const float part = partials.lse[i * partials.lse_stride];
    if (!(part <= max)) max = part;  // a NaN stays: it must reach the output
  }
  std::fill(o, o + head_dim, 0.0f);
  if (lse != nullptr) *lse = max;
  if (max == kNone) return;
  float sum = 0;
  for (int i = 0; i < partials.parts; ++i) sum += std::exp(partials.lse[i * partials.lse_stride] - max);
  for (int i = 0; i < partials.parts; ++i) {
    const float part = partials.lse[i * partials.lse_stride];
    if (part == kNone) continue;
    const float weight = std::exp(part - max) / sum;
    const float* from = partials.o + i * partials.o_stride;
    for (int c = 0; c < head_dim; ++c) o[c] += weight * from[c];
  }
  if (lse != nullptr) *lse = max + std::log(sum);
}

}  // namespace rarefy::attention
