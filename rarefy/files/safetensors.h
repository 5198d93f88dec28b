// Reader and writer of safetensors files, and of Hugging Face folders of one or several of them.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rarefy/files/mapped_file.h"
#include "rarefy/files/tensor_info.h"

namespace rarefy::files {

/// One parsed safetensors file (F32, F16, BF16, I32 tensors; others are an error that names tensor and dtype).
/// Throws NotFound, Io, BadFile (ids E_ST_*).
class Safetensors {
 public:
  explicit Safetensors(const std::filesystem::path& path);

  const std::string& name() const { return file_.name(); }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view tensor) const;  ///< null if absent

 private:
  MappedFile file_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

/// All tensors of a model folder: `model.safetensors.index.json` with the shards it names, else `model.safetensors`.
/// Every shard named must exist inside the folder (the error names the missing ones: the download may be incomplete; a
/// path that leaves the folder is E_PATH_ESCAPE); files that the index does not name are ignored.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const std::vector<Safetensors>& shards() const { return shards_; }
  const TensorInfo* find(std::string_view tensor) const;  ///< null if absent

 private:
  std::vector<Safetensors> shards_;
};

/// Writes `tensors` and `metadata` to `path`: to a temporary file beside it, synced, then renamed. Same input, same
/// bytes. Throws Io; the old file, if any, stays intact and the temporary one is removed.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                       const std::map<std::string, std::string, std::less<>>& metadata);

}  // namespace rarefy::files
