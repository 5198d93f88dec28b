// Shapes and the checks on views.
#include "rarefy/base/tensor.h"

namespace rarefy {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  CHECK(dims.size() <= dims_.size(), "a shape has at most {} dimensions, got {}", dims_.size(), dims.size());
  for (const std::int64_t dim : dims) dims_[static_cast<std::size_t>(rank_++)] = dim;
}

std::int64_t Shape::elements() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= (*this)[i];
  return n;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank(); ++i) out += fmt::format("{}{}", i > 0 ? ", " : "", shape[i]);
  return out + "]";
}

void check_tensor(const char* name, const TensorView& view, DType dtype, const Shape& shape, Device device) {
  CHECK(view.dtype == dtype && view.shape == shape && view.device == device,
        "{}: expected {} {} on {}, got {} {} on {}", name, to_string(dtype), to_string(shape), to_string(device),
        to_string(view.dtype), to_string(view.shape), to_string(view.device));
  CHECK(view.data != nullptr || shape.elements() == 0, "{}: null data", name);
}

}  // namespace rarefy
