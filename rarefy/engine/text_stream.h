// From generated tokens to text that may be shown: whole characters only, cut before the first stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "rarefy/files/tokenizer.h"

namespace rarefy::engine {

/// Holds back text that could still become a stop string and bytes of unfinished characters.
class TextStream {
 public:
  TextStream() = default;
  /// Throws BadInput (E_STOP_EMPTY) if a stop string is empty.
  explicit TextStream(std::vector<std::string> stop);

  /// Adds the bytes of one token; returns the text that can be shown now.
  std::string push(std::string_view bytes);
  /// True once a stop string was met; everything after it is dropped.
  bool stopped() const { return stopped_; }
  /// The rest, when generation ended without a stop string.
  std::string finish();

 private:
  std::string release(const std::string& text);
  std::size_t first_match() const;  // npos if none
  std::vector<std::string> stop_;
  files::Utf8Stream utf8_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace rarefy::engine
