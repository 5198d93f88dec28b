// Reading, checking and writing of calibration files.
#include "rarefy/cache/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rarefy/base/check.h"
#include "rarefy/files/safetensors.h"

namespace rarefy {
namespace {

constexpr const char* kFormat = "rarefy-calibration-1";

template <typename T>
files::TensorInfo tensor_of(const char* name, DType dtype, std::vector<std::int64_t> shape,
                            const std::vector<T>& values) {
  return {name, dtype, std::move(shape), reinterpret_cast<const std::byte*>(values.data()),
          static_cast<std::int64_t>(values.size() * sizeof(T))};
}

/// Copies a tensor; throws unless it has this type, this rank and, where `shape` is not -1, this shape.
template <typename T>
std::vector<T> copy(const files::Safetensors& file, const char* name, DType dtype,
                    const std::vector<std::int64_t>& shape) {
  const files::TensorInfo* tensor = file.find(name);
  const bool fits = tensor != nullptr && tensor->dtype == dtype &&
                    std::equal(tensor->shape.begin(), tensor->shape.end(), shape.begin(), shape.end(),
                               [](std::int64_t have, std::int64_t want) { return want == -1 || have == want; });
  if (!fits)
    fail(ErrorCode::BadFile, "E_CAL_SHAPE", "{}: tensor '{}' is missing or not of the model's shape", file.name(),
         name);
  std::vector<T> out(static_cast<std::size_t>(tensor->bytes) / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), tensor->data, static_cast<std::size_t>(tensor->bytes));
  return out;
}

void check_values(const Calibration& c, const std::string& file) {
  const auto dim = static_cast<std::size_t>(c.head_dim);
  for (std::size_t row = 0; row < c.order.size(); row += dim) {
    std::vector<std::int32_t> head(c.order.begin() + static_cast<std::ptrdiff_t>(row),
                                   c.order.begin() + static_cast<std::ptrdiff_t>(row + dim));
    std::sort(head.begin(), head.end());
    for (std::size_t i = 0; i < dim; ++i)
      if (head[i] != static_cast<std::int32_t>(i))
        fail(ErrorCode::BadFile, "E_CAL_VALUE", "{}: the channel order of row {} is not a permutation", file,
             row / dim);
  }
  for (const float weight : c.weights)
    if (!std::isfinite(weight) || !(weight > 0))
      fail(ErrorCode::BadFile, "E_CAL_VALUE", "{}: a channel weight is {}", file, weight);
  for (const float x : c.queries)
    if (!std::isfinite(x)) fail(ErrorCode::BadFile, "E_CAL_VALUE", "{}: a probe query holds {}", file, x);
}

}  // namespace

void save_calibration(const Calibration& c, const std::filesystem::path& path) {
  files::write_safetensors(path,
                           {tensor_of("order", DType::I32, {c.layers, c.kv_heads, c.head_dim}, c.order),
                            tensor_of("weights", DType::F32, {c.layers, c.kv_heads, c.head_dim}, c.weights),
                            tensor_of("queries", DType::F32, {c.layers, c.q_heads, c.probes, c.head_dim}, c.queries)},
                           {{"format", kFormat}, {"model", c.model_hash}});
}

Calibration load_calibration(const std::filesystem::path& path, const Calibration& expected) {
  const files::Safetensors file(path);
  const auto value = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  if (value("format") != kFormat)
    fail(ErrorCode::BadFile, "E_CAL_FORMAT", "{}: is not a calibration file of this version ({})", file.name(),
         kFormat);
  if (value("model") != expected.model_hash)
    fail(ErrorCode::BadFile, "E_CAL_MODEL", "{}: was made for another model ({}, this one is {})", file.name(),
         value("model"), expected.model_hash);
  Calibration c = expected;
  c.order = copy<std::int32_t>(file, "order", DType::I32, {c.layers, c.kv_heads, c.head_dim});
  c.weights = copy<float>(file, "weights", DType::F32, {c.layers, c.kv_heads, c.head_dim});
  c.queries = copy<float>(file, "queries", DType::F32, {c.layers, c.q_heads, -1, c.head_dim});
  const std::int64_t rows = static_cast<std::int64_t>(c.layers) * c.q_heads * c.head_dim;
  c.probes = static_cast<int>(std::min<std::int64_t>(static_cast<std::int64_t>(c.queries.size()) / rows, INT32_MAX));
  if (c.probes == 0) fail(ErrorCode::BadFile, "E_CAL_SHAPE", "{}: has no probe queries", file.name());
  check_values(c, file.name());
  return c;
}

}  // namespace rarefy
