// The program's commands: each adds its options and, if chosen, runs.
#pragma once
#include <CLI/CLI.hpp>

namespace rarefy::apps {

/// Each registers one subcommand whose callback runs it. Errors leave as rarefy::Error; `status` gets another exit
/// status than 0 (130: interrupted).
void add_run_command(CLI::App& app, int& status);
void add_inspect_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);

/// True once the user asked to stop (Ctrl-C); a second time ends the process.
bool interrupted();
void handle_interrupts();

}  // namespace rarefy::apps
