// A view of a dense array: pointer, element type, shape, device. Owns nothing.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "rarefy/base/check.h"
#include "rarefy/base/device.h"
#include "rarefy/base/dtype.h"

namespace rarefy {

/// Up to four dimensions, row-major, contiguous; unused trailing dimensions are absent.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t elements() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, 4> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::F32;
  Shape shape;
  Device device;

  /// Typed pointer; throws BadInput if `T` is not the element type.
  template <typename T>
  T* as() const {
    CHECK(dtype == dtype_of<T>, "tensor is {}, {} was asked for", to_string(dtype), to_string(dtype_of<T>));
    return reinterpret_cast<T*>(data);
  }
};

template <typename T>
TensorView make_view(T* data, Shape shape, Device device = kCpu) {
  return {reinterpret_cast<std::byte*>(data), dtype_of<T>, shape, device};
}

/// Throws BadInput naming `name` unless the view has this dtype, shape and device.
void check_tensor(const char* name, const TensorView& view, DType dtype, const Shape& shape, Device device);

}  // namespace rarefy
