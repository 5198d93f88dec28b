// Whole characters out of a stream of bytes.
#include "rarefy/files/pre_tokenizer.h"
#include "rarefy/files/tokenizer.h"

namespace rarefy::files {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Whether more bytes could still make `text`, which does not start with a whole character, start with one.
bool may_become_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  if (length == 0 || text.size() >= length) return false;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return false;
    if (i > 1) continue;
    // The second byte rules out overlong forms, surrogates and what lies above U+10FFFF.
    if (lead == 0xE0 && byte < 0xA0) return false;
    if (lead == 0xED && byte > 0x9F) return false;
    if (lead == 0xF0 && byte < 0x90) return false;
    if (lead == 0xF4 && byte > 0x8F) return false;
  }
  return true;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const std::size_t length = character_length(rest);
    if (length > 0) {
      out += rest.substr(0, length);
      rest.remove_prefix(length);
    } else if (may_become_character(rest)) {
      break;
    } else {
      out += kReplacement;
      rest.remove_prefix(1);
    }
  }
  pending_ = std::string(rest);
  return out;
}

std::string Utf8Stream::finish() {
  const bool broken = !pending_.empty();
  pending_.clear();
  return broken ? std::string(kReplacement) : "";
}

}  // namespace rarefy::files
