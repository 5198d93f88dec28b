// What this machine has: processor, memory, and what of it is free.
#pragma once
#include <cstdint>
#include <string>

namespace rarefy::apps {

struct Machine {
  std::string cpu;
  std::string features;  // the instruction sets that Rarefy uses, of those the CPU has
  int threads = 0;
  std::int64_t memory = 0;     // bytes
  std::int64_t available = 0;  // bytes, limits of the control group included
};

Machine inspect_machine();

/// Bytes per second that `threads` threads read from memory (best of a few passes over 512 MiB).
double measure_read_bandwidth(int threads);

/// "1.5 GiB"
std::string human_bytes(std::int64_t bytes);

}  // namespace rarefy::apps
