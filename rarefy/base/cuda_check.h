// Checks of CUDA calls and launches. Only for files of the CUDA build.
#pragma once
#include <cuda_runtime_api.h>

#include "rarefy/base/check.h"

namespace rarefy {

/// Throws OutOfMemory or Cuda, naming the call, unless `status` is success.
inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // an error of a launch stays until it is read, and would be reported by the next call too
  fail(status == cudaErrorMemoryAllocation ? ErrorCode::OutOfMemory : ErrorCode::Cuda,
       status == cudaErrorMemoryAllocation ? "E_OOM" : "E_CUDA", "{}: {} ({}:{})", call, cudaGetErrorString(status),
       file, line);
}

}  // namespace rarefy

#define CUDA_CHECK(call) ::rarefy::check_cuda((call), #call, __FILE__, __LINE__)
/// After a launch: reports a bad configuration at once.
#define CUDA_CHECK_LAUNCH(kernel) ::rarefy::check_cuda(cudaGetLastError(), "launch of " kernel, __FILE__, __LINE__)
