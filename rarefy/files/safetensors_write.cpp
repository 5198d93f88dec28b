// Writing of safetensors: whole or not at all.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "rarefy/base/check.h"
#include "rarefy/files/safetensors.h"

namespace rarefy::files {
namespace {

/// A file that is removed again unless `commit` renamed it to its place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target)
      : target_(target), path_(target.string() + fmt::format(".{}.tmp", getpid())) {
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) error("cannot be created");
  }
  ~TemporaryFile() {
    if (file_ >= 0) close(file_);
    if (!path_.empty()) unlink(path_.c_str());
  }
  void write(const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t n = ::write(file_, at, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) error("cannot be written");
      at += n;
      size -= static_cast<std::size_t>(n);
    }
  }
  void commit() {
    if (fsync(file_) != 0 || close(std::exchange(file_, -1)) != 0) error("cannot be synced");
    if (rename(path_.c_str(), target_.c_str()) != 0) error("cannot be renamed");
    path_.clear();
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) {
      fsync(directory);
      close(directory);
    }
  }

 private:
  [[noreturn]] void error(const char* what) const {
    fail(ErrorCode::Io, "E_FILE_WRITE", "{}: {}: {}", path_, what, std::strerror(errno));
  }
  std::filesystem::path target_;
  std::string path_;
  int file_ = -1;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                       const std::map<std::string, std::string, std::less<>>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    CHECK(!header.contains(tensor.name), "tensor '{}' stands twice", tensor.name);
    header[tensor.name] = {{"dtype", std::string(to_string(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data then begins at a multiple of 8
  const auto length = static_cast<std::uint64_t>(text.size());
  TemporaryFile file(path);
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const TensorInfo& tensor : tensors) file.write(tensor.data, static_cast<std::size_t>(tensor.bytes));
  file.commit();
}

}  // namespace rarefy::files
