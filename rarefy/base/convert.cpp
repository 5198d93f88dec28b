// Conversion of rows between float32, fp16 and bf16.
#include "rarefy/base/convert.h"

namespace rarefy {
namespace {
template <typename Out, typename In>
void convert_row(const In* in, std::int64_t count, Out* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = from_float<Out>(to_float(in[i]));
}
}  // namespace

void convert(const float* in, std::int64_t count, Half* out) { convert_row(in, count, out); }
void convert(const float* in, std::int64_t count, BFloat16* out) { convert_row(in, count, out); }
void convert(const Half* in, std::int64_t count, float* out) { convert_row(in, count, out); }
void convert(const BFloat16* in, std::int64_t count, float* out) { convert_row(in, count, out); }

}  // namespace rarefy
