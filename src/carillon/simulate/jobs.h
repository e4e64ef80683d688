#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/device/lanes/job_sharing.h"
#include "carillon/workload/jobs.h"

// Training jobs on one device in virtual time, under the very objects that decide live
// (device/lanes/job_sharing.h).
//
// A job comes when its start-up is over, or starts up once it is admitted. Granted, it runs iteration after
// iteration, each for as long as it takes alone times the slowdown: jobs that run side by side, in lanes of
// their own, together take the sum of their utilizations of the device, and where that is above 1, each goes
// slower by it. Recalled, it stops at the end of its iteration, or at once where it has not begun one. One that has no
// request to answer is out of its lane until it has. Events
// of one instant are handled in the order: iterations that end, the device's own, jobs that come, iterations
// that begin, what the policy had planned. Same jobs, policy and seed: same bytes.
namespace carillon::simulate {

struct JobRunOptions {
  bool timeline = false;  // keep what plots draw
  Duration interval{0};   // above 0: iterations of each job in each such interval
  // Called now and then with the share of jobs that have ended; ends the run where it returns false.
  std::function<bool(double)> progress;
};

enum class JobOutcome : std::uint8_t { finished, refused, evicted, died, unfinished };
std::string_view name_of(JobOutcome outcome);

struct JobFigures {
  JobOutcome outcome = JobOutcome::unfinished;
  device::JobReason reason{};      // of refused and evicted
  device::JobMemory fits;          // of refused and evicted: what would have
  TimePoint came;                  // it could run its first iteration then, were nobody else there
  std::optional<TimePoint> began;  // its first iteration
  TimePoint ended;
  std::uint64_t iterations = 0;
  Duration device_time{0};   // of these iterations, alone
  Duration busy{0};          // they really took, but for what they were frozen
  Duration longest_wait{0};  // without an iteration, from when it came, while there was work
  std::uint64_t grants = 0;
  std::vector<Duration> latencies;  // of requests, where it has some: from arrival to answer
};

// What ran where, uninterrupted.
struct LaneStretch {
  std::uint32_t row = 0;  // of the lane, among those open at once
  std::uint32_t job = 0;  // place in Jobs::jobs
  TimePoint from, until;
};
struct MemorySample {  // from `at` on
  TimePoint at;
  Bytes persistent, ephemeral, capacity;
};
struct JobInterval {
  std::uint64_t interval = 0;  // number of it from the start
  std::uint32_t job = 0;
  std::uint32_t iterations = 0;
};

struct JobsFigures {
  std::vector<JobFigures> jobs;  // in the order of Jobs::jobs
  TimePoint first, last;         // the first arrival; the last end, of a job or an iteration
  Duration busy{0};              // at least one iteration ran
  Duration device_time{0};       // of all iterations that ended, alone
  std::uint64_t switches = 0;    // a lane went from one job to another
  std::uint64_t moves = 0, freezes = 0;
  std::uint64_t events = 0;  // told to the policy
  std::uint64_t most_lanes = 0;
  Bytes most_memory;
  std::vector<LaneStretch> stretches;  // by their ends
  std::vector<MemorySample> memory;
  std::vector<JobInterval> intervals;  // ascending
};

// The policy's options for these jobs: as the file has them.
device::JobOptions job_options(const workload::Jobs& jobs);

// Runs all jobs until they have ended, or as long as `jobs.length` says. `sharing` is new, of the device's
// capacity. Errors: it was stopped by `progress`; a policy that wants to be woken again and again at one
// instant.
Result<JobsFigures> run_jobs(const workload::Jobs& jobs, device::JobSharing& sharing,
                             const JobRunOptions& options = {});

}  // namespace carillon::simulate
