#pragma once

#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/engine/engine.h"
#include "carillon/profile/profile.h"

namespace carillon::cli {

struct KernelTimesOptions {
  int threads = 1;   // kernels are timed on 1, 2, ... of them
  int repeats = 30;  // runs of each plan at each width, after one that warms up
  Duration at_most = std::chrono::seconds{2};  // for those of one plan at one width, but at least one run
};

// How long each kernel of each plan of `model` takes alone on the calling thread and helpers, on zeros; by
// length, then batch. A kernel that such a run passes over (of a branch, or against NaN) has the time 0.
// Errors: no memory or thread to be had, a kernel that fails.
Result<std::vector<profile::KernelTimes>> measure_kernels(engine::Engine& engine,
                                                          const engine::CompiledModel& model,
                                                          const KernelTimesOptions& options,
                                                          const Clock& clock);

}  // namespace carillon::cli
