#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cli/load/client.h"
#include "carillon/cli/load/outcome.h"
#include "carillon/workload/arrivals.h"

namespace carillon::cli {

// One stream of requests.
struct Stream {
  std::string name;                // of its figures
  std::vector<Template> whats;     // of one model; each request is one of them, drawn by the run's seed
  workload::ArrivalSpec arrivals;  // open loop, or closed with a number of clients
  double rate = 0;                 // requests a second; unused by a closed loop
  Duration deadline{0};            // from the planned send time; zero: none
  std::optional<double> slo_ms;    // its model's own, by which the server goes where there is no other
};

struct RunOptions {
  Duration duration{0};
  Duration drain{0};  // how long to wait for answers after the last request
  std::uint64_t seed = 1;
  bool send_deadline = true;  // false: the server is not told (but answers are judged by it)
  Duration slack{0};          // kept back from the time-out that is sent, for the way back
  // With any, these are sent instead of what the streams' own processes give: when and for which stream,
  // ascending.
  std::vector<std::pair<Duration, std::uint32_t>> planned;
};

// Counts while it runs.
struct Progress {
  Duration elapsed{0};
  std::uint64_t sent = 0, on_time = 0, late = 0, refused = 0, failed = 0;
};

struct RunResult {
  std::vector<Answered> answers;          // one for each request that was sent, by planned time
  std::vector<std::string> first_errors;  // by stream; empty where none failed
  bool interrupted = false;
};

// Sends every stream's requests at their planned times, whether or not earlier ones have been answered, and
// waits for the answers. `progress` is called about ten times a second; it returns false to stop early.
// Blocks.
RunResult run_load(Client& client, const std::vector<Stream>& streams, const RunOptions& options,
                   const std::function<bool(const Progress&)>& progress);

}  // namespace carillon::cli
