// Allocation and release of buffers.
#include "rarefy/base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "rarefy/base/check.h"

namespace rarefy {

Buffer::Buffer(std::int64_t bytes, Device device) : size_(bytes), device_(device) {
  CHECK(bytes >= 0, "buffer of {} bytes", bytes);
  require_device(device);
  if (bytes == 0) return;
  // Pools of KV pages are read at random places: with 4 KiB pages of memory, translation misses cost decode attention
  // 10 to 30 % (Zen 4, virtual machine).
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const bool large = static_cast<std::uint64_t>(bytes) >= 8 * kHuge;
  const std::size_t align = large ? kHuge : 64;
  if (static_cast<std::uint64_t>(bytes) <= SIZE_MAX - align)
    data_ = static_cast<std::byte*>(
        std::aligned_alloc(align, (static_cast<std::size_t>(bytes) + align - 1) / align * align));
  if (data_ == nullptr)
    fail(ErrorCode::OutOfMemory, "E_OOM", "cannot allocate {} bytes on {}", bytes, to_string(device));
  // Only advice: where the system has no huge pages, the memory is as good.
  if (large) (void)madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
}

Buffer::~Buffer() { std::free(data_); }

}  // namespace rarefy
