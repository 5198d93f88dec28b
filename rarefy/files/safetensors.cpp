// Parsing of safetensors headers while they stream by, and folders of shards.
#include "rarefy/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "rarefy/base/check.h"
#include "rarefy/base/quant.h"
#include "rarefy/files/json.h"

namespace rarefy::files {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::ptrdiff_t kMaxCommas = 1 << 19;  // some 65,000 tensors: bounds the memory of the parsed header

struct DtypeName {
  std::string_view name;
  DType type;
};
constexpr DtypeName kDtypes[] = {{"F32", DType::F32}, {"F16", DType::F16}, {"BF16", DType::BF16}, {"I32", DType::I32}};

std::uint64_t offset_value(const nlohmann::json& value, const std::string& file, const std::string& tensor) {
  if (!value.is_number_unsigned())
    fail(ErrorCode::BadFile, "E_ST_OFFSET", "{}: tensor '{}': data_offsets must be whole numbers that are not negative",
         file, tensor);
  return value.get<std::uint64_t>();
}

TensorInfo read_tensor(const std::string& file, const std::string& name, const nlohmann::json& value,
                       std::span<const std::byte> data, std::uint64_t& begin) {
  const JsonObject entry(value, fmt::format("{}: tensor '{}'", file, name));
  TensorInfo tensor;
  tensor.name = name;
  const std::string dtype = entry.string("dtype");
  const auto* known =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& d) { return d.name == dtype; });
  if (known == std::end(kDtypes))
    fail(ErrorCode::BadFile, "E_ST_DTYPE", "{}: tensor '{}' is {} (supported: F32, F16, BF16, I32)", file, name, dtype);
  tensor.dtype = known->type;
  std::uint64_t bytes = static_cast<std::uint64_t>(block_size(tensor.dtype).bytes);
  for (const auto& dim : entry.array("shape")) {
    if (!dim.is_number_unsigned())
      fail(ErrorCode::BadFile, "E_ST_SIZE", "{}: tensor '{}': a dimension is not a whole number", file, name);
    if (!checked_mul(bytes, dim.get<std::uint64_t>(), bytes) || bytes > INT64_MAX ||
        dim.get<std::uint64_t>() > INT64_MAX)
      fail(ErrorCode::BadFile, "E_ST_OVERFLOW", "{}: tensor '{}': its size overflows", file, name);
    tensor.shape.push_back(dim.get<std::int64_t>());
  }
  const auto& offsets = entry.array("data_offsets");
  if (offsets.size() != 2)
    fail(ErrorCode::BadFile, "E_ST_OFFSET", "{}: tensor '{}': {} data_offsets", file, name, offsets.size());
  begin = offset_value(offsets[0], file, name);
  const std::uint64_t end = offset_value(offsets[1], file, name);
  if (begin > end)
    fail(ErrorCode::BadFile, "E_ST_OFFSET", "{}: tensor '{}': begins at {}, ends at {}", file, name, begin, end);
  if (end > data.size())
    fail(ErrorCode::BadFile, "E_ST_TRUNC", "{}: tensor '{}' ends at byte {} of {} data bytes", file, name, end,
         data.size());
  if (end - begin != bytes)
    fail(ErrorCode::BadFile, "E_ST_SIZE", "{}: tensor '{}': its shape needs {} bytes, its offsets hold {}", file, name,
         bytes, end - begin);
  tensor.data = data.data() + begin;
  tensor.bytes = static_cast<std::int64_t>(bytes);
  return tensor;
}

}  // namespace

