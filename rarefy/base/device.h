// Where data lives and work runs: devices, streams and events. On the CPU a stream is the calling thread.
#pragma once
#include <string>
#include <string_view>

namespace rarefy {

struct Device {
  enum class Kind { Cpu, Cuda } kind = Kind::Cpu;
  int index = 0;

  bool is_cpu() const { return kind == Kind::Cpu; }
  bool operator==(const Device&) const = default;
};

inline constexpr Device kCpu{};

/// Parses "cpu", "cuda" or "cuda:N"; throws BadInput on anything else.
Device parse_device(std::string_view text);
std::string to_string(Device device);

/// Throws Unsupported if this build or this machine cannot run on `device`.
void require_device(Device device);

/// An ordered queue of work on one device. CPU work is done when the call that asks for it returns.
class Stream {
 public:
  explicit Stream(Device device = kCpu);
  Device device() const { return device_; }
  /// Waits until all work queued so far is done.
  void synchronize() const;

 private:
  Device device_;
};

/// A point in a stream that another stream can wait for. On the CPU it has always happened.
class Event {
 public:
  explicit Event(Device device = kCpu);
  void record(const Stream& stream);
  void wait(const Stream& stream) const;
};

}  // namespace rarefy
