// The program: picks a command, maps errors to exit statuses.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <new>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/version.h"
#include "rarefy/base/check.h"

namespace rarefy::apps {
namespace {

volatile std::sig_atomic_t interrupt_count = 0;

void on_interrupt(int) {
  interrupt_count = interrupt_count + 1;
  if (interrupt_count > 1) std::_Exit(130);
}

int run(int argc, char** argv) {
  CLI::App app{"Long-context language models on a sparse KV cache"};
  app.name("rarefy");
  app.set_version_flag("--version", version_text());
  app.set_config("--config", "", "a TOML file; a command's options stand in its section, e.g. [run]");
  app.require_subcommand(1);
  app.fallthrough();
  int status = 0;
  add_run_command(app, status);
  add_bench_command(app);
  add_eval_command(app);
  add_calibrate_command(app);
  add_inspect_command(app);
  add_doctor_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return status;
}

/// OpenMP's threads spin while they wait for each other. On a machine with other work that multiplied a token's time by
/// 70 (14 ms against 950), and without other work short spinning costs nothing. The library reads its settings before
/// main: so start anew.
void limit_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);
  execv("/proc/self/exe", argv);  // comes back only if it failed: then we run as we are
}

}  // namespace

bool interrupted() { return interrupt_count > 0; }
void handle_interrupts() { std::signal(SIGINT, on_interrupt); }

}  // namespace rarefy::apps

int main(int argc, char** argv) {
  rarefy::apps::limit_spinning(argv);
  spdlog::set_default_logger(spdlog::stderr_color_mt("rarefy"));
  spdlog::set_pattern("%^%l%$: %v");
  try {
    return rarefy::apps::run(argc, argv);
  } catch (const rarefy::Error& error) {
    fmt::print(stderr, "rarefy: {}{}\n", error.what(), error.id().empty() ? "" : fmt::format(" [{}]", error.id()));
    return rarefy::exit_status(error);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "rarefy: out of memory\n");
    return 71;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rarefy: {}\n", error.what());
    return 70;
  }
}
