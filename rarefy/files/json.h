// Strict JSON for files from outside: no duplicate keys, bounded depth, errors with line and column, typed access by
// key.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rarefy::files {

/// Parses `text`, which is called `name` in messages. Throws BadFile: E_JSON (line:column), E_JSON_DUPLICATE (the key),
/// E_JSON_DEPTH (more than 64 levels).
nlohmann::json parse_json(std::string_view text, const std::string& name);
/// The same for a whole file. Throws NotFound and Io too.
nlohmann::json read_json(const std::filesystem::path& path);

/// Typed access to one object's members; every error (BadFile, E_JSON_KEY or E_JSON_TYPE) names the file and the key.
class JsonObject {
 public:
  /// Throws BadFile unless `value` is an object; both must outlive this.
  JsonObject(const nlohmann::json& value, std::string name);

  bool has(std::string_view key) const;  ///< present and not null
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  std::optional<std::int64_t> integer_if(std::string_view key) const;
  std::optional<double> number_if(std::string_view key) const;
  std::optional<bool> boolean_if(std::string_view key) const;
  std::optional<std::string> string_if(std::string_view key) const;
  std::string string(std::string_view key) const;
  const nlohmann::json& array(std::string_view key) const;
  JsonObject object(std::string_view key) const;
  const nlohmann::json& value() const { return value_; }
  const std::string& name() const { return name_; }

 private:
  const nlohmann::json& require(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, const char* wanted, const nlohmann::json& found) const;

  const nlohmann::json& value_;
  std::string name_;
};

}  // namespace rarefy::files
