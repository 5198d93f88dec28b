// Machine facts from /proc, the control group and a short measurement.
#include "apps/machine.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include "rarefy/base/buffer.h"

namespace rarefy::apps {
namespace {

std::string first_value(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key, 0) == 0) {
      const std::size_t colon = line.find(':');
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  return "";
}

std::int64_t kibibytes(const std::string& text) {
  std::int64_t value = 0;
  std::istringstream(text) >> value;
  return value * 1024;
}

/// Memory that the control group still allows; INT64_MAX without a limit.
std::int64_t control_group_left() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  std::int64_t limit = 0, used = 0;
  if (limit_file >> limit && used_file >> used) return std::max<std::int64_t>(0, limit - used);
  return INT64_MAX;
}

}  // namespace

Machine inspect_machine() {
  Machine machine;
  machine.cpu = first_value("/proc/cpuinfo", "model name");
  const std::string flags = " " + first_value("/proc/cpuinfo", "flags") + " ";
  for (const char* flag : {"avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx512_vbmi2", "avx512_bf16", "amx_bf16"})
    if (flags.find(fmt::format(" {} ", flag)) != std::string::npos)
      machine.features += (machine.features.empty() ? "" : " ") + std::string(flag);
  machine.threads = omp_get_max_threads();
  machine.memory = kibibytes(first_value("/proc/meminfo", "MemTotal"));
  machine.available = std::min(kibibytes(first_value("/proc/meminfo", "MemAvailable")), control_group_left());
  return machine;
}

double measure_read_bandwidth(int threads) {
  constexpr std::int64_t kBytes = 512 << 20, kBlock = 1 << 16;
  const Buffer buffer(kBytes);
  std::uint64_t* words = buffer.as<std::uint64_t>();
  constexpr std::int64_t kCount = kBytes / 8;
#pragma omp parallel for num_threads(threads)
  for (std::int64_t i = 0; i < kCount; ++i) words[i] = static_cast<std::uint64_t>(i);
  double best = 0;
  std::uint64_t total = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    std::uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (std::int64_t block = 0; block < kCount; block += kBlock) {
      std::uint64_t lane[8] = {};
      for (std::int64_t i = block; i < block + kBlock; i += 8)
        for (int j = 0; j < 8; ++j) lane[j] += words[i + j];
      for (const std::uint64_t x : lane) sum += x;
    }
    total += sum;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kBytes) / time.count());
  }
  return total == 0 ? 0 : best;  // the sum is used, so the loop cannot be dropped
}

std::string human_bytes(std::int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 2, units[unit]);
}

}  // namespace rarefy::apps
