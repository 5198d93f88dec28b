// Scratch memory that an operation needs beside its outputs: owned by the caller, grown outside the hot path.
#pragma once
#include <cstdint>

#include "rarefy/base/buffer.h"

namespace rarefy {

/// A buffer that only grows. Its contents are undefined at every `reserve`; one operation uses it at a time.
class Workspace {
 public:
  explicit Workspace(Device device = kCpu) : device_(device) {}

  /// At least `bytes` bytes, aligned to 64. Invalidates earlier pointers if it has to grow.
  std::byte* reserve(std::int64_t bytes) {
    if (bytes > buffer_.size()) buffer_ = Buffer(bytes, device_);
    return buffer_.data();
  }
  template <typename T>
  T* reserve_as(std::int64_t count) {
    return reinterpret_cast<T*>(reserve(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  Device device_;
  Buffer buffer_;
};

}  // namespace rarefy
