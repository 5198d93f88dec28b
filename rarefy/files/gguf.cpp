// Parsing of GGUF: header, metadata, tensor table, each validated before it is used.
#include "rarefy/files/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "rarefy/base/check.h"

namespace rarefy::files {
namespace {

constexpr std::uint64_t kMaxString = 64 << 20;
constexpr std::uint64_t kMaxArray = 1 << 22;  // a vocabulary's merges are the longest arrays in use
constexpr std::uint64_t kMaxAlignment = 4096;
constexpr std::uint32_t kMaxDims = 4;
constexpr std::size_t kMaxTensorName = 63;
constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;  // name, type, smallest value
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// GGUF's value types.
enum class Type : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };
constexpr std::uint32_t kTypes = 13;

std::uint64_t smallest(Type type) {
  switch (type) {
    case Type::U8:
    case Type::I8:
    case Type::Bool:
      return 1;
    case Type::U16:
    case Type::I16:
      return 2;
    case Type::U32:
    case Type::I32:
    case Type::F32:
      return 4;
    default:
      return 8;
  }
}

/// GGML's numbers of the tensor types that Rarefy reads.
struct QuantName {
  std::uint32_t id;
  DType type;
};
constexpr QuantName kQuants[] = {{0, DType::F32},   {1, DType::F16},   {2, DType::Q4_0}, {3, DType::Q4_1},
                                 {6, DType::Q5_0},  {7, DType::Q5_1},  {8, DType::Q8_0}, {12, DType::Q4_K},
                                 {13, DType::Q5_K}, {14, DType::Q6_K}, {26, DType::I32}, {30, DType::BF16}};

class Reader {
 public:
  explicit Reader(const MappedFile& file) : name_(file.name()), bytes_(file.bytes()) {}

  std::size_t offset() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  const std::string& name() const { return name_; }

  template <typename... Args>
  [[noreturn]] void bad(const char* id, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::BadFile, id, "{}: at byte {}: {}", name_, at_, fmt::format(format, std::forward<Args>(args)...));
  }

