// Search for stop strings across token borders.
#include "rarefy/engine/text_stream.h"

#include <algorithm>
#include <utility>

#include "rarefy/base/check.h"

namespace rarefy::engine {

TextStream::TextStream(std::vector<std::string> stop) : stop_(std::move(stop)) {
  for (const std::string& text : stop_)
    if (text.empty()) fail(ErrorCode::BadInput, "E_STOP_EMPTY", "stop: a stop string is empty");
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  return release(utf8_.push(bytes));
}

std::string TextStream::finish() {
  if (stopped_) return {};
  std::string out = release(utf8_.finish());
  if (stopped_) return out;
  const std::size_t match = first_match();
  stopped_ = match != std::string::npos;
  return out + std::exchange(held_, {}).substr(0, match);
}

std::size_t TextStream::first_match() const {
  std::size_t match = std::string::npos;
  for (const std::string& stop : stop_) match = std::min(match, held_.find(stop));
  return match;
}

std::string TextStream::release(const std::string& text) {
  held_ += text;
  // The longest end of the text that is the beginning of a stop string has to wait.
  std::size_t keep = 0;
  for (const std::string& stop : stop_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
  const std::size_t settled = held_.size() - keep;
  const std::size_t match = first_match();
  // A match counts once no stop string that begins before it can still complete: so token borders never matter.
  stopped_ = match <= settled;
  std::string out = held_.substr(0, std::min(match, settled));
  held_.erase(0, stopped_ ? held_.size() : out.size());
  return out;
}

}  // namespace rarefy::engine
