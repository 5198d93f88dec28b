// Allocation and release of buffers.
#include "rarefy/base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "rarefy/base/check.h"
#include "rarefy/base/cuda.h"

namespace rarefy {
namespace {

std::byte* allocate_host(std::int64_t bytes) {
  // Pools of KV pages are read at random places: with 4 KiB pages of memory, translation misses cost decode attention
  // 10 to 30 % (Zen 4, virtual machine).
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const bool large = static_cast<std::uint64_t>(bytes) >= 8 * kHuge;
  const std::size_t align = large ? kHuge : 64;
  if (static_cast<std::uint64_t>(bytes) > SIZE_MAX - align) return nullptr;
  void* data = std::aligned_alloc(align, (static_cast<std::size_t>(bytes) + align - 1) / align * align);
  // Only advice: where the system has no huge pages, the memory is as good.
  if (large && data != nullptr) (void)madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

[[noreturn]] void fail_memory(std::int64_t bytes, const std::string& where) {
  fail(ErrorCode::OutOfMemory, "E_OOM", "cannot allocate {} bytes on {}", bytes, where);
}

}  // namespace

Buffer::Buffer(std::int64_t bytes, Device device) : size_(bytes), device_(device) {
  CHECK(bytes >= 0, "buffer of {} bytes", bytes);
  require_device(device);
  if (bytes == 0) return;
  if (device.is_cpu())
    data_ = allocate_host(bytes);
  else if constexpr (kCudaBuild)
    data_ = static_cast<std::byte*>(cuda::allocate(bytes, device.index));
  if (data_ == nullptr) fail_memory(bytes, to_string(device));
}

Buffer Buffer::pinned(std::int64_t bytes, Device device) {
  CHECK(bytes >= 0, "buffer of {} bytes", bytes);
  require_device(device);
  if (device.is_cpu()) return Buffer(bytes);
  Buffer out;
  out.size_ = bytes;
  out.pinned_ = true;
  if constexpr (kCudaBuild)
    if (bytes > 0) out.data_ = static_cast<std::byte*>(cuda::allocate_pinned(bytes));
  if (out.data_ == nullptr && bytes > 0) fail_memory(bytes, "the host, pinned");
  return out;
}

Buffer::~Buffer() {
  if constexpr (kCudaBuild) {
    if (pinned_ || !device_.is_cpu()) {
      if (data_ != nullptr) pinned_ ? cuda::release_pinned(data_) : cuda::release(data_);
      return;
    }
  }
  std::free(data_);
}

}  // namespace rarefy