  template <typename T>
  T read(const char* what) {
    if (left() < sizeof(T)) bad("E_GGUF_TRUNCATED", "the file ends inside {}", what);
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string string(const char* what) {
    const auto length = read<std::uint64_t>(what);
    if (length > kMaxString || length > left())
      bad("E_GGUF_STRING", "{} has a length of {}, {} bytes are left", what, length, left());
    std::string out(reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return out;
  }

  Type type(const std::string& key) {
    const auto value = read<std::uint32_t>("a value type");
    if (value >= kTypes) bad("E_GGUF_TYPE", "key '{}' has value type {}, must be below {}", key, value, kTypes);
    return static_cast<Type>(value);
  }

 private:
  const std::string& name_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

GgufValue from_unsigned(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return value;
  return static_cast<std::int64_t>(value);
}

std::int64_t read_integer(Reader& in, Type type) {
  switch (type) {
    case Type::U8:
      return in.read<std::uint8_t>("a value");
    case Type::I8:
      return in.read<std::int8_t>("a value");
    case Type::U16:
      return in.read<std::uint16_t>("a value");
    case Type::I16:
      return in.read<std::int16_t>("a value");
    case Type::U32:
      return in.read<std::uint32_t>("a value");
    case Type::I32:
      return in.read<std::int32_t>("a value");
    default:
      return in.read<std::int64_t>("a value");
  }
}

bool read_bool(Reader& in, const std::string& key) {
  const auto value = in.read<std::uint8_t>("a value");
  if (value > 1) in.bad("E_GGUF_TYPE", "key '{}' is a bool of value {}", key, value);
  return value == 1;
}

GgufValue read_array(Reader& in, const std::string& key) {
  const Type type = in.type(key);
  const auto count = in.read<std::uint64_t>("an array length");
  if (type == Type::Array) in.bad("E_GGUF_ARRAY", "key '{}' is an array of arrays", key);
  if (count > in.left() / smallest(type))
    in.bad("E_GGUF_ARRAY", "key '{}' is an array of {} values, {} bytes are left", key, count, in.left());
  if (count > kMaxArray) in.bad("E_GGUF_ARRAY", "key '{}' is an array of {} values, at most {}", key, count, kMaxArray);
  const auto fill = [&](auto out, auto next) {
    out.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) out.push_back(next());
    return GgufValue(std::move(out));
  };
  switch (type) {
    case Type::String:
      return fill(std::vector<std::string>{}, [&] { return in.string("a string of an array"); });
    case Type::Bool:
      return fill(std::vector<bool>{}, [&] { return read_bool(in, key); });
    case Type::F32:
      return fill(std::vector<double>{}, [&] { return static_cast<double>(in.read<float>("a value")); });
    case Type::F64:
      return fill(std::vector<double>{}, [&] { return in.read<double>("a value"); });
    default:
      return fill(std::vector<std::int64_t>{}, [&] {
        const std::int64_t value = read_integer(in, type);
        if (type == Type::U64 && value < 0) in.bad("E_GGUF_ARRAY", "key '{}' holds a value above 2^63 - 1", key);
        return value;
      });
  }
}

GgufValue read_value(Reader& in, const std::string& key) {
  const Type type = in.type(key);
  switch (type) {
    case Type::String:
      return in.string("a string value");
    case Type::Bool:
      return read_bool(in, key);
    case Type::F32:
      return static_cast<double>(in.read<float>("a value"));
    case Type::F64:
      return in.read<double>("a value");
    case Type::U64:
      return from_unsigned(in.read<std::uint64_t>("a value"));
    case Type::Array:
      return read_array(in, key);
    default:
      return read_integer(in, type);
  }
}

void read_header(Reader& in, std::uint64_t& tensors, std::uint64_t& keys) {
  const auto magic = in.read<std::uint32_t>("the magic number");
  if (magic != 0x46554747) in.bad("E_GGUF_MAGIC", "this is not a GGUF file (magic {:#010x})", magic);
  const auto version = in.read<std::uint32_t>("the version");
  if (version != 0 && (version & 0xffff) == 0)
    in.bad("E_GGUF_ENDIAN", "version {:#x} looks byte-swapped: a big-endian file, this machine is little-endian",
           version);
  if (version == 1) in.bad("E_GGUF_VERSION", "GGUF version 1 is not supported (2 and 3 are)");
  if (version != 2 && version != 3)
    in.bad("E_GGUF_VERSION", "unknown GGUF version {} (2 and 3 are supported)", version);
  tensors = in.read<std::uint64_t>("the number of tensors");
  keys = in.read<std::uint64_t>("the number of keys");
  if (tensors > in.left() / kMinTensorBytes)
    in.bad("E_GGUF_COUNT", "{} tensors cannot stand in the {} bytes that are left", tensors, in.left());
  if (keys > in.left() / kMinKeyBytes)
    in.bad("E_GGUF_COUNT", "{} keys cannot stand in the {} bytes that are left", keys, in.left());
}

/// Name, shape and type of one tensor; the size in bytes, and the offset inside the data section.
TensorInfo read_tensor(Reader& in, std::uint64_t& offset) {
  TensorInfo tensor;
  tensor.name = in.string("a tensor name");
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorName)
    in.bad("E_GGUF_NAME", "a tensor name of {} characters, must be 1 to {}", tensor.name.size(), kMaxTensorName);
  const auto dims = in.read<std::uint32_t>("the number of dimensions");
  if (dims == 0 || dims > kMaxDims)
    in.bad("E_GGUF_DIM", "tensor '{}' has {} dimensions, must be 1 to {}", tensor.name, dims, kMaxDims);
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < dims; ++i) {
    const auto dim = in.read<std::int64_t>("a dimension");
    if (dim <= 0) in.bad("E_GGUF_DIM", "tensor '{}' has dimension {}, must be above 0", tensor.name, dim);
    if (!checked_mul(elements, static_cast<std::uint64_t>(dim), elements) || elements > INT64_MAX / 8)
      in.bad("E_GGUF_SIZE", "tensor '{}' has too many elements", tensor.name);
    tensor.shape.push_back(dim);
  }
  const auto id = in.read<std::uint32_t>("a tensor type");
  const auto* known =
      std::find_if(std::begin(kQuants), std::end(kQuants), [id](const QuantName& q) { return q.id == id; });
  if (known == std::end(kQuants))
    in.bad("E_GGUF_QUANT",
           "tensor '{}' has type {} (supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)",
           tensor.name, id);
  tensor.dtype = known->type;
  const BlockSize block = block_size(tensor.dtype);
  if (tensor.shape[0] % block.elements != 0)
    in.bad("E_GGUF_ROW", "tensor '{}' has {} elements per row, not a multiple of {}'s block of {}", tensor.name,
           tensor.shape[0], to_string(tensor.dtype), block.elements);
  tensor.bytes = static_cast<std::int64_t>(elements) / block.elements * block.bytes;
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  offset = in.read<std::uint64_t>("a tensor offset");
  return tensor;
}

}  // namespace

