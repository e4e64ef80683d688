#pragma once

#include <CLI/App.hpp>

namespace carillon::cli {

// Exit statuses that users' scripts rely on.
inline constexpr int exit_success = 0;
inline constexpr int exit_failure = 1;
inline constexpr int exit_usage = 2;

// Each adds its subcommand to the program; what the subcommand returns becomes `status`.
void add_serve(CLI::App& program, int& status);
void add_frontend(CLI::App& program, int& status);
void add_scheduler(CLI::App& program, int& status);
void add_worker(CLI::App& program, int& status);
void add_profile(CLI::App& program, int& status);
void add_load(CLI::App& program, int& status);
void add_simulate(CLI::App& program, int& status);
void add_goodput(CLI::App& program, int& status);
void add_disb(CLI::App& program, int& status);
void add_plan(CLI::App& program, int& status);
void add_partition(CLI::App& program, int& status);
void add_cluster(CLI::App& program, int& status);
void add_replay(CLI::App& program, int& status);
void add_explain(CLI::App& program, int& status);
void add_key(CLI::App& program, int& status);
void add_share(CLI::App& program, int& status);
void add_run(CLI::App& program, int& status);
void add_jobs(CLI::App& program, int& status);
void add_bench(CLI::App& program, int& status);

}  // namespace carillon::cli
