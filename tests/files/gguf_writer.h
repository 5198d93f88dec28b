// Builds GGUF files, good and bad, byte by byte.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace rarefy::testing {

/// Little-endian bytes.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(std::string_view s) {
    put<std::uint64_t>(s.size());
    out_ += s;
    return *this;
  }
  Bytes& raw(std::string_view s) {
    out_ += s;
    return *this;
  }
  const std::string& str() const { return out_; }

 private:
  std::string out_;
};

struct GgufTensor {
  std::string name = "t";
  std::vector<std::int64_t> dims = {32};  // fastest first, as GGUF has them
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

/// A file of one U32 key, `keys` more (already encoded), tensors, and `data` bytes after padding to `alignment`.
struct GgufFile {
  std::uint32_t magic = 0x46554747, version = 3;
  std::vector<std::string> keys;
  std::vector<GgufTensor> tensors = {{}};
  std::string data = std::string(128, '\x01');
  std::uint64_t alignment = 32;
  std::uint64_t claimed_tensors = ~0ull, claimed_keys = ~0ull;  // ~0: the true number

  std::string str() const {
    Bytes out;
    out.put(magic).put(version);
    out.put<std::uint64_t>(claimed_tensors == ~0ull ? tensors.size() : claimed_tensors);
    out.put<std::uint64_t>(claimed_keys == ~0ull ? keys.size() : claimed_keys);
    for (const std::string& key : keys) out.raw(key);
    for (const GgufTensor& t : tensors) {
      out.text(t.name).put<std::uint32_t>(static_cast<std::uint32_t>(t.dims.size()));
      for (const std::int64_t dim : t.dims) out.put(dim);
      out.put(t.type).put(t.offset);
    }
    std::string bytes = out.str();
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data;
  }
};

inline std::string u32_key(std::string_view name, std::uint32_t value) {
  return Bytes().text(name).put<std::uint32_t>(4).put(value).str();
}
inline std::string string_key(std::string_view name, std::string_view value) {
  return Bytes().text(name).put<std::uint32_t>(8).text(value).str();
}
template <typename T>
std::string array_key(std::string_view name, std::uint32_t type, const std::vector<T>& values) {
  Bytes out;
  out.text(name).put<std::uint32_t>(9).put(type).template put<std::uint64_t>(values.size());
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string>)
      out.text(value);
    else
      out.put(value);
  }
  return out.str();
}

}  // namespace rarefy::testing
