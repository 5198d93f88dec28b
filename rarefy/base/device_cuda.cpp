// Devices, streams, events, memory and copies of CUDA.
#include <array>
#include <mutex>

#include "rarefy/base/cuda.h"
#include "rarefy/base/cuda_check.h"

namespace rarefy::cuda {
namespace {

constexpr int kMaxDevices = 64;

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

Properties read_properties(int index) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver != 0)
      fail(ErrorCode::Unsupported, "E_DRIVER", "the NVIDIA driver supports CUDA {}.{}, this build needs {}.{}",
           driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  if (status != cudaSuccess || devices == 0)
    fail(ErrorCode::Unsupported, "E_NO_GPU", "no usable NVIDIA GPU: {}",
         status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  if (index >= devices || index >= kMaxDevices)
    fail(ErrorCode::Unsupported, "E_NO_GPU", "device cuda:{} was asked for, this machine shows {}", index, devices);
  cudaDeviceProp p;
  CUDA_CHECK(cudaGetDeviceProperties(&p, index));
  if (p.major < 8)
    fail(ErrorCode::Unsupported, "E_OLD_GPU", "{} has compute capability {}.{}; the kernels need 8.0 (Ampere) or later",
         p.name, p.major, p.minor);
  return {p.multiProcessorCount,
          p.major,
          p.minor,
          static_cast<std::int64_t>(p.totalGlobalMem),
          p.l2CacheSize,
          static_cast<std::int64_t>(p.sharedMemPerMultiprocessor)};
}

}  // namespace

const Properties& properties(int index) {
  static std::array<Properties, kMaxDevices> known;
  static std::array<bool, kMaxDevices> have{};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto i = static_cast<std::size_t>(index);
  if (i >= known.size() || !have[i]) {
    const Properties read = read_properties(index);  // throws for an index out of range
    known[i] = read;
    have[i] = true;
  }
  return known[i];
}

void require_device(int index) { (void)properties(index); }

void* create_stream(int index) {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaSetDevice(index));
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
void destroy_stream(void* stream) noexcept { (void)cudaStreamDestroy(stream_of(stream)); }
void synchronize_stream(void* stream) { CUDA_CHECK(cudaStreamSynchronize(stream_of(stream))); }

void* create_event(int index) {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaSetDevice(index));
  CUDA_CHECK(cudaEventCreate(&event));
  return event;
}
void destroy_event(void* event) noexcept { (void)cudaEventDestroy(event_of(event)); }
void record_event(void* event, void* stream) { CUDA_CHECK(cudaEventRecord(event_of(event), stream_of(stream))); }
void wait_event(void* event, void* stream) { CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0)); }
void synchronize_event(void* event) { CUDA_CHECK(cudaEventSynchronize(event_of(event))); }
float elapsed_ms(void* start, void* end) {
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, event_of(start), event_of(end)));
  return ms;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes, void* stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
}

void* allocate(std::int64_t bytes, int index) {
  void* data = nullptr;
  CUDA_CHECK(cudaSetDevice(index));
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  CUDA_CHECK(status);
  return data;
}
void* allocate_pinned(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  CUDA_CHECK(status);
  return data;
}
void release(void* data) noexcept { (void)cudaFree(data); }
void release_pinned(void* data) noexcept { (void)cudaFreeHost(data); }

}  // namespace rarefy::cuda
