// Timing on a GPU with events, and its read bandwidth.
#include "bench/gpu.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rarefy/base/buffer.h"
#include "rarefy/base/cuda_check.h"

namespace rarefy::bench {
namespace {

__global__ void read_kernel(const uint4* data, std::int64_t count, unsigned* sink) {
  unsigned sum = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
  }
  if (sum == 0x12345678u) *sink = sum;  // keeps the loads
}

}  // namespace

Timing time_gpu(Stream& stream, const std::function<void()>& run, int samples, int calls) {
  for (int i = 0; i < 2; ++i) run();
  stream.synchronize();
  std::vector<double> times;
  Event start(stream.device()), end(stream.device());
  for (int sample = 0; sample < samples; ++sample) {
    start.record(stream);
    for (int i = 0; i < calls; ++i) run();
    end.record(stream);
    end.synchronize();
    times.push_back(end.elapsed_since(start) / 1e3 / calls);
  }
  std::sort(times.begin(), times.end());
  const std::size_t last = times.size() - 1;
  return {times[last / 2], times[last / 10], times[last - last / 10]};
}

double gpu_read_bandwidth(Stream& stream) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  const Buffer buffer(kBytes, stream.device()), sink(4, stream.device());
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0x5a, kBytes, handle));
  const Timing t = time_gpu(stream, [&] {
    read_kernel<<<132 * 16, 256, 0, handle>>>(buffer.as<uint4>(), kBytes / 16, sink.as<unsigned>());
    CUDA_CHECK_LAUNCH("read_kernel");
  });
  return static_cast<double>(kBytes) / t.median_s;
}

}  // namespace rarefy::bench
