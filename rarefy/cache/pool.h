// A pool: fixed-size pages in one allocation, a free list, and reference counts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "rarefy/base/buffer.h"

namespace rarefy {

using PageId = std::int32_t;  // 0-based; block maps hold it 1-based and signed

/// Pages of one kind. The memory is touched page by page as pages are first used. Freed pages are poisoned with NaN in
/// debug and sanitizer builds, so that a read after free shows.
class Pool {
 public:
  /// Throws BadInput (more than 2^31 - 1 pages), OutOfMemory.
  Pool(std::int64_t pages, std::int64_t page_bytes, Device device);

  std::optional<PageId> allocate();  ///< with one reference; nullopt: no page is free
  void add_reference(PageId page) { ++references_[static_cast<std::size_t>(page)]; }
  void release(PageId page);  ///< drops a reference; the last one frees the page
  int references(PageId page) const { return references_[static_cast<std::size_t>(page)]; }

  /// Gives the memory behind long runs of free pages back to the system.
  void trim();

  std::byte* page(PageId page) const { return buffer_.data() + static_cast<std::int64_t>(page) * page_bytes_; }
  std::byte* data() const { return buffer_.data(); }
  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t size() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()) + size() - fresh_; }
  std::int64_t used_pages() const { return size() - free_pages(); }

 private:
  Buffer buffer_;
  std::int64_t page_bytes_;
  std::vector<int> references_;
  std::vector<PageId> free_;  // used before; last freed is first reused
  std::int64_t fresh_ = 0;    // pages below were used at least once
};

}  // namespace rarefy
