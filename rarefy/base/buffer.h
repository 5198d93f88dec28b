// Owned, aligned memory on a device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "rarefy/base/device.h"

namespace rarefy {

/// `bytes` of memory on `device`, aligned to 64 bytes, uninitialised, on the CPU page-wise untouched until first
/// written. Zero bytes give a null pointer. Throws OutOfMemory naming the size.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t bytes, Device device = kCpu);
  /// Host memory that `device` (CUDA) reads and writes directly: copies to and from it do not hold the caller up.
  static Buffer pinned(std::int64_t bytes, Device device);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  Device device() const { return device_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    std::swap(pinned_, other.pinned_);
  }
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  Device device_;
  bool pinned_ = false;
};

}  // namespace rarefy
