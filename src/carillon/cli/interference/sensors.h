#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/time.h"

namespace carillon::cli {

// What a machine tells of its processors while work runs: frequency (cpufreq), power (RAPL) and the use of
// the last-level cache (misses a second of this process, by the kernel's performance counters; threads that
// start between start() and stop() are counted where one that was there started them).
// What it does not tell is named in missing(), with the reason. Not thread-safe.
class CpuSensors {
 public:
  // `root` stands for "/" in tests; counters are the running kernel's.
  explicit CpuSensors(const std::filesystem::path& root = "/", bool counters = true);
  ~CpuSensors();
  CpuSensors(const CpuSensors&) = delete;
  CpuSensors& operator=(const CpuSensors&) = delete;

  std::optional<double> max_frequency_mhz() const { return max_frequency_; }
  std::optional<double> power_cap_w() const { return power_cap_; }
  const std::vector<std::string>& missing() const { return missing_; }

  // From here on, until stop().
  void start(TimePoint now);
  struct Reading {
    std::optional<double> power_w;        // mean of all packages
    std::optional<double> frequency_mhz;  // mean over processors, at stop(): sampled, not averaged over time
    std::optional<double> misses_per_second;
  };
  // `now` is later than start's.
  Reading stop(TimePoint now);

 private:
  struct Package {
    std::filesystem::path energy;  // microjoules, from 0 again after `range`
    double range = 0;
    double at_start = 0;
  };
  void find_frequency(const std::filesystem::path& root);
  void find_power(const std::filesystem::path& root);
  // One for each thread that there is now; an error number where that fails.
  int open_counters();
  void close_counters();
  std::optional<double> misses() const;

  std::vector<std::filesystem::path> frequencies_;  // kilohertz
  std::vector<Package> packages_;
  std::vector<int> counters_;
  std::optional<double> max_frequency_, power_cap_;
  std::vector<std::string> missing_;
  TimePoint started_;
  bool counts_ = false;
};

}  // namespace carillon::cli
