// Mapping of files.
#include "rarefy/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "rarefy/base/check.h"

namespace rarefy::files {

MappedFile::MappedFile(const std::filesystem::path& path) : name_(path.string()) {
  // Not blocking: a pipe would make us wait for its writer before we can refuse it.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    fail(missing ? ErrorCode::NotFound : ErrorCode::Io, missing ? "E_FILE_MISSING" : "E_FILE_OPEN", "{}: {}", name_,
         std::strerror(errno));
  }
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    close(file);
    fail(ErrorCode::Io, "E_FILE_KIND", "{}: is not a regular file", name_);
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* data = size_ == 0 ? nullptr : mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (data == MAP_FAILED)
    fail(ErrorCode::Io, "E_FILE_MAP", "{}: cannot map {} bytes: {}", name_, size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), name_(std::move(other.name_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(name_, other.name_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace rarefy::files
