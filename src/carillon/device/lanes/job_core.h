#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/base/index_table.h"
#include "carillon/base/slab.h"
#include "carillon/device/lanes/job_heap.h"
#include "carillon/device/lanes/job_sharing.h"
#include "carillon/device/lanes/lanes.h"

namespace carillon::device {

// Of two that are not negative; jobs say how long they take.
constexpr Duration saturated(Duration a, Duration b) {
  return a > Duration::max() - b ? Duration::max() : a + b;
}

// What all policies have in common: the book of jobs and what they take, memory, lanes, freezing, hanging
// jobs, time. A policy says who is admitted next, who goes first in a lane, and for how long who is in it may
// go on.
class JobCore : public JobSharing {
 public:
  TimePoint on(const JobEvent& event, TimePoint now, JobCommands& out) final;
  std::vector<JobView> jobs(TimePoint now) const final;
  std::optional<JobId> next_after(JobId job) const final;
  const Lanes& lanes() const final { return lanes_; }

 protected:
  using Index = std::uint32_t;  // of a job
  static constexpr Index nobody = 0xffffffffU;
  // Who goes first: the smaller; of equal ones who came first.
  using Key = std::pair<double, std::uint64_t>;

  struct Job {
    JobId id;
    JobState state{};
    bool frozen = false;
    bool hanging = false;
    bool overdue = false;       // it waited for too long (best)
    Duration had{0};            // what it had attained when it was granted (best)
    bool idle = false;          // starting, and told so: it waits for something else than the device
    bool knows_memory = false;  // it said what it needs
    LaneId lane = no_lane;
    double weight = 1;
    std::uint64_t order = 0;     // in which jobs came
    std::uint64_t admitted = 0;  // in which they were admitted
    JobMemory memory;            // that is kept for it
    Bytes most_ephemeral;        // told so far
    TimePoint came, waits_since, granted_at;
    TimePoint heard_at;              // or granted, or thawed
    TimePoint counted;               // up to here `attained` goes, where it runs
    Duration attained{0};            // device time
    Duration progress{0};            // the same, by what it had done in it alone (`rate`)
    double rate = 1;                 // beside those that it runs with now, of what it does alone
    std::optional<Duration> in_all;  // its progress at its end, as far as known
    Duration longest{0};             // of its iterations
    std::uint64_t iterations = 0;
    // Device time by weight, from where the others were when it came (fair): `virtual_from`, and what it
    // attained since `virtual_since`. Summed up bit by bit, what a heavy one attains would be lost beside
    // what a light one had before.
    double virtual_time = 0, virtual_from = 0;
    Duration virtual_since{0};
    // Of best: what an iteration takes alone, and in the set that runs.
    Duration alone{0}, beside{0};
    std::uint32_t alone_seen = 0, beside_seen = 0;
    std::uint64_t set = 0;       // of which it told last
    std::uint64_t alone_at = 0;  // iterations when `alone` was measured last
    TimePoint next_try;          // as a companion
    int failed_tries = 0;
  };

  explicit JobCore(const JobOptions& options);

  // --- What a policy says
  virtual bool one_lane() const { return false; }                    // all jobs share one; else Algorithm 2.1
  virtual Key turn(const Job& job) const { return {0, job.order}; }  // of those that are queued
  virtual bool admits(const Job& first) const = 0;  // who has the next turn, where there is room
  virtual bool overtakes() const { return false; }  // where there is no room for that one, others are tried
  virtual Key rank(const Job& job) const { return {0, job.order}; }  // of those that wait for a grant
  // How long who is in a lane may go on while `next` waits; max(): to its end.
  virtual Duration slice(const Job& inside, const Job& next) const = 0;
  // Who goes in when `leaves` comes out.
  virtual Index follower(const Job& leaves) const {
    const auto& heap = waiting(leaves.lane);
    return heap.empty() ? nobody : heap.top();
  }
  virtual void became_ready(Job&) {}  // for its first iteration, or after it was idle
  virtual void changed_lanes(Job&) {}
  virtual void granted(Job&) {}
  virtual void resumed(Job&) {}  // it runs on after it was frozen: what it was timed for is forgotten
  virtual void ended_iterations(Job&, const IterationEnded&) {}
  virtual void left(Index) {}  // it is about to be gone
  virtual TimePoint waiting_timer(const Job&) const { return TimePoint::max(); }
  virtual bool timer_rang(Index) { return false; }  // of one that waits, or runs; true: dealt with
  // Who runs now; by default each lane by itself, where something changed.
  virtual void settle(JobCommands& out);

