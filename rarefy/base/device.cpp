// Device names, and dispatch of streams, events and copies.
#include "rarefy/base/device.h"

#include <charconv>
#include <cstring>

#include "rarefy/base/check.h"
#include "rarefy/base/cuda.h"

namespace rarefy {

Device parse_device(std::string_view text) {
  if (text == "cpu") return kCpu;
  if (text == "cuda") return {Device::Kind::Cuda, 0};
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(5);
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc{} && end == digits.data() + digits.size() && index >= 0) return {Device::Kind::Cuda, index};
  }
  fail(ErrorCode::BadInput, "E_DEVICE", "unknown device '{}': use cpu, cuda or cuda:N", text);
}

std::string to_string(Device device) {
  return device.is_cpu() ? std::string("cpu") : fmt::format("cuda:{}", device.index);
}

void require_device(Device device) {
  if (device.is_cpu()) return;
  if constexpr (kCudaBuild)
    cuda::require_device(device.index);
  else
    fail(ErrorCode::Unsupported, "E_NO_CUDA", "device '{}' was asked for, but this build has no CUDA support",
         to_string(device));
}

Stream::Stream(Device device) : device_(device) {
  require_device(device);
  if constexpr (kCudaBuild)
    if (!device.is_cpu()) handle_ = cuda::create_stream(device.index);
}

Stream::~Stream() {
  if constexpr (kCudaBuild)
    if (handle_ != nullptr) cuda::destroy_stream(handle_);
}

void Stream::synchronize() const {
  if constexpr (kCudaBuild)
    if (handle_ != nullptr) cuda::synchronize_stream(handle_);
}

Event::Event(Device device) : device_(device) {
  require_device(device);
  if constexpr (kCudaBuild)
    if (!device.is_cpu()) handle_ = cuda::create_event(device.index);
}

Event::~Event() {
  if constexpr (kCudaBuild)
    if (handle_ != nullptr) cuda::destroy_event(handle_);
}

void Event::record(const Stream& stream) {
  if constexpr (kCudaBuild)
    if (handle_ != nullptr) cuda::record_event(handle_, stream.handle());
}

void Event::wait(const Stream& stream) const {
  if constexpr (kCudaBuild)
    if (handle_ != nullptr) cuda::wait_event(handle_, stream.handle());
}

void Event::synchronize() const {
  if constexpr (kCudaBuild)
    if (handle_ != nullptr) cuda::synchronize_event(handle_);
}

float Event::elapsed_since(const Event& start) const {
  CHECK(handle_ != nullptr && start.handle_ != nullptr, "only events of a GPU measure time");
  if constexpr (kCudaBuild) return cuda::elapsed_ms(start.handle_, handle_);
  return 0;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes, Stream& stream) {
  CHECK(bytes >= 0, "copy of {} bytes", bytes);
  if (bytes == 0) return;
  if constexpr (kCudaBuild)
    if (!stream.device().is_cpu()) return cuda::copy_bytes(to, from, bytes, stream.handle());
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace rarefy
