// `rarefy doctor`: what this machine is and what would fit on it.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/machine.h"
#include "apps/version.h"
#include "rarefy/base/check.h"
#include "rarefy/base/device.h"

namespace rarefy::apps {
namespace {

std::string cuda_state() {
  try {
    require_device(parse_device("cuda"));
    return "usable";
  } catch (const Error& error) {
    return error.what();
  }
}

/// Well-known shapes: what their caches take is asked before anything is downloaded.
struct Shape {
  const char* name;
  int layers, kv_heads, head_dim;
  double weight_bytes;  // 16-bit
};
constexpr Shape kShapes[] = {{"SmolLM2-135M", 30, 3, 64, 0.27e9},
                             {"Qwen2.5-1.5B", 28, 2, 128, 3.1e9},
                             {"Llama-3.1-8B", 32, 8, 128, 16.1e9},
                             {"Qwen3-8B", 36, 8, 128, 16.4e9},
                             {"MiniCPM4.1-8B", 32, 2, 128, 16.4e9}};

void doctor(bool json) {
  const Machine machine = inspect_machine();
  const double bandwidth = measure_read_bandwidth(machine.threads);
  if (json) {
    std::cout << nlohmann::json{{"cpu", machine.cpu},
                                {"features", machine.features},
                                {"threads", machine.threads},
                                {"memory_bytes", machine.memory},
                                {"available_bytes", machine.available},
                                {"read_bytes_per_s", bandwidth},
                                {"cuda", cuda_state()}}
              << '\n';
    return;
  }
  fmt::print("{}\n\nCPU      {} ({} threads)\n         {}\nmemory   {}, {} free, read at {:.1f} GB/s\nCUDA     {}\n\n",
             version_text(), machine.cpu, machine.threads, machine.features, human_bytes(machine.memory),
             human_bytes(machine.available), bandwidth / 1e9, cuda_state());
  fmt::print("{:<14} {:>14} {:>16} {:>16} {:>16}\n", "model (16-bit)", "weights", "tokens, dense", "V sealed",
             "K, V sealed");
  for (const Shape& shape : kShapes) {
    const double per_token = 2.0 * shape.layers * shape.kv_heads * shape.head_dim * 2;
    const double room = static_cast<double>(machine.available) - shape.weight_bytes;
    const auto tokens = [&](double share) {
      return room <= 0 ? 0 : static_cast<std::int64_t>(room / (per_token * share));
    };
    fmt::print("{:<14} {:>14} {:>16} {:>16} {:>16}\n", shape.name,
               human_bytes(static_cast<std::int64_t>(shape.weight_bytes)), tokens(1), tokens(1 - 0.21875),
               tokens(1 - 0.4375));
  }
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "processor, memory, GPU, and what would fit");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json);
  command->callback([json] { doctor(*json); });
}

}  // namespace rarefy::apps
