#pragma once

#include <functional>
#include <memory>

#include "carillon/simulate/report.h"

namespace carillon::simulate {

struct GoodputOptions {
  double precision = 0.005;  // the search ends when the bracket is this narrow, relative to its lower end
  double on_time_share =
      0.99;      // of each model's requests: its p99 is within its SLO, refusals counted as never
  int jobs = 1;  // runs at a time
  // Called after each run with its rate and whether it passed, and with the bracket so far; false ends the
  // search.
  std::function<bool(double rate, bool passed, double low, double high)> progress;
};

struct Goodput {
  double rate = 0;  // the highest that passed; 0 where none did
  Report report;    // the run at that rate
  int runs = 0;
  bool interrupted = false;
  // The fewest requests of a model in that run; with n of them a share of 99% has a standard error of
  // 0.1/sqrt(n).
  std::uint64_t fewest_requests = 0;
};

// The highest total rate at which every model has `on_time_share` of its requests answered on time (Symphony,
// section 2.1), by bracketing and then cutting the bracket into jobs + 1 parts at a time. A policy whose
// finish rate is not monotonic in the rate has no single answer: what is found is a rate that passes below
// one that does not. `make` gives a fresh scheduler for each run, and is called from several threads.
Goodput find_goodput(const workload::Scenario& scenario,
                     const std::function<std::unique_ptr<schedule::Scheduler>()>& make,
                     std::string_view scheduler, const GoodputOptions& options = {});

}  // namespace carillon::simulate
