// Tokens that are found in text before anything else: special ones and a user's own.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rarefy::files {

struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool special = false;
  bool strip_left = false;  // takes the white space before it too
  bool strip_right = false;
};

/// Finds added tokens in text, leftmost and longest first (a trie over bytes).
class AddedTokens {
 public:
  /// Throws BadFile (E_TOK_ADDED): empty, longer than 1024 bytes, or more than 2^20 tokens.
  void add(AddedToken token, const std::string& file);

  /// Splits `text`: plain stretches go to `plain`, tokens to `token`. Special tokens match only if `parse_special`.
  void split(std::string_view text, bool parse_special, const std::function<void(std::string_view)>& plain,
             const std::function<void(const AddedToken&)>& token) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, bool parse_special) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::uint64_t, std::int32_t> edges_;  // node << 8 | byte to node; node 0 is the root
  std::vector<std::int32_t> ends_ = {-1};                  // node to token, -1: none ends here
  bool starts_[256] = {};                                  // bytes with which some token begins
};

}  // namespace rarefy::files
