#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "carillon/research/disb.h"

namespace carillon::research {

// What is told of a live run alone.
struct DisbLive {
  std::string device;                                    // for people
  int threads = 1;                                       // that run kernels
  double scale = 1;                                      // of the workload's rates
  double real_time_share = 0;                            // of the device, that open real-time clients ask for
  std::vector<std::pair<std::string, double>> alone_ms;  // of each model: a run with the device to itself
  bool interrupted = false;                              // it ended before its time
  double preemption_p90_us = 0, preemption_max_us = 0;
  struct Bin {
    double at_most_us = 0;  // and above the bin's before; 0 in the last: all above
    std::uint64_t count = 0;
  };
  std::vector<Bin> preemption_histogram;
  std::uint64_t paused_runs = 0;  // best-effort runs that made way for others, or were ended for them
  Duration paused{0};             // how long, in all
  // What these took longer, pauses apart, than their model's others at the median; nothing where some had no
  // such others.
  std::optional<Duration> lost = Duration{0};
  double late_p50_us = 0, late_p99_us = 0;  // from when a request was planned until it was sent
};

// What is told of a run of a DISB workload. Latencies are of requests answered before the end, rates per
// second of the run's length; both are 0 where nothing was answered.
struct DisbReport {
  struct Requests {
    std::uint64_t requests = 0, answered = 0, dropped = 0,
                  unfinished = 0;  // the last three make up the first
    double rps = 0;                // answered
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
  std::optional<DisbLive> live;
  std::vector<Duration> real_time_latencies;  // ascending
};

// `units`: of the device, at least 1.
DisbReport make_disb_report(std::string_view workload, std::string_view scheduler, std::uint64_t seed,
                            int units, DisbFigures figures);

// The fields of `carillon disb --json`. Only wall_s differs between equal simulated runs. Of a live run,
// utilization is what the process used of its cores, and models' times are runs' times the threads that they
// use: what was lost is estimated (DisbLive::lost), and `killed` counts runs that made way.
nlohmann::ordered_json to_json(const DisbReport& report);

// A line a run, each beside that of the scheduler "rt-only" where that is among them; of a single run a line
// a client, too. Runs are of one workload; at least one.
std::string to_table(std::span<const DisbReport> runs);

// One SVG: real-time latency, throughput, and the latencies' CDF, by scheduler. As above.
std::string to_svg(std::span<const DisbReport> runs);

}  // namespace carillon::research
