#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::cli {

struct JobsLoad {
  std::vector<std::string> policies = {"all"};
  int jobs = 1000;               // here at a time; who ends is followed by another
  std::uint64_t events = 2'000'000;  // that the core is told; the first tenth is not measured
  std::uint64_t seed = 1;
  bool json = false;
};

// The core of jobs that share a device (device::JobSharing) by itself: virtual time, jobs of 5 to 50 ms an iteration
// that end after some hundred, needs of 10 to 80 MB and 50 to 400 MB on a device of 16 GB. What is measured is the
// whole loop, the benchmark's own queue of ends included. Prints a table, or one object. An exit status.
int bench_jobs(const JobsLoad& load);

}  // namespace carillon::cli
