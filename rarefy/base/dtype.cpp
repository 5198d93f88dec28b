// Names of element types.
#include "rarefy/base/dtype.h"

namespace rarefy {

std::string_view to_string(DType type) {
  switch (type) {
    case DType::F32:
      return "F32";
    case DType::F16:
      return "F16";
    case DType::BF16:
      return "BF16";
    case DType::I32:
      return "I32";
    case DType::Q8_0:
      return "Q8_0";
    case DType::Q4_0:
      return "Q4_0";
    case DType::Q4_1:
      return "Q4_1";
    case DType::Q5_0:
      return "Q5_0";
    case DType::Q5_1:
      return "Q5_1";
    case DType::Q4_K:
      return "Q4_K";
    case DType::Q5_K:
      return "Q5_K";
    case DType::Q6_K:
      return "Q6_K";
  }
  return "?";
}

}  // namespace rarefy
