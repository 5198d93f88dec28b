// Device names, and streams and events of the CPU.
#include "rarefy/base/device.h"

#include <charconv>

#include "rarefy/base/check.h"

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
  if (!device.is_cpu())
    fail(ErrorCode::Unsupported, "E_NO_CUDA", "device '{}' was asked for, but this build has no CUDA support",
         to_string(device));
}

Stream::Stream(Device device) : device_(device) { require_device(device); }
void Stream::synchronize() const {}

Event::Event(Device device) { require_device(device); }
void Event::record(const Stream&) {}
void Event::wait(const Stream&) const {}

}  // namespace rarefy
