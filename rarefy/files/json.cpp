// Strict parsing on nlohmann-json's SAX interface, and typed access.
#include "rarefy/files/json.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "rarefy/base/check.h"
#include "rarefy/files/mapped_file.h"

namespace rarefy::files {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 64;

/// Builds the document and refuses what the standard parser would let pass.
class StrictSax : public nlohmann::detail::json_sax_dom_parser<json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<json>;
  StrictSax(json& out, std::string_view text, const std::string& name) : Base(out, false), text_(text), name_(name) {}

  bool start_object(std::size_t size) {
    enter();
    keys_.emplace_back();
    return Base::start_object(size);
  }
  bool end_object() {
    keys_.pop_back();
    --depth_;
    return Base::end_object();
  }
  bool start_array(std::size_t size) {
    enter();
    return Base::start_array(size);
  }
  bool end_array() {
    --depth_;
    return Base::end_array();
  }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second)
      fail(ErrorCode::BadFile, "E_JSON_DUPLICATE", "{}: key '{}' stands twice in one object", name_, name);
    return Base::key(name);
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    const std::string_view before = text_.substr(0, std::min(position, text_.size()));
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const auto column = before.size() - (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1);
    const std::string what = error.what();
    // The library's message quotes the input; only its reason is kept, so that no foreign bytes reach a terminal.
    const std::size_t reason = what.find("syntax error");
    fail(ErrorCode::BadFile, "E_JSON", "{}:{}:{}: {}", name_, line, column,
         reason == std::string::npos ? "not valid JSON" : what.substr(reason, what.find(';', reason) - reason));
  }

 private:
  void enter() {
    if (++depth_ > kMaxDepth)
      fail(ErrorCode::BadFile, "E_JSON_DEPTH", "{}: nested deeper than {} levels", name_, kMaxDepth);
  }
  std::string_view text_;
  const std::string& name_;
  std::vector<std::set<std::string>> keys_;
  std::size_t depth_ = 0;
};

}  // namespace

json parse_json(std::string_view text, const std::string& name) {
  json out;
  StrictSax sax(out, text, name);
  json::sax_parse(text.begin(), text.end(), &sax);
  return out;
}

json read_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, file.name());
}

JsonObject::JsonObject(const json& value, std::string name) : value_(value), name_(std::move(name)) {
  if (!value.is_object())
    fail(ErrorCode::BadFile, "E_JSON_TYPE", "{}: an object is needed, found {}", name_, value.type_name());
}

bool JsonObject::has(std::string_view key) const {
  const auto found = value_.find(std::string(key));
  return found != value_.end() && !found->is_null();
}

const json& JsonObject::require(std::string_view key) const {
  const auto found = value_.find(std::string(key));
  if (found == value_.end() || found->is_null())
    fail(ErrorCode::BadFile, "E_JSON_KEY", "{}: key '{}' is missing", name_, key);
  return *found;
}

void JsonObject::wrong_type(std::string_view key, const char* wanted, const json& found) const {
  fail(ErrorCode::BadFile, "E_JSON_TYPE", "{}: key '{}' must be {}, is {}", name_, key, wanted, found.type_name());
}

std::int64_t JsonObject::integer(std::string_view key) const {
  const json& value = require(key);
  if (!value.is_number_integer()) wrong_type(key, "an integer", value);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) wrong_type(key, "a smaller integer", value);
  return value.get<std::int64_t>();
}

double JsonObject::number(std::string_view key) const {
  const json& value = require(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) wrong_type(key, "a finite number", value);
  return value.get<double>();
}

std::string JsonObject::string(std::string_view key) const {
  const json& value = require(key);
  if (!value.is_string()) wrong_type(key, "a string", value);
  return value.get<std::string>();
}

const json& JsonObject::array(std::string_view key) const {
  const json& value = require(key);
  if (!value.is_array()) wrong_type(key, "an array", value);
  return value;
}

JsonObject JsonObject::object(std::string_view key) const { return {require(key), name_ + ": " + std::string(key)}; }

std::optional<std::int64_t> JsonObject::integer_if(std::string_view key) const {
  return has(key) ? std::optional(integer(key)) : std::nullopt;
}
std::optional<double> JsonObject::number_if(std::string_view key) const {
  return has(key) ? std::optional(number(key)) : std::nullopt;
}
std::optional<std::string> JsonObject::string_if(std::string_view key) const {
  return has(key) ? std::optional(string(key)) : std::nullopt;
}
std::optional<bool> JsonObject::boolean_if(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const json& value = require(key);
  if (!value.is_boolean()) wrong_type(key, "true or false", value);
  return value.get<bool>();
}

}  // namespace rarefy::files
