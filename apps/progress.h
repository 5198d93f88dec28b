// One line of progress on stderr, only when it is a terminal.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace rarefy::apps {

/// "prefill  1024 / 6000 tokens  310 tokens/s  16 s left", redrawn at most ten times a second, wiped at the end.
class Progress {
 public:
  Progress(std::string what, std::string unit, std::int64_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done);
  void clear();

 private:
  std::string what_, unit_;
  std::int64_t total_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace rarefy::apps
