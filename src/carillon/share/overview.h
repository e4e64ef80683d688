#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/statistics.h"
#include "carillon/base/time.h"
#include "carillon/device/lanes/job_sharing.h"

// What a broker's jobs do, for people and machines that look.
namespace carillon::share {

struct JobLine {
  device::JobView view;  // `attained` and `iterations` with what it had run under another broker
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  std::string name;
  double weight = 1;
  double share = 0;  // of the last seconds, in which it held the device
  Duration here{0};  // since it came
};

// Why a job is no more here. `job_reasons` of them are evictions by device::JobReason.
inline constexpr std::size_t job_reasons = 7;

// Counted since the broker's start.
struct Totals {
  std::uint64_t came = 0, again = 0, refused = 0, ended = 0, lost = 0;
  std::array<std::uint64_t, job_reasons> evicted{};
  std::uint64_t grants = 0, recalls = 0, freezes = 0, thaws = 0, killed = 0;
  std::uint64_t bad_packets = 0, turned_away = 0;
  LatencyHistogram hand_over;   // from the packet that says that a lane is free until the next job has it
  LatencyHistogram until_stop;  // from a recall until the job is out of its lane
  LatencyHistogram freezing;    // one job and all its processes
};

struct LaneLine {
  device::LaneId id;
  Bytes size;
  bool sealed = false;  // who is in it hangs
  std::vector<device::JobId> jobs;
};

struct Overview {
  std::string policy;
  Bytes capacity, persistent, ephemeral;
  bool device_wanted = false;
  std::vector<JobLine> jobs;
  std::vector<LaneLine> lanes;
  Totals totals;
};

// For whoever runs the job.
std::string in_words(device::JobReason reason, const device::JobMemory& fits);

// One JSON object: `carillon jobs --json`.
std::string to_json(const Overview& overview);
// Prometheus' text format, names carillon_share_*.
std::string metrics_text(const Overview& overview);

}  // namespace carillon::share
