#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/time.h"

namespace carillon {

// How many processors this process may keep busy, and what says so. Linux tells it in two places: the set of
// processors that the process may run on (taskset, cpuset), and the time per period that its control groups
// grant (cpu.max of version 2, cpu.cfs_quota_us and cpu.cfs_period_us of version 1). The number of processors
// that the machine has says nothing of either.
struct ProcessorLimits {
  int allowed = 1;              // that the process may run on, >= 1
  std::optional<double> quota;  // processors' worth of time, > 0; the least of the group and all above it
  std::string quota_file;       // that sets it

  // As many threads as can run all the time: at least 1.
  int usable() const;
  friend bool operator==(const ProcessorLimits&, const ProcessorLimits&) = default;
};

// For people: "2 processors may be used (a quota of 1.5 in FILE; the process may run on 8)".
std::string to_text(const ProcessorLimits& limits);

// The texts of the files. What is no number, or makes no sense, counts as no quota.
// `cpu_max`: "QUOTA PERIOD" in microseconds, or "max PERIOD".
std::optional<double> quota_of(std::string_view cpu_max);
// `quota` in microseconds, -1 for none; `period` in microseconds.
std::optional<double> quota_of(std::string_view quota, std::string_view period);

// Those that the process's first thread may run on, ascending: threads that are pinned know only their own.
// Empty where the system does not tell.
std::vector<int> allowed_processors();

// Reads them. `root`: in place of "/" for files; `allowed`: in place of asking the system, where it is not 0.
// Costs some tens of microseconds.
ProcessorLimits processor_limits(const std::filesystem::path& root = "/", int allowed = 0);

// processor_limits().usable().
int usable_processors();

// Of the text of /proc/stat: how long the processors `of` together had nothing to do since the machine
// started. Nothing where it tells of fewer than these.
std::optional<Duration> idle_time(std::string_view proc_stat, const std::vector<int>& of);

// How many of the processors that the process may run on others keep busy: other processes, and other
// machines on the same host as far as the system tells (steal). Not thread-safe.
class OthersUse {
 public:
  // What the system shows at one time.
  struct Times {
    Duration wall{0};
    std::optional<Duration> idle;  // of the processors together; nothing where the system does not tell
    Duration own{0};               // this process's CPU time
    std::vector<int> processors;   // that the process may run on
  };

  // Since the last look, in processors: from 0 to as many as there are. Ticks are 10 ms, so looks should lie
  // half a second apart or more. 0 at the first look, where the processors are others than before, and where
  // /proc/stat cannot be read. `of`: what allowed_processors() gave.
  double look(std::vector<int> of);
  // The same with times that the caller read.
  double look(Times now);

 private:
  std::optional<Times> before_;
};

// The number as it was when somebody looked last; whoever goes by it reads it from any thread.
class UsableProcessors {
 public:
  UsableProcessors() : UsableProcessors(processor_limits()) {}
  explicit UsableProcessors(ProcessorLimits limits)
      : limits_(std::move(limits)), free_(limits_.allowed), now_(limits_.usable()) {}

  int now() const { return now_.load(std::memory_order_relaxed); }
  // As they were found last. Of the thread that looks.
  const ProcessorLimits& limits() const { return limits_; }
  // Of those that the process may run on, so many are free of others' work: at least 0.
  double free() const { return free_.load(std::memory_order_relaxed); }
  // Looks again; true where the number is another. One thread's. See OthersUse for how often.
  bool look();
  // The same with what somebody else found.
  bool set(ProcessorLimits limits, double taken_by_others = 0);

 private:
  ProcessorLimits limits_;
  OthersUse others_;
  std::atomic<double> free_;
  std::atomic<int> now_;
};

}  // namespace carillon