Safetensors::Safetensors(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < 8)
    fail(ErrorCode::BadFile, "E_ST_SHORT", "{}: {} bytes, a header length takes 8", name(), bytes.size());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxHeader)
    fail(ErrorCode::BadFile, "E_ST_HEADER_BIG", "{}: a header of {} bytes, at most {}", name(), length, kMaxHeader);
  if (length > bytes.size() - 8)
    fail(ErrorCode::BadFile, "E_ST_HEADER_RANGE", "{}: a header of {} bytes in a file of {}", name(), length,
         bytes.size());
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<std::size_t>(length));
  const std::span<const std::byte> data = bytes.subspan(8 + static_cast<std::size_t>(length));

  const auto commas = std::count(header.begin(), header.end(), ',');
  if (commas > kMaxCommas)
    fail(ErrorCode::BadFile, "E_ST_COUNT", "{}: the header lists more than {} values", name(), kMaxCommas);
  const nlohmann::json root = parse_json(header, name());
  if (!root.is_object()) fail(ErrorCode::BadFile, "E_ST_JSON", "{}: the header is not an object", name());
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (const auto& [key, value] : root.items()) {
    if (key == "__metadata__") {
      const JsonObject pairs(value, name() + ": __metadata__");
      for (const auto& [k, v] : value.items()) metadata_.emplace(k, pairs.string(k));
      continue;
    }
    std::uint64_t begin = 0;
    tensors_.push_back(read_tensor(name(), key, value, data, begin));
    index_.emplace(key, tensors_.size() - 1);
    order.emplace_back(begin, tensors_.size() - 1);
  }
  // Tensors must cover the data without gap or overlap. Empty ones may stand anywhere inside.
  std::sort(order.begin(), order.end());
  std::uint64_t covered = 0;
  for (const auto& [begin, i] : order) {
    const TensorInfo& tensor = tensors_[i];
    if (tensor.bytes == 0) continue;
    if (begin < covered)
      fail(ErrorCode::BadFile, "E_ST_OVERLAP", "{}: tensor '{}' overlaps another at byte {}", name(), tensor.name,
           begin);
    if (begin > covered)
      fail(ErrorCode::BadFile, "E_ST_HOLE", "{}: no tensor covers bytes {} to {}", name(), covered, begin);
    covered = begin + static_cast<std::uint64_t>(tensor.bytes);
  }
  if (covered != data.size())
    fail(ErrorCode::BadFile, "E_ST_HOLE", "{}: no tensor covers bytes {} to {}", name(), covered, data.size());
}

const TensorInfo* Safetensors::find(std::string_view tensor) const {
  const auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

namespace {

/// Files of the folder that hold the model.
std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path index = folder / "model.safetensors.index.json";
  std::vector<fs::path> paths;
  if (!fs::exists(index)) {
    if (fs::exists(folder / "model.safetensors")) return {folder / "model.safetensors"};
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    if (paths.size() != 1)
      fail(ErrorCode::NotFound, "E_ST_MISSING_SHARD", "{}: no model.safetensors, no index, and {} other *.safetensors",
           folder.string(), paths.size());
    return paths;
  }
  const nlohmann::json root = read_json(index);
  const JsonObject object(root, index.string());
  const JsonObject map = object.object("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, value] : map.value().items()) names.insert(map.string(tensor));
  std::string missing;
  const fs::path home = fs::canonical(folder);
  for (const std::string& name : names) {
    const fs::path path = folder / name;
    if (fs::path(name).filename() != fs::path(name))
      fail(ErrorCode::BadFile, "E_PATH_ESCAPE", "{}: shard '{}' is not a plain file name", index.string(), name);
    if (!fs::exists(path)) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
      continue;
    }
    // A link may lead to the folder's own files or, in Hugging Face's cache, to the blobs beside its snapshots; no
    // further.
    const fs::path real = fs::canonical(path);
    if (real.parent_path() != home && real.parent_path() != home.parent_path().parent_path() / "blobs")
      fail(ErrorCode::BadFile, "E_PATH_ESCAPE", "{}: shard '{}' is a link out of the folder", index.string(), name);
    paths.push_back(path);
  }
  if (!missing.empty())
    fail(ErrorCode::NotFound, "E_ST_MISSING_SHARD", "{}: shards are missing: {} (is the download complete?)",
         folder.string(), missing);
  return paths;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  for (const std::filesystem::path& path : shard_paths(folder)) shards_.emplace_back(path);
}

const TensorInfo* SafetensorsFolder::find(std::string_view tensor) const {
  for (const Safetensors& shard : shards_)
    if (const TensorInfo* found = shard.find(tensor)) return found;
  return nullptr;
}

}  // namespace rarefy::files
