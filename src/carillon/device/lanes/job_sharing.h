#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/device/lanes/lanes.h"

// Which training jobs run on one device, and when: decided without a clock, a process or the device itself
// (Salus, sections 2.3 and 2.4). Events and the time go in, commands and the next wake-up come out. Live the
// broker drives it (share/), simulated simulate/jobs.h does.
namespace carillon::device {

// A far smaller weight would make virtual time so large that a quantum is lost in its rounding, and then who
// has least is not told from who has more: beside one of 1e-15 a job starved.
inline constexpr double least_job_weight = 1e-6, most_job_weight = 1000;

// What is known of a job when it comes.
struct JobSpec {
  std::optional<Bytes> persistent;  // what its needs are; without: found out (JobOptions::assumed)
  std::optional<Bytes> ephemeral;
  std::optional<Duration> remaining;  // device time that it takes alone, from now on
  double weight = 1;                  // of its share under fair: [least_job_weight, most_job_weight]
};

struct JobCame {
  JobId job;  // not here now; ids may come again once gone
  JobSpec spec;
};

// Iterations of a job that was granted its lane have ended. `stopped`: it is out of its lane and waits to be
// granted it again, as it was recalled or has nothing to do for a while; else it goes on. A job that was
// admitted says `stopped` with no iterations once it is ready for its first (`idle` where it has nothing to
// do yet): until then nobody waits for it. Live, jobs that nobody recalls tell of many at once.
struct IterationEnded {
  JobId job;
  bool stopped = false;
  bool idle = false;  // with `stopped`: it waits for something else first, and says so again when ready
  std::uint32_t iterations = 1;       // since it last told
  Duration busy{0};                   // what these took, without the time in which it was frozen or waited
  JobMemory memory;                   // persistent now; the most ephemeral of these iterations
  std::optional<Duration> remaining;  // what it says now, where it knows
};

struct JobGone {
  JobId job;
};

// A job cannot go on with less than `memory` in all: in the middle of an iteration, in its lane, or before
// its first. Answered in the same call: `open` (its lane, as large as that) or, where only persistent memory
// grew, nothing; else `evict`. Only who asks is ever evicted.
struct MemoryAsked {
  JobId job;
  JobMemory memory;
};

// Somebody who goes before all jobs wants the device: what runs is frozen where it is.
struct DeviceWanted {};
// Nobody does, and until `until` nobody will, as far as is known; max(): for good. As at the start.
struct DeviceFree {
  TimePoint until;
};

struct CapacityChanged {
  Bytes capacity;
};

// At the time that the last call returned.
struct JobWake {};

using JobEvent = std::variant<JobCame, IterationEnded, JobGone, MemoryAsked, DeviceWanted, DeviceFree,
                              CapacityChanged, JobWake>;

// Why a job is refused or evicted.
enum class JobReason : std::uint8_t {
  none,
  too_large,      // it does not fit the device even alone
  too_many,       // there are JobOptions::most_jobs
  no_memory,      // it grew to more than there is room for
  capacity_fell,  // the device's memory shrank below what it has
  hangs,          // it was recalled, and no iteration ended within JobOptions::hang_after
  bad_report      // it told what cannot be
};

std::string_view name_of(JobReason reason);

struct JobCommand {
  enum class Kind : std::uint8_t {
    admit,   // the job is in `lane` from now on, and holds its persistent memory; again, where it changes
             // lanes
    open,    // `lane` has `size`, and is at `offset`: new, or larger, or smaller (nobody runs in it, but for
             // who asked for memory). Before the first grant in it
    move,    // `lane`, in which nobody runs, is at `offset` now
    close,   // `lane`, in which nobody runs, has no memory any more, until it is opened again; its number may
             // come again, too
    grant,   // the job runs iterations in its lane until recalled
    recall,  // the job stops at the end of its iteration; then IterationEnded with `stopped`
    freeze,  // the job, granted or recalled, stands still where it is
    thaw,    // and goes on
    refuse,  // the job is not taken; it is gone. `fits`: what would have been
    evict    // the job is ended; it is gone, and its memory free
  };
  Kind kind{};
  JobId job;              // admit, grant, recall, freeze, thaw, refuse, evict
  LaneId lane = no_lane;  // admit, open, move, close, grant
  Bytes offset, size;     // open, move
  JobReason reason{};     // refuse, evict
  JobMemory fits;         // refuse, evict

