#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "carillon/simulate/disb.h"

namespace carillon::simulate {

// What is told of a run of a DISB workload. Latencies are of requests answered before the end, rates per
// second of the run's length; both are 0 where nothing was answered.
struct DisbReport {
  struct Requests {
    std::uint64_t requests = 0, answered = 0, dropped = 0;
    double rps = 0;  // answered
    double mean_ms = 0, p50_ms = 0, p99_ms = 0, p999_ms = 0;
  };
  struct Client {
    std::string name, model;
    Class cls{};
    Requests requests;
  };
  std::string workload, scheduler;
  std::uint64_t seed = 0;
  double seconds = 0;
  double total_rps = 0;
  std::uint64_t preemptions = 0;
  double preemption_p50_us = 0, preemption_p99_us = 0;
  Requests real_time, best_effort;
  std::vector<Client> clients;
  std::vector<DisbModelFigures> models;
  double utilization = 0;  // of the units' time, what was in use: 0..1
  double wall_s = 0;
  std::vector<Duration> real_time_latencies;  // ascending
};

// `units`: of the device, at least 1.
DisbReport make_disb_report(std::string_view workload, std::string_view scheduler, std::uint64_t seed,
                            int units, DisbFigures figures);

// The fields of `carillon disb --json`. Only wall_s differs between equal runs.
nlohmann::ordered_json to_json(const DisbReport& report);

// A line a run, each beside that of the scheduler "rt-only" where that is among them; of a single run a line
// a client, too. Runs are of one workload; at least one.
std::string to_table(std::span<const DisbReport> runs);

// One SVG: real-time latency, throughput, and the latencies' CDF, by scheduler. As above.
std::string to_svg(std::span<const DisbReport> runs);

}  // namespace carillon::simulate
