// Allocation and release of buffers.
#include "rarefy/base/buffer.h"

#include <cstdlib>
#include <new>

#include "rarefy/base/check.h"

namespace rarefy {

Buffer::Buffer(std::int64_t bytes, Device device) : size_(bytes), device_(device) {
  CHECK(bytes >= 0, "buffer of {} bytes", bytes);
  require_device(device);
  if (bytes == 0) return;
  constexpr std::size_t kAlign = 64;
  if (static_cast<std::uint64_t>(bytes) <= SIZE_MAX - kAlign)
    data_ = static_cast<std::byte*>(
        std::aligned_alloc(kAlign, (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign));
  if (data_ == nullptr)
    fail(ErrorCode::OutOfMemory, "E_OOM", "cannot allocate {} bytes on {}", bytes, to_string(device));
}

Buffer::~Buffer() { std::free(data_); }

}  // namespace rarefy
