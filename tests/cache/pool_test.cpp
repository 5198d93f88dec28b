// Pages: allocation, references, exhaustion, trimming.
#include "rarefy/cache/pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "rarefy/base/check.h"

namespace rarefy {
namespace {

TEST(Pool, AllocatesEveryPageOnceThenNothing) {
  Pool pool(5, 64, kCpu);
  std::set<PageId> pages;
  for (int i = 0; i < 5; ++i) pages.insert(*pool.allocate());
  EXPECT_EQ(pages, (std::set<PageId>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(pool.allocate());
  EXPECT_EQ(pool.used_pages(), 5);
  pool.release(3);
  EXPECT_EQ(pool.allocate(), 3);
}

TEST(Pool, APageLivesAsLongAsItsReferences) {
  Pool pool(2, 64, kCpu);
  const PageId page = *pool.allocate();
  pool.add_reference(page);
  pool.release(page);
  EXPECT_EQ(pool.used_pages(), 1);
  pool.release(page);
  EXPECT_EQ(pool.used_pages(), 0);
  EXPECT_THROW(pool.release(page), Error);
}

TEST(Pool, TrimmedMemoryCanBeUsedAgain) {
  constexpr std::int64_t kPages = 1000, kBytes = 8192;
  Pool pool(kPages, kBytes, kCpu);
  for (int i = 0; i < kPages; ++i) std::memset(pool.page(*pool.allocate()), 1, kBytes);
  for (PageId page = 1; page < kPages; ++page) pool.release(page);
  pool.trim();
  EXPECT_EQ(pool.page(0)[kBytes - 1], std::byte{1});  // a used page is not touched
  EXPECT_EQ(pool.allocate(), 1);                      // the lowest comes first
  std::memset(pool.page(1), 2, kBytes);
  EXPECT_EQ(pool.page(1)[0], std::byte{2});
}

TEST(Pool, SizesAreChecked) {
  EXPECT_THROW(Pool(std::int64_t{1} << 31, 64, kCpu), Error);
  EXPECT_THROW(Pool(-1, 64, kCpu), Error);
  EXPECT_THROW(Pool(INT32_MAX - 1, INT64_MAX / 4, kCpu), Error);
  EXPECT_FALSE(Pool(0, 64, kCpu).allocate());
}

}  // namespace
}  // namespace rarefy
