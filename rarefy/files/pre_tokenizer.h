// Normalisation and splitting of text before byte-pair encoding.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rarefy::files {

/// A compiled pattern (PCRE2 with JIT; Unicode properties). `\s` means Unicode's White_Space, as in the field's
/// tokenizers.
class Pattern {
 public:
  /// Throws BadFile (E_TOK_REGEX) with the pattern and PCRE2's reason.
  explicit Pattern(std::string_view source);

  /// Calls `piece` for every match and every stretch between matches, in order; together they are the whole text. Bytes
  /// that are not UTF-8 form pieces of their own.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  std::shared_ptr<void> code_;
};

/// The patterns of the field, by the name that GGUF's `tokenizer.ggml.pre` uses. Several patterns split one after the
/// other.
struct PreTokenizerName {
  std::string_view name;
  std::vector<std::string_view> patterns;
  bool ignore_merges;  // a piece that is a token is taken whole
};
const std::vector<PreTokenizerName>& known_pre_tokenizers();
extern const std::string_view kGpt2Pattern;
extern const std::string_view kDigitPattern;

enum class UnicodeForm { Nfc, Nfd, Nfkc, Nfkd };
/// Normal form of `text`; text that is not UTF-8 stays as it is.
std::string normalize(std::string_view text, UnicodeForm form);

/// `text` with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string replace_invalid(std::string_view text);

/// Bytes of the character at the start of `text`, 0 if it does not start with a valid one.
std::size_t character_length(std::string_view text);

}  // namespace rarefy::files
