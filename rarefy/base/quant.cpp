// Plain types of dequantize; the block formats are added with the GGUF reader.
#include "rarefy/base/quant.h"

#include "rarefy/base/check.h"

namespace rarefy {

void dequantize(DType type, const std::byte* src, std::int64_t count, float* out) {
  (void)src;
  (void)count;
  (void)out;
  fail(ErrorCode::Unsupported, "E_DTYPE", "dequantize: {} is not implemented", to_string(type));
}

}  // namespace rarefy
