#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/cli/disb/local_worker.h"
#include "carillon/research/disb_report.h"
#include "carillon/workload/disb.h"

namespace carillon::cli {

struct LiveOptions {
  std::uint64_t seed = 1;   // of Poisson arrivals and of inputs
  bool best_effort = true;  // false: best-effort clients send nothing
  // Called some times a second with the part that is done; ends the run where it returns false.
  std::function<bool(double done)> progress;
};

// A request that ran to its end, or as far as it came by the end of the run.
struct LiveRequest {
  std::size_t client = 0;
  TimePoint planned;
  worker::ActionTimes times;
};

// What was seen of one run of a workload, before anything is made of it.
struct LiveRun {
  TimePoint start;
  Duration length{0};        // as long as it was to be, or until it was interrupted
  bool interrupted = false;  // `progress` ended it
  struct Client {
    std::uint64_t requests = 0, dropped = 0, unfinished = 0;
  };
  std::vector<Client> clients;        // by their places in the workload
  std::vector<LiveRequest> requests;  // answered with success before the end, in that order
  std::vector<Duration> late;  // from when a request was planned until it was sent, where none was under way
  Duration cpu{0};             // of the process
};

// Runs the workload's clients against `local`, which has loaded what they run: model_of[i] is client i's.
// Real-time requests go in the order of their planned arrivals, others in that of their submission. Blocks
// for the workload's length, and until all that is under way has ended, which it is made to. Sends from the
// calling thread, answers of closed loops from the worker's. Errors: a request that fails, and nothing that
// answers for a minute after the end.
Result<LiveRun> run_live(const workload::DisbWorkload& workload, std::span<const std::size_t> model_of,
                         LocalWorker& local, const Clock& clock, const LiveOptions& options);

// What the device is to the figures.
struct LiveDevice {
  int units = 1;              // threads that run kernels
  int real_time_width = 1;    // threads of a real-time run
  int best_effort_width = 1;  // of a best-effort one
};

// The figures of a run, as a simulated one has them, and those that only a live one has: preemptions (from a
// real-time request's submission, where a best-effort run was on the device and no real-time request was
// there before it, to the start of its first kernel), and what they cost best-effort runs.
struct LiveFigures {
  research::DisbFigures figures;
  research::DisbLive live;
};
LiveFigures figures_of(const workload::DisbWorkload& workload, std::span<const std::string> model_names,
                       std::span<const std::size_t> model_of, const LiveDevice& device, LiveRun run);

}  // namespace carillon::cli
