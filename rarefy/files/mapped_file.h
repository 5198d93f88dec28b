// A read-only memory-mapped file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace rarefy::files {

/// Maps the whole of a regular file for reading. An empty file gives an empty span.
/// Throws NotFound (no such file), Io (cannot be opened, read or mapped, or is not a regular file).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& name() const { return name_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::string name_;
};

}  // namespace rarefy::files