Gguf::Gguf(const std::filesystem::path& path) : file_(path) {
  Reader in(file_);
  std::uint64_t tensors = 0, keys = 0;
  read_header(in, tensors, keys);
  for (std::uint64_t i = 0; i < keys; ++i) {
    std::string key = in.string("a key");
    if (key.empty()) in.bad("E_GGUF_KEY", "key {} is empty", i);
    if (metadata_.contains(key)) in.bad("E_GGUF_DUPLICATE", "key '{}' stands twice", key);
    GgufValue value = read_value(in, key);
    metadata_.emplace(std::move(key), std::move(value));
  }
  const auto alignment = static_cast<std::uint64_t>(integer("general.alignment").value_or(32));
  if (alignment == 0 || alignment > kMaxAlignment || !std::has_single_bit(alignment))
    in.bad("E_GGUF_ALIGNMENT", "general.alignment is {}, must be a power of two up to {}", alignment, kMaxAlignment);

  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    std::uint64_t offset = 0;
    TensorInfo tensor = read_tensor(in, offset);
    if (offset % alignment != 0)
      in.bad("E_GGUF_OFFSET", "tensor '{}' has offset {}, not a multiple of {}", tensor.name, offset, alignment);
    if (!index_.emplace(tensor.name, tensors_.size()).second)
      in.bad("E_GGUF_DUPLICATE", "tensor '{}' stands twice", tensor.name);
    tensors_.push_back(std::move(tensor));
    offsets.push_back(offset);
  }

  const std::uint64_t data = (in.offset() + alignment - 1) / alignment * alignment;
  const std::uint64_t room = file_.bytes().size() > data ? file_.bytes().size() - data : 0;
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto size = static_cast<std::uint64_t>(tensors_[i].bytes);
    if (offsets[i] > room || size > room - offsets[i])
      fail(ErrorCode::BadFile, "E_GGUF_OFFSET", "{}: tensor '{}' ends at byte {} + {} + {}, past the file's end at {}",
           name(), tensors_[i].name, data, offsets[i], size, file_.bytes().size());
    tensors_[i].data = file_.bytes().data() + data + offsets[i];
    order.emplace_back(offsets[i], i);
  }
  std::sort(order.begin(), order.end());
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = tensors_[order[i - 1].second];
    if (order[i].first < order[i - 1].first + static_cast<std::uint64_t>(before.bytes))
      fail(ErrorCode::BadFile, "E_GGUF_OFFSET", "{}: tensor '{}' overlaps tensor '{}'", name(),
           tensors_[order[i].second].name, before.name);
  }
}

const TensorInfo* Gguf::find(std::string_view tensor) const {
  const auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

namespace {

template <typename T>
const T* typed(const Gguf& file, std::string_view key, const char* wanted) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return nullptr;
  if (const T* value = std::get_if<T>(&found->second)) return value;
  // Any empty array is an array of every type.
  const bool empty = std::visit(
      [](const auto& value) {
        if constexpr (requires { value.empty(); })
          return value.empty() && !std::is_same_v<std::decay_t<decltype(value)>, std::string>;
        return false;
      },
      found->second);
  if constexpr (requires(T t) { t.push_back({}); })
    if (empty) {
      static const T none{};
      return &none;
    }
  static constexpr const char* kNames[] = {"integer",         "unsigned integer",  "number",           "bool",
                                           "string",          "array of integers", "array of numbers", "array of bools",
                                           "array of strings"};
  fail(ErrorCode::BadFile, "E_GGUF_VALUE", "{}: key '{}' is of type {}, {} is needed", file.name(), key,
       kNames[found->second.index()], wanted);
}

}  // namespace

std::optional<std::int64_t> Gguf::integer(std::string_view key) const {
  const auto* value = typed<std::int64_t>(*this, key, "an integer");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> Gguf::number(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found != metadata_.end())
    if (const auto* whole = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*whole);
  const auto* value = typed<double>(*this, key, "a number");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<bool> Gguf::boolean(std::string_view key) const {
  const auto* value = typed<bool>(*this, key, "a bool");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

const std::string* Gguf::string(std::string_view key) const { return typed<std::string>(*this, key, "a string"); }
const std::vector<std::string>* Gguf::strings(std::string_view key) const {
  return typed<std::vector<std::string>>(*this, key, "an array of strings");
}
const std::vector<std::int64_t>* Gguf::integers(std::string_view key) const {
  return typed<std::vector<std::int64_t>>(*this, key, "an array of integers");
}
const std::vector<double>* Gguf::numbers(std::string_view key) const {
  return typed<std::vector<double>>(*this, key, "an array of numbers");
}

}  // namespace rarefy::files
