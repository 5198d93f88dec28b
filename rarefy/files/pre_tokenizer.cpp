// Patterns, normal forms and UTF-8 validation.
#include "rarefy/files/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "rarefy/base/check.h"

namespace rarefy::files {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kDigitPattern = R"(\p{N})";

const std::vector<PreTokenizerName>& known_pre_tokenizers() {
  static constexpr std::string_view kLlama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static constexpr std::string_view kQwen2 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static const std::vector<PreTokenizerName> known = {{"gpt-2", {kGpt2Pattern}, false},
                                                      {"smollm", {kDigitPattern, kGpt2Pattern}, false},
                                                      {"llama-bpe", {kLlama3}, true},
                                                      {"llama3", {kLlama3}, true},
                                                      {"qwen2", {kQwen2}, false}};
  return known;
}

namespace {

/// PCRE2's \s leaves out U+0085, which Unicode's White_Space and the tokenizers of the field have.
std::string with_unicode_space(std::string_view source) {
  constexpr std::string_view kSpace = R"(\x09-\x0d\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\\' && i + 1 < source.size()) {
      const char next = source[++i];
      if (next == 's')
        out += in_class ? std::string(kSpace) : fmt::format("[{}]", kSpace);
      else if (next == 'S' && !in_class)
        out += fmt::format("[^{}]", kSpace);
      else
        out += {'\\', next};
      continue;
    }
    if (source[i] == '[') in_class = true;
    if (source[i] == ']') in_class = false;
    out += source[i];
  }
  return out;
}

/// What a thread needs to match: PCRE2's match data, and a stack for its compiled code.
struct Matcher {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);
  Matcher() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~Matcher() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

Pattern::Pattern(std::string_view source) {
  const std::string text = with_unicode_space(source);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR reason[256] = {};
    pcre2_get_error_message(error, reason, sizeof reason);
    fail(ErrorCode::BadFile, "E_TOK_REGEX", "pattern '{}': {} at {}", source, reinterpret_cast<const char*>(reason),
         offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter does the same, more slowly
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
}

namespace {

void split_valid(const pcre2_code* code, std::string_view text, const std::function<void(std::string_view)>& piece) {
  thread_local Matcher matcher;
  std::size_t at = 0, done = 0;
  while (at < text.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                                  matcher.data, matcher.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      fail(ErrorCode::BadInput, "E_TOK_MATCH", "splitting text failed at byte {} (PCRE2 error {})", at, found);
    // Copied: `piece` may match another pattern with the same match data.
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matcher.data);
    const std::size_t begin = range[0], end = range[1];
    if (end == begin) {  // an empty match splits nothing
      at = end + std::max<std::size_t>(1, character_length(text.substr(end)));
      continue;
    }
    if (begin > done) piece(text.substr(done, begin - done));
    piece(text.substr(begin, end - begin));
    at = done = end;
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace

void Pattern::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  while (!text.empty()) {
    std::size_t valid = 0;
    while (valid < text.size()) {
      const std::size_t length = character_length(text.substr(valid));
      if (length == 0) break;
      valid += length;
    }
    if (valid > 0) split_valid(code, text.substr(0, valid), piece);
    std::size_t invalid = valid;
    while (invalid < text.size() && character_length(text.substr(invalid)) == 0) ++invalid;
    if (invalid > valid) piece(text.substr(valid, invalid - valid));
    text.remove_prefix(invalid);
  }
}

std::size_t character_length(std::string_view text) {
  if (text.empty()) return 0;
  if (static_cast<unsigned char>(text[0]) < 0x80) return 1;
  utf8proc_int32_t character;
  const utf8proc_ssize_t n =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(std::min<std::size_t>(4, text.size())), &character);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

std::string normalize(std::string_view text, UnicodeForm form) {
  bool ascii = true;
  for (const char c : text) ascii = ascii && static_cast<unsigned char>(c) < 0x80;
  if (ascii) return std::string(text);  // ASCII is its own normal form
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::Nfc || form == UnicodeForm::Nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::Nfkc || form == UnicodeForm::Nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(options));
  if (size < 0) return std::string(text);
  std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(size));
  std::free(out);
  return result;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0)
      out += "\xEF\xBF\xBD";
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return out;
}

}  // namespace rarefy::files