  // --- What there is for it
  std::optional<Index> find(JobId job) const;
  Job& job(Index index) { return jobs_[index]; }
  const Job& job(Index index) const { return jobs_[index]; }
  Index inside(LaneId lane) const { return lane.index() < inside_.size() ? inside_[lane.index()] : nobody; }
  static bool is_inside(const Job& job) {
    return job.state == JobState::running || job.state == JobState::recalled;
  }
  JobHeap<Key>& waiting(LaneId lane) { return waiting_[one_lane() ? 0 : lane.index()]; }
  const JobHeap<Key>& waiting(LaneId lane) const { return waiting_[one_lane() ? 0 : lane.index()]; }
  void rerank(Index index);  // of one that waits or is queued
  const JobHeap<Key>& queue() const { return queue_; }
  template <typename Each>
  void each(Each&& each) const {
    for (Index i = 0; i < jobs_.size(); ++i)
      if (find(jobs_[i].id) == i) each(jobs_[i]);
  }
  // In lanes, but for those that hang.
  template <typename Each>
  void each_inside(Each&& each) const {
    for (const Index index : inside_)
      if (index != nobody && !jobs_[index].hanging) each(index);
  }
  template <typename Each>
  void each_admitted(Each&& each) const {
    for (Index i = 0; i < jobs_.size(); ++i)
      if (find(jobs_[i].id) == i && jobs_[i].state != JobState::queued) each(jobs_[i]);
  }
  std::size_t here() const { return jobs_.used(); }
  std::size_t admitted() const { return jobs_.used() - queue_.size(); }
  // Of one that waits; its lane is free. False where its lane has no place yet.
  bool grant(Index index, JobCommands& out);
  void recall(Index index, JobCommands& out);
  void set_timer(Index index, TimePoint at);
  // Of one that runs: at `at`, or when it is time to ask whether it hangs.
  void time_running(Index index, TimePoint at);
  void move(Index index, const LanePlace& place, JobCommands& out);  // of one that is in no lane now
  void admit_again() { may_admit_ = true; }
  void touch(LaneId lane);
  // Lanes that nobody is in become as small as they may.
  void fit_idle(JobCommands& out);
  Duration attained(const Job& job) const;
  std::optional<Duration> remaining(const Job& job) const;
  void set_rate(Job& job, double rate) {
    count(job);
    job.rate = rate;
  }
  bool wanted() const { return wanted_; }
  Lanes& ledger() { return lanes_; }
  const JobOptions& options() const { return options_; }
  TimePoint time() const { return now_; }  // of the event that is handled

 private:
  void heard(const JobCame& came, JobCommands& out);
  void heard(const IterationEnded& ended, JobCommands& out);
  void heard(const JobGone& gone, JobCommands& out);
  void heard(const MemoryAsked& asked, JobCommands& out);
  void heard(const DeviceWanted&, JobCommands& out);
  void heard(const DeviceFree&, JobCommands& out);
  void heard(const CapacityChanged& changed, JobCommands& out);
  void heard(const JobWake&, JobCommands& out);

  void admit_all(JobCommands& out);
  bool try_admit(Index index, JobCommands& out);
  bool waits_for_knowledge(const Job& job) const;
  std::optional<LanePlace> place_for(JobMemory needs) const;
  void reconcile(LaneId lane, JobCommands& out);
  bool learn_memory(Job& job, JobMemory told, JobCommands& out);
  void straighten(JobCommands& out);
  void tell_lane(LaneId lane, JobCommands& out);
  void come_out(Index index, JobCommands& out);
  Index first_free(const JobHeap<Key>& heap) const;
  void count(Job& job);
  void freeze(Index index, JobCommands& out);
  void thaw(Index index, JobCommands& out);
  void hangs(Index index, JobCommands& out);
  void leave_sealed(JobCommands& out);
  void evict(Index index, JobReason reason, JobMemory fits, JobCommands& out);
  void remove(Index index, JobCommands& out);
  void refuse(JobId job, JobReason reason, JobMemory fits, JobCommands& out);
  TimePoint hangs_at(const Job& job) const;
  bool pinned(LaneId lane) const { return inside(lane) != nobody; }
  // In a contiguous memory. Tells the ledger where lanes end that somebody is in, but for `leaving`.
  void mark_edge(LaneId leaving = no_lane);
  // Lanes that nobody is in make way for persistent memory.
  void make_way(JobCommands& out);
  // Those that run beyond a gap come out, for the sake of one that only the gap keeps from coming in.
  void close_gaps(JobCommands& out);

  JobOptions options_;
  Lanes lanes_;
  Slab<Job> jobs_;
  IndexTable table_;
  JobHeap<Key>::Places places_;  // of queued and waiting ones
  JobHeap<Key> queue_;
  std::vector<JobHeap<Key>> waiting_;  // by lane, or one for all
  JobHeap<TimePoint>::Places timer_places_;
  JobHeap<TimePoint> timers_;
  std::vector<Index> inside_;                    // by lane
  std::vector<std::optional<Bytes>> told_size_;  // by lane: what `open` said last
  std::vector<LaneId> touched_;
  std::vector<Index> scratch_;
  std::uint64_t next_order_ = 0, next_admitted_ = 0;
  Index unlearnt_ =
      nobody;  // the last admitted of those that did not say what they need, until it has shown it
  bool wanted_ = false;
  bool may_admit_ = false;
  bool sealed_ = false;  // there may be lanes that only hanging jobs should be in
  // A job could come in but for a gap between lanes: until it is closed nobody is granted a lane behind it.
  bool closing_gaps_ = false;
  bool closed_in_vain_ = false;  // and no job has gone since
  TimePoint now_ = TimePoint::min();
};

}  // namespace carillon::device
