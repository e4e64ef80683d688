#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "carillon/device/lanes/job_sharing.h"

namespace carillon::device::testing {

// Holds a JobSharing to what it promises, from what it is told and what it says alone: each lane has one job
// in it at most, who was admitted to it and is ready; equation 2.1; lanes of a contiguous memory do not
// overlap, and persistent memory is in none; nobody runs while the device is wanted; freezes and thaws
// alternate; each job is refused or evicted once at most, and nothing is said of those that are gone.
class JobChecker {
 public:
  explicit JobChecker(const JobOptions& options) : options_(options), capacity_(options.capacity) {}

  // In turn: what the sharing hears, and what it said to that. The first promise broken, or nothing.
  std::optional<std::string> heard(const JobEvent& event);
  std::optional<std::string> said(const JobCommands& commands);

  struct Job {
    JobMemory needs;     // as far as it was told
    bool knows = false;  // it said them when it came: it keeps that much
    LaneId lane = no_lane;
    bool ready = false, inside = false, recalled = false, frozen = false;
  };
  struct LaneAccount {
    std::optional<Bytes> size;
    Bytes offset;
    std::size_t jobs = 0;
    std::optional<JobId> inside;
  };
  const std::map<std::uint32_t, Job>& jobs() const { return jobs_; }
  std::size_t ended() const { return ended_; }

 private:
  std::optional<std::string> said(const JobCommand& command);
  std::optional<std::string> memory() const;
  void leave(std::uint32_t id);

  JobOptions options_;
  Bytes capacity_;
  std::map<std::uint32_t, Job> jobs_;
  std::map<std::uint32_t, LaneAccount> lanes_;
  bool wanted_ = false;
  std::size_t ended_ = 0;
};

}  // namespace carillon::device::testing
