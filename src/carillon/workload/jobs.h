#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/workload/arrivals.h"

// Training jobs that share one device, as a file describes them: docs/salus.md has the format.
namespace carillon::workload {

// From iteration `after` on (the first is 0), iterations take `factor` times what they took at the start.
struct JobDrift {
  std::uint64_t after = 0;
  double factor = 1;
};

// From iteration `after` on, iterations need `times` the ephemeral memory.
struct JobGrowth {
  std::uint64_t after = 0;
  double times = 1;
};

// A job whose iterations are answers to requests: between them it waits for the next.
struct JobRequests {
  ArrivalSpec process;
  double per_s = 1;
};

struct Job {
  std::string name;   // unique: copies are named name-0, name-1, ...
  std::string model;  // what it trains, for people; jobs of one model have one colour in plots
  TimePoint arrival;  // in the order of the jobs of a Jobs
  // The interpreter, the framework, its data: no device time. From its arrival until it comes to the device,
  // or, where it `starts_admitted`, from when it was admitted, so that its memory is kept meanwhile.
  Duration startup{0};
  bool starts_admitted = false;
  std::uint64_t iterations = 1;  // 1..1e9
  Duration iteration{1};         // alone on the device
  double noise = 0;              // each iteration takes 1 + noise * normal of it, a tenth of it at least
  std::vector<JobDrift> drift;   // ascending
  Bytes persistent, ephemeral;
  double weight = 1;
  // The share of the device that its iterations take when it is alone (docs/salus.md, co-location): (0, 1].
  double utilization = 1;
  // What the policy is told when the job comes, and of `remaining` from then on.
  bool tells_remaining = true, tells_memory = true;
  double remaining_factor = 1;  // times what is true
  std::optional<JobRequests> requests;
  // What goes wrong, after so many iterations, in the middle of the next.
  std::optional<std::uint64_t> dies_after, hangs_after;
  std::optional<JobGrowth> grows;
};

struct CapacityStep {
  TimePoint at;
  Bytes memory;
};
struct WantedInterval {
  TimePoint from, until;  // from < until; ascending, apart from one another
};
// Somebody goes before all jobs again and again: gaps and uses are exponential by the seed, or all the same.
struct WantedProcess {
  Duration gap, use;
  bool regular = false;
};

struct JobsDevice {
  Bytes memory;
  std::vector<CapacityStep> capacity;  // ascending
  std::vector<WantedInterval> wanted;
  std::optional<WantedProcess> busy;  // instead of `wanted`
  bool foretold = false;              // whoever decides is told, as the device is free again, until when
  Duration switching{from_ns(3000)};  // before the first iteration of a job whose lane another had before
};

// What a file sets of the policy's options (device::JobOptions); the rest is as there.
struct JobPolicyOptions {
  std::optional<Duration> quantum, longest_wait, hang_after;
  std::optional<bool> evict_hanging, packs;
  std::optional<int> catch_up;
  std::optional<Bytes> assumed_persistent, assumed_ephemeral;
};

struct Jobs {
  std::string name;
  std::uint64_t seed = 1;
  std::string scheduler = "best";
  std::optional<Duration> length;  // the run ends there, whatever is unfinished; none: as all jobs have ended
  JobsDevice device;
  JobPolicyOptions policy;
  std::vector<Job> jobs;  // by arrival, then as the file has them; copies, rows and traces written out
};

// Whether a TOML file has [[jobs]], and so is for read_jobs. False for what cannot be read as TOML at all:
// read_scenario says what is wrong with it.
bool has_jobs(const std::filesystem::path& file);

// Reads such a file. Paths inside are relative to it. Errors name file, line, key, what was found and what
// would be right. At most 100,000 jobs, and a billion iterations of all of them. What is drawn (rows,
// durations, arrivals) goes by the seed, each [[jobs]] by a generator of its own.
Result<Jobs> read_jobs(const std::filesystem::path& file, std::optional<std::uint64_t> seed = {});
Result<Jobs> parse_jobs(std::string_view toml, const std::filesystem::path& where,
                        std::optional<std::uint64_t> seed = {});

}  // namespace carillon::workload
