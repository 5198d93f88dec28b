// Drawing of the progress line.
#include "apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace rarefy::apps {

Progress::Progress(std::string what, std::string unit, std::int64_t total)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

void Progress::update(std::int64_t done) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || (drawn_ && done < total_ && now - last_ < std::chrono::milliseconds(100))) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const bool color = std::getenv("NO_COLOR") == nullptr;
  fmt::print(stderr, "\r\x1b[K{}{}{} {} / {} {}  {:.0f} {}/s  {:.0f} s left", color ? "\x1b[36m" : "", what_,
             color ? "\x1b[0m" : "", done, total_, unit_, rate, unit_,
             rate > 0 ? static_cast<double>(total_ - done) / rate : 0.0);
  std::fflush(stderr);
}

void Progress::clear() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace rarefy::apps
