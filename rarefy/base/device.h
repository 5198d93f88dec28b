// Where data lives and work runs: devices, streams and events. On the CPU a stream is the calling thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace rarefy {

/// Whether this build has the CUDA code. Dispatchers call it under `if constexpr`, so that a build without CUDA needs
/// no definition of it.
#ifdef RAREFY_CUDA
inline constexpr bool kCudaBuild = true;
#else
inline constexpr bool kCudaBuild = false;
#endif

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

/// Throws Unsupported if this build or this machine cannot run on `device` (no CUDA build, no GPU, driver too old, no
/// such index, a GPU older than Ampere).
void require_device(Device device);

/// An ordered queue of work on one device. CPU work is done when the call that asks for it returns.
class Stream {
 public:
  explicit Stream(Device device = kCpu);
  Stream(Stream&& other) noexcept { swap(other); }
  Stream& operator=(Stream&& other) noexcept {
    swap(other);
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  Device device() const { return device_; }
  void* handle() const { return handle_; }  ///< cudaStream_t; null on the CPU
  /// Waits until all work queued so far is done. Throws Cuda if some of it failed.
  void synchronize() const;

 private:
  void swap(Stream& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
  }
  Device device_;
  void* handle_ = nullptr;
};

/// A point in a stream that another stream can wait for. On the CPU it has always happened.
class Event {
 public:
  explicit Event(Device device = kCpu);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  void record(const Stream& stream);
  void wait(const Stream& stream) const;  ///< work queued in `stream` from now on runs after the point
  void synchronize() const;               ///< the calling thread waits for the point
  /// Milliseconds of device time from `start`; both must have happened. CUDA only.
  float elapsed_since(const Event& start) const;

 private:
  Device device_;
  void* handle_ = nullptr;  // cudaEvent_t
};

/// Copies `bytes` between memory of the CPU and of `stream`'s device, in either direction or inside one, in the order
/// of the stream. Host memory that is not pinned is read or written before the call returns.
void copy_bytes(void* to, const void* from, std::int64_t bytes, Stream& stream);

}  // namespace rarefy
