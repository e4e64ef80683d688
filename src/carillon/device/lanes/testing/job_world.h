#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "carillon/device/lanes/job_sharing.h"

namespace carillon::device::testing {

// A job as it is, which the sharing may not know.
struct WorldJob {
  TimePoint comes;
  Duration startup{0};
  int iterations = 1;
  Duration iteration{0};  // alone
  double demand = 1;      // of the device, where it runs alone; (0, 1]
  JobMemory memory;
  bool says_memory = true, says_remaining = true;
  double weight = 1;
  // Faults: before the iteration of that number.
  std::optional<int> dies_at, hangs_at, grows_at;
  JobMemory grows_to;
};

struct WorldOptions {
  JobOptions sharing;
  std::string policy = "fifo";
  // When the device is wanted, and free again, by turns, from the first on.
  std::vector<TimePoint> wanted;
  std::vector<std::pair<TimePoint, Bytes>> capacities;
  Duration switch_cost{0};  // from a grant to the first kernel
  // Reports come late, out of order and twice, and from jobs that are not here, as this seed has it.
  std::optional<std::uint64_t> mangled;
  // Besides, some that a job is out of its lane are lost.
  bool loses = false;
};

// What became of a job.
struct WorldEnd {
  TimePoint at = TimePoint::max();  // max(): it did not end
  bool finished = false;            // else refused, evicted or dead
  JobReason reason{};
  Duration held{0};  // of the device
  TimePoint first_ran = TimePoint::max();
};

struct WorldFigures {
  std::vector<WorldEnd> jobs;
  TimePoint end;
  std::uint64_t events = 0;
  std::size_t lost = 0;               // reports
  std::optional<std::string> broken;  // a promise
};

// Jobs on a device in virtual time, under the sharing that is tested and the eyes of a JobChecker and of
// JobBounds. Those that run side by side are slowed alike, by the sum of their demands where that is more
// than one. Ends when nothing is left to happen, or at `until`.
WorldFigures run_world(const std::vector<WorldJob>& jobs, const WorldOptions& options,
                       TimePoint until = TimePoint::max());

}  // namespace carillon::device::testing