  friend bool operator==(const JobCommand&, const JobCommand&) = default;
};
using JobCommands = std::vector<JobCommand>;

struct JobOptions {
  Bytes capacity;  // of the device, for jobs; above 0
  // What a job whose needs are not known is taken to need until it has told; a quarter and half of the
  // capacity at most.
  JobMemory assumed{mib(64), mib(256)};
  // fair, pack: how far the job of a lane that had most may be ahead of the one that had least before it is
  // recalled, in device time. 1 ms .. 1 h
  Duration quantum{std::chrono::milliseconds{20}};
  // best: who waited for so long, admitted or not, goes before all others, for one in `catch_up` of that
  // time. pack, fair: while the first in the queue waited for less, others for which there is room come in
  // before it. Above 0
  Duration longest_wait{std::chrono::hours{6}};
  int catch_up = 1000;  // 1 .. 1,000,000
  // best: several lanes at a time, where that is measured to pay.
  bool packs = true;
  // A job that is in its lane, not frozen, and tells of no iteration for so long, and for 20 times its
  // longest, hangs, where there are others: it is frozen, or evicted where `evict_hanging`; nobody else comes
  // into its lane meanwhile. Before its first has ended it has ten times as long. So whoever drives this must
  // tell of iterations now and then, also of jobs that nobody recalls. max(): nobody looks. 1 ms .. 1 day
  Duration hang_after{std::chrono::seconds{60}};
  bool evict_hanging = false;
  // Lanes are ranges of one memory, which must lie somewhere; else their sizes alone count (memory that is
  // mapped page by page). Persistent memory is one range, too, from the other end on, and
  // counts by its sum; it never reaches into a lane, though a gap lie before that.
  bool contiguous = true;
  std::size_t most_jobs = 65536;  // here at a time; one more is refused
};

// What a job is doing, for those who look.
enum class JobState : std::uint8_t {
  queued,    // for memory
  starting,  // admitted, and not ready for its first iteration
  waiting,   // for a grant
  running,
  recalled  // and not out of its lane yet
};
std::string_view name_of(JobState state);

struct JobView {
  JobId job;
  JobState state{};
  bool frozen = false;  // where it is
  bool hanging = false;
  LaneId lane = no_lane;
  JobMemory memory;                   // that is kept for it
  Duration attained{0};               // device time so far, of this grant as well
  std::optional<Duration> remaining;  // as far as known
  TimePoint came;
  std::uint64_t iterations = 0;
};

// Not thread-safe; `now` never goes back. Each call appends to `out` and returns when JobWake is wanted
// unless another event comes before; max() for never. What jobs say is not trusted: events of jobs that are
// not here are passed over (one may tell of an iteration while its eviction is under way), and so is what
// cannot be; a number that cannot be evicts its job. Device time is counted here, from grants, and not as
// jobs tell it. No call allocates on its usual path once as many jobs have been here.
class JobSharing {
 public:
  virtual ~JobSharing() = default;
  virtual TimePoint on(const JobEvent& event, TimePoint now, JobCommands& out) = 0;
  virtual std::vector<JobView> jobs(TimePoint now) const = 0;  // in the order in which they came
  // Who is granted a lane when `job`, which was recalled, comes out of its own, as far as can be told now.
  virtual std::optional<JobId> next_after(JobId job) const = 0;
  virtual const Lanes& lanes() const = 0;
};

// "fifo", "srtf", "pack", "fair", "best".
std::span<const std::string_view> job_policy_names();
// Errors: an unknown name (with the names), an option out of its range, a capacity of 0.
Result<std::unique_ptr<JobSharing>> make_job_sharing(std::string_view name, const JobOptions& options);

}  // namespace carillon::device
