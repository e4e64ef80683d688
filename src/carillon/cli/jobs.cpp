#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "carillon/base/bytes.h"
#include "carillon/cli/commands.h"
#include "carillon/share/broker.h"

namespace carillon::cli {
namespace {

struct JobsArguments {
  std::string socket;
  bool json = false;
  bool watch = false;
  double every_s = 1;
};

std::string seconds_text(const nlohmann::json& value) {
  return value.is_number() ? fmt::format("{:.1f}", value.get<double>()) : "?";
}

std::string size_text(const nlohmann::json& object, const char* key) {
  return to_text(Bytes{object.value(key, std::uint64_t{0})});
}

std::string state_text(const nlohmann::json& job) {
  std::string state = job.value("state", "?");
  if (job.value("hangs", false)) return state + ", hangs";
  return job.value("frozen", false) ? state + ", frozen" : state;
}

void print_jobs(const nlohmann::json& list) {
  fmt::print("{} jobs and {} lanes by {}; {} of {} taken, {} of it by lanes{}\n", list["jobs"].size(),
             list["lanes"].size(), list.value("policy", "?"),
             to_text(Bytes{list.value("persistent_bytes", std::uint64_t{0}) +
                           list.value("ephemeral_bytes", std::uint64_t{0})}),
             size_text(list, "capacity_bytes"), size_text(list, "ephemeral_bytes"),
             list.value("device_wanted", false) ? "; all are frozen, as the device is wanted" : "");
  if (list["jobs"].empty()) return;
  fmt::print("{:>5} {:>8} {:<20} {:<16} {:>4} {:>10} {:>10} {:>6} {:>10} {:>10} {:>10}\n", "job", "pid", "name",
             "state", "lane", "persistent", "ephemeral", "share", "iterations", "attained s", "remaining s");
  for (const nlohmann::json& job : list["jobs"])
    fmt::print("{:>5} {:>8} {:<20.20} {:<16} {:>4} {:>10} {:>10} {:>5.1f}% {:>10} {:>10} {:>10}\n",
               job.value("job", 0U), job.value("pid", 0U), job.value("name", ""), state_text(job),
               job["lane"].is_number() ? job["lane"].dump() : "-", size_text(job, "persistent_bytes"),
               size_text(job, "ephemeral_bytes"), 100 * job.value("share", 0.0),
               job.value("iterations", std::uint64_t{0}), seconds_text(job["attained_s"]),
               seconds_text(job["remaining_s"]));
}

int run_jobs(const JobsArguments& arguments) {
  for (;;) {
    const auto list = share::ask_for_list(arguments.socket, std::chrono::seconds(5));
    if (!list) {
      fmt::print(stderr, "carillon jobs: {}\n", list.error().message);
      return list.error().code == ErrorCode::invalid_argument ? exit_usage : exit_failure;
    }
    const auto parsed = nlohmann::json::parse(*list, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("jobs") || !parsed.contains("lanes")) {
      fmt::print(stderr, "carillon jobs: the broker at {} answered what is no list of jobs\n", arguments.socket);
      return exit_failure;
    }
    if (arguments.watch && !arguments.json && isatty(STDOUT_FILENO) != 0) fmt::print("\x1b[H\x1b[2J");
    if (arguments.json)
      fmt::print("{}\n", *list);
    else
      print_jobs(parsed);
    if (!arguments.watch) return exit_success;
    if (std::fflush(stdout) != 0) return exit_failure;
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.every_s));
  }
}

}  // namespace

void add_jobs(CLI::App& program, int& status) {
  const auto arguments = std::make_shared<JobsArguments>();
  arguments->socket = share::default_socket([](const char* name) { return std::getenv(name); }, geteuid());
  CLI::App& command =
      *program.add_subcommand("jobs", "Lists the jobs of a broker: state, lane, memory, share of the device, time");
  command.add_option("--socket", arguments->socket, "The broker's")->capture_default_str();
  command.add_flag("--json", arguments->json, "Print JSON: the jobs, the lanes, times of hand-overs");
  command.add_flag("--watch", arguments->watch, "Again and again, until Ctrl-C");
  command.add_option("--every", arguments->every_s, "With --watch: seconds between two looks")
      ->check(CLI::Range(0.05, 86'400.0))
      ->capture_default_str();
  command.footer(
      "Examples:\n"
      "  carillon jobs\n"
      "  carillon jobs --watch\n"
      "  carillon jobs --json | jq '.jobs[] | {name, share}'");
  command.callback([arguments, &status] { status = run_jobs(*arguments); });
}

}  // namespace carillon::cli
