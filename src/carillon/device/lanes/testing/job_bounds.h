#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "carillon/device/lanes/job_sharing.h"

namespace carillon::device::testing {

// Holds a policy to what it promises of waiting (lanes/README.md), from events and commands alone. Device
// time counts from a grant to the report that ends it, without what was frozen.
//   fifo        one is in at a time; who comes in came first of those that wait
//   srtf        who is granted has the least left of those that could be
//   fair, pack  nobody comes in past the first in the queue once that one has waited for longest_wait; of two
//               that share a lane (fair: the device) and have something to do all the while, neither gains on
//               the other more than two quanta and what both ran on after a recall, by weight
//   best        nobody comes in past one that has waited for longest_wait, but one that came before it and
//   has,
//               too; of those that have, the first is granted a lane after a few iterations
class JobBounds {
 public:
  JobBounds(std::string policy, const JobOptions& options) : policy_(std::move(policy)), options_(options) {}

  // In turn. The first bound that is broken, or nothing.
  std::optional<std::string> heard(const JobEvent& event, TimePoint now);
  std::optional<std::string> said(const JobCommands& commands);
  // Jobs hang, or reports are lost: nobody knows when a boundary comes, and neither gains nor
  // the time that best takes are bounded.
  void boundaries_may_lack() { boundaries_lack_ = true; }

 private:
  struct Job {
    std::uint64_t order = 0;
    TimePoint waits_since;
    LaneId lane = no_lane;
    bool ready = false, inside = false, recalled = false, frozen = false, hanging = false;
    bool excused = false;  // it hung, or one in its lane did: it may be behind, and catches up
    double weight = 1;
    Duration had{0}, after_recall{0}, most_after_recall{0}, since_told{0}, longest{0};
    std::optional<Duration> in_all;
  };
  struct Pair {
    double start = 0, least = 0, most = 0;  // by how much the first is ahead
  };

  std::optional<std::string> obeyed(const JobCommand& command);
  std::optional<std::string> comes_in(std::uint32_t id) const;
  std::optional<std::string> is_granted(std::uint32_t id) const;
  std::optional<std::string> gains();
  std::optional<std::string> waits_too_long();
  bool could_run(const Job& job) const;  // ready, and its lane is free but for one that will leave it
  bool shares(const Job& a, const Job& b) const { return policy_ == "fair" || a.lane == b.lane; }
  static Duration left(const Job& job) {
    return job.in_all ? std::max(Duration{0}, *job.in_all - job.had) : Duration::max();
  }
  void pass(TimePoint now);
  void forget_pairs(std::uint32_t id);

  std::string policy_;
  JobOptions options_;
  TimePoint now_{};
  bool wanted_ = false, boundaries_lack_ = false, any_hangs_ = false;
  std::uint64_t next_order_ = 0;
  std::map<std::uint32_t, Job> jobs_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Pair> pairs_;
  // best: who is the first of those that waited for too long, and for how long it is that and is not granted.
  std::optional<std::uint32_t> head_;
  Duration head_waits_{0}, longest_{0};
};

}  // namespace carillon::device::testing
