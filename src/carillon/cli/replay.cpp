#include <algorithm>
#include <cstdio>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/statistics.h"
#include "carillon/cli/commands.h"
#include "carillon/schedule/log/lines.h"
#include "carillon/schedule/log/reader.h"
#include "carillon/schedule/registry.h"
#include "carillon/simulate/from_log.h"
#include "carillon/simulate/report.h"
#include "carillon/simulate/simulation.h"

namespace carillon::cli {
namespace {

struct ReplayArguments {
  std::string log;
  std::vector<std::string> schedulers;
  bool json = false;
};

constexpr std::size_t shown_differences = 5;

// What the log says became of its requests.
struct Recorded {
  std::uint64_t events = 0, actions = 0, requests = 0, on_time = 0, late = 0, refused = 0, cancelled = 0,
                open = 0;
  std::uint64_t batches = 0, batched = 0;
  std::vector<Duration> latencies;
  std::uint64_t differing = 0;
  std::vector<std::string> differences;
  bool complete = false;
};

int fail_replay(const Error& error) {
  fmt::print(stderr, "carillon replay: {}\n", error.message);
  return exit_failure;
}

Result<> read(const ReplayArguments& arguments, Recorded& recorded, std::optional<simulate::FromLog>& rebuilt,
              std::string& scheduler) {
  auto reader = schedule::log::LogReader::open(arguments.log);
  if (!reader) return std::unexpected(reader.error());
  scheduler = reader->scheduler();
  const bool compare = arguments.schedulers.empty();
  std::unique_ptr<schedule::Scheduler> core;
  if (compare) {
    auto made = schedule::make_scheduler(reader->scheduler(), reader->environment());
    if (!made) return in_context("the log's scheduler", made.error());
    core = std::move(*made);
  }
  rebuilt.emplace(arguments.log, reader->environment());
  struct Open {
    TimePoint arrival, deadline;
  };
  std::unordered_map<std::uint64_t, Open> open;
  std::unordered_map<std::uint64_t, std::vector<RequestId>> flights;
  std::unordered_set<std::uint64_t> refused;
  while (true) {
    auto next = reader->next();
    if (!next) return std::unexpected(next.error());
    if (!*next) break;
    const schedule::log::LoggedDecision& decision = **next;
    ++recorded.events;
    recorded.actions += decision.actions.size();
    rebuilt->add(decision.event, decision.now, decision.actions);
    if (const auto* arrival = std::get_if<schedule::RequestArrived>(&decision.event)) {
      const Request& r = arrival->request;
      // One that comes again was refused for its first deadline, and is delayed: the same request still.
      if (refused.erase(r.id.value) > 0)
        --recorded.refused;
      else
        ++recorded.requests;
      open[r.id.value] = {decision.now, r.deadline};
    } else if (const auto* gone = std::get_if<schedule::RequestCancelled>(&decision.event)) {
      recorded.cancelled += open.erase(gone->request.value);
    } else if (const auto* done = std::get_if<schedule::ActionDone>(&decision.event)) {
      const auto flight = flights.find(done->id.value);
      if (flight != flights.end()) {
        if (done->status == schedule::ActionStatus::success) {
          ++recorded.batches;
          recorded.batched += flight->second.size();
          for (const RequestId id : flight->second) {
            const auto request = open.find(id.value);
            if (request == open.end()) continue;
            ++(decision.now <= request->second.deadline ? recorded.on_time : recorded.late);
            recorded.latencies.push_back(decision.now - request->second.arrival);
            open.erase(request);
          }
        }
        flights.erase(flight);
      }
    }
    for (const schedule::Action& action : decision.actions) {
      if (const auto* infer = std::get_if<schedule::Infer>(&action)) {
        flights[infer->id.value] = infer->requests;
      } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
        const std::size_t erased = open.erase(refuse->request.value);
        recorded.refused += erased;
        if (erased > 0) refused.insert(refuse->request.value);
      }
    }
    // Where the log breaks off, nobody knows whether these are all of its actions.
    if (!compare || !decision.whole) continue;
    schedule::Actions actions;
    const TimePoint wake = core->decide(decision.event, decision.now, actions);
    if (actions == decision.actions && wake == decision.wake.value_or(wake)) continue;
    ++recorded.differing;
    if (recorded.differences.size() < shown_differences) {
      std::string text =
          fmt::format("event {} at {} ns:", recorded.events, decision.now.time_since_epoch().count());
      const auto line = [](const schedule::Actions& from, std::size_t i) {
        return i < from.size() ? schedule::log::to_line(from[i]) : "nothing";
      };
      for (std::size_t i = 0; i < std::max(actions.size(), decision.actions.size()); ++i)
        text += fmt::format("\n  recorded: {}\n  replayed: {}", line(decision.actions, i), line(actions, i));
      if (wake != decision.wake.value_or(wake))
        text += fmt::format("\n  recorded: wake at {}\n  replayed: wake at {}",
                            decision.wake->time_since_epoch().count(), wake.time_since_epoch().count());
      recorded.differences.push_back(std::move(text));
    }
  }
  recorded.open = open.size();
  recorded.complete = reader->complete();
  return {};
}

nlohmann::ordered_json recorded_json(Recorded& r, const std::string& scheduler) {
  nlohmann::ordered_json json;
  json["scheduler"] = scheduler;
  json["requests"] = r.requests;
  json["on_time"] = r.on_time;
  json["late"] = r.late;
  json["refused"] = r.refused;
  json["cancelled"] = r.cancelled;
  json["open"] = r.open;
  json["mean_batch"] = r.batches == 0 ? 0.0 : static_cast<double>(r.batched) / static_cast<double>(r.batches);
  json["p50_ms"] = to_ms(percentile(r.latencies, 0.5));
  json["p99_ms"] = to_ms(percentile(r.latencies, 0.99));
  return json;
}

nlohmann::ordered_json simulated_json(const simulate::Report& r) {
  nlohmann::ordered_json json;
  json["scheduler"] = r.scheduler;
  json["requests"] = r.offered;
  json["on_time"] = r.on_time;
  json["late"] = r.late;
  json["refused"] = r.refused;
  json["cancelled"] = r.cancelled;
  json["open"] = r.offered - r.on_time - r.late - r.refused - r.cancelled;
  json["mean_batch"] = r.mean_batch;
  json["p50_ms"] = r.p50_ms;
  json["p99_ms"] = r.p99_ms;
  return json;
}

int run_replay(const ReplayArguments& arguments) {
  for (const std::string& name : arguments.schedulers)
    if (const auto made = schedule::make_scheduler(name); !made) {
      fail_replay(made.error());
      return exit_usage;
    }
  Recorded recorded;
  std::optional<simulate::FromLog> rebuilt;
  std::string scheduler;
  if (const auto done = read(arguments, recorded, rebuilt, scheduler); !done)
    return fail_replay(done.error());
  if (!recorded.complete)
    fmt::print(stderr, "carillon replay: the log has no end: the process was killed, or still runs\n");
  nlohmann::ordered_json json;
  json["log"] = arguments.log;
  json["events"] = recorded.events;
  json["actions"] = recorded.actions;
  json["complete"] = recorded.complete;
  json["recorded"] = recorded_json(recorded, scheduler);
  if (arguments.schedulers.empty()) {
    json["differing_events"] = recorded.differing;
    json["differences"] = recorded.differences;
  } else {
    json["others"] = nlohmann::ordered_json::array();
    const workload::Scenario scenario = rebuilt->scenario();
    for (const std::string& name : arguments.schedulers) {
      const auto policy = *schedule::make_scheduler(name, rebuilt->environment(scenario));
      simulate::Figures figures = simulate::run(scenario, *policy);
      json["others"].push_back(simulated_json(simulate::make_report(scenario, name, figures)));
    }
  }
  if (arguments.json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}: {} events, {} actions\n", arguments.log, recorded.events, recorded.actions);
    fmt::print("{:<28}{:>9}{:>9}{:>7}{:>9}{:>10}{:>7}{:>8}{:>9}{:>9}\n", "", "requests", "on time", "late",
               "refused", "cancelled", "open", "batch", "p50 ms", "p99 ms");
    const auto row = [](const std::string& what, const nlohmann::ordered_json& r) {
      fmt::print("{:<28}{:>9}{:>9}{:>7}{:>9}{:>10}{:>7}{:>8.1f}{:>9.2f}{:>9.2f}\n", what,
                 r["requests"].get<std::uint64_t>(), r["on_time"].get<std::uint64_t>(),
                 r["late"].get<std::uint64_t>(), r["refused"].get<std::uint64_t>(),
                 r["cancelled"].get<std::uint64_t>(), r["open"].get<std::uint64_t>(),
                 r["mean_batch"].get<double>(), r["p50_ms"].get<double>(), r["p99_ms"].get<double>());
    };
    row(scheduler + " (recorded)", json["recorded"]);
    if (arguments.schedulers.empty()) {
      if (recorded.differing == 0) fmt::print("replayed: every decision is the same\n");
      for (const std::string& difference : recorded.differences) fmt::print("{}\n", difference);
      if (recorded.differing > 0) fmt::print("{} events are decided differently\n", recorded.differing);
    } else {
      for (const auto& other : json["others"])
        row(other["scheduler"].get<std::string>() + " (simulated)", other);
    }
  }
  return recorded.differing == 0 ? exit_success : exit_failure;
}

}  // namespace

void add_replay(CLI::App& program, int& status) {
  auto arguments = std::make_shared<ReplayArguments>();
  CLI::App& command = *program.add_subcommand(
      "replay", "Drives a scheduler from a log of 'serve --record' and says where it decides otherwise");
  command.add_option("LOG", arguments->log, "The log")->required();
  command.add_option(
      "--scheduler", arguments->schedulers,
      "What another policy would have done with the same arrivals (simulated); repeat for several");
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.footer(
      "Without --scheduler the recorded policy is driven anew, and every action compared; exit status 1 "
      "where one\n"
      "differs. With it, the log's arrivals, deadlines and devices are simulated, with the times that were "
      "measured\n"
      "(cancellations are left out; what happens between EXEC and the answer takes no time).\n"
      "Examples:\n"
      "  carillon serve --models ./models --record run.log\n"
      "  carillon replay run.log\n"
      "  carillon replay run.log --scheduler symphony --scheduler fcfs");
  command.callback([arguments, &status] { status = run_replay(*arguments); });
}

}  // namespace carillon::cli
