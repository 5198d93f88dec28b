// Reader of GGUF files, versions 2 and 3, little-endian: typed metadata and tensors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rarefy/files/mapped_file.h"
#include "rarefy/files/tensor_info.h"

namespace rarefy::files {

/// One metadata value. Integers of any width become int64 (or uint64 if above INT64_MAX), floats become double.
using GgufValue = std::variant<std::int64_t, std::uint64_t, double, bool, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

/// A parsed GGUF file. Everything is validated before anything is allocated for it: counts against the bytes left,
/// offsets and sizes with checked arithmetic, tensors inside the file, aligned and without overlap. Throws NotFound,
/// Io, BadFile (ids E_GGUF_*; the message names file, field and byte offset or tensor).
class Gguf {
 public:
  explicit Gguf(const std::filesystem::path& path);

  const std::string& name() const { return file_.name(); }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view tensor) const;  ///< null if absent

  /// Typed access: nullopt or null if the key is absent; throws BadFile naming key and found type if it is of another
  /// type.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  ///< integers are accepted
  std::optional<bool> boolean(std::string_view key) const;
  const std::string* string(std::string_view key) const;
  const std::vector<std::string>* strings(std::string_view key) const;
  const std::vector<std::int64_t>* integers(std::string_view key) const;
  const std::vector<double>* numbers(std::string_view key) const;

 private:
  MappedFile file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace rarefy::files
