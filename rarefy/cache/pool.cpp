// Allocation, release and trimming of pages.
#include "rarefy/cache/pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "rarefy/base/check.h"

namespace rarefy {
namespace {

#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kPoison = true;
#else
constexpr bool kPoison = false;
#endif

std::int64_t checked_bytes(std::int64_t pages, std::int64_t page_bytes) {
  CHECK(pages >= 0 && pages < INT32_MAX, "a pool of {} pages, must be below {}", pages, INT32_MAX);
  std::uint64_t bytes = 0;
  CHECK(checked_mul(static_cast<std::uint64_t>(pages), static_cast<std::uint64_t>(page_bytes), bytes) &&
            bytes <= INT64_MAX,
        "a pool of {} pages of {} bytes", pages, page_bytes);
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

Pool::Pool(std::int64_t pages, std::int64_t page_bytes, Device device)
    : buffer_(checked_bytes(pages, page_bytes), device),
      page_bytes_(page_bytes),
      references_(static_cast<std::size_t>(pages)) {}

std::optional<PageId> Pool::allocate() {
  PageId page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (fresh_ < size()) {
    page = static_cast<PageId>(fresh_++);
  } else {
    return std::nullopt;
  }
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void Pool::release(PageId page) {
  int& count = references_[static_cast<std::size_t>(page)];
  CHECK(count > 0, "page {} is released twice", page);
  if (--count > 0) return;
  if (kPoison) std::memset(this->page(page), 0xff, static_cast<std::size_t>(page_bytes_));
  free_.push_back(page);
}

void Pool::trim() {
  constexpr std::int64_t kRun = 1 << 20;                    // bytes: shorter runs are not worth a system call
  std::sort(free_.begin(), free_.end(), std::greater<>());  // the lowest page is reused first
  const std::int64_t system_page = sysconf(_SC_PAGESIZE);
  for (std::size_t i = 0; i < free_.size();) {
    std::size_t end = i + 1;
    while (end < free_.size() && free_[end] == free_[end - 1] - 1) ++end;
    auto begin = reinterpret_cast<std::intptr_t>(page(free_[end - 1]));
    auto stop = reinterpret_cast<std::intptr_t>(page(free_[i])) + page_bytes_;
    begin = (begin + system_page - 1) / system_page * system_page;
    stop = stop / system_page * system_page;
    // Advice only: if the system refuses, the memory simply stays.
    if (stop - begin >= kRun)
      (void)madvise(reinterpret_cast<void*>(begin), static_cast<std::size_t>(stop - begin), MADV_DONTNEED);
    i = end;
  }
}

}  // namespace rarefy
