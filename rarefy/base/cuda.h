// What the CUDA build adds to base/, as plain functions that need no CUDA header.
#pragma once
#include <cstdint>

namespace rarefy::cuda {

void require_device(int index);

void* create_stream(int index);
void destroy_stream(void* stream) noexcept;
void synchronize_stream(void* stream);

void* create_event(int index);
void destroy_event(void* event) noexcept;
void record_event(void* event, void* stream);
void wait_event(void* event, void* stream);
void synchronize_event(void* event);
float elapsed_ms(void* start, void* end);

void copy_bytes(void* to, const void* from, std::int64_t bytes, void* stream);

/// Null if the device has not that much memory.
void* allocate(std::int64_t bytes, int index);
void* allocate_pinned(std::int64_t bytes);
void release(void* data) noexcept;
void release_pinned(void* data) noexcept;

struct Properties {
  int multiprocessors = 0;
  int major = 0, minor = 0;        // compute capability
  std::int64_t memory = 0;         // bytes
  std::int64_t l2 = 0;             // bytes
  std::int64_t shared_memory = 0;  // bytes of one multiprocessor
};
/// Of a device that require_device accepts.
const Properties& properties(int index);

}  // namespace rarefy::cuda
