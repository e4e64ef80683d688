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

// What is known of a job when it comes.
struct JobSpec {
  std::optional<Bytes> persistent;    // what its needs are; without: found out (JobOptions::assumed)
  std::optional<Bytes> ephemeral;
  std::optional<Duration> remaining;  // device time that it takes alone, from now on
  double weight = 1;                  // of its share under fair: (0, 1000]
};

struct JobCame {
  JobId job;  // not here now; ids may come again once gone
  JobSpec spec;
};

// Iterations of a job that was granted its lane have ended. Where it was recalled, `stopped` says that it is
// out of its lane; else it goes on in it. Live, jobs that nobody recalls tell of many at once.
struct IterationEnded {
  JobId job;
  bool stopped = false;
  std::uint32_t iterations = 1;  // since it last told; 0 where it stopped before its first ended
  Duration busy{0};              // what these took, without the time in which it was frozen or waited
  JobMemory memory;              // persistent now; the most ephemeral of these iterations
  std::optional<Duration> remaining;  // what it says now, where it knows
};

struct JobGone {
  JobId job;
};

// A job that holds its lane, in the middle of an iteration, cannot go on with less than `memory` in all.
// Answered in the same call: `open` (its lane, larger), or `evict`.
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
  no_memory,      // it grew to more than there is room for
  capacity_fell,  // the device's memory shrank below what it has
  hangs,          // it was recalled, and no iteration ended within JobOptions::hang_after
  bad_report      // it told what cannot be
};

struct JobCommand {
  enum class Kind : std::uint8_t {
    admit,   // the job is in `lane` from now on; it holds its persistent memory, and waits for a grant
    open,    // `lane` is at `offset` and has `size`: new, or larger, or smaller (nobody runs in it, but for who
             // asked for memory)
    move,    // `lane`, in which nobody runs, is at `offset` now
    close,   // `lane` is no more
    grant,   // the job runs iterations in its lane until recalled
    recall,  // the job stops at the end of its iteration; then IterationEnded with `stopped`
    freeze,  // the job, granted or recalled, stands still where it is
    thaw,    // and goes on
    refuse,  // the job is not taken; it is gone. `fits`: what would have been
    evict    // the job is ended; it is gone, and its memory free
  };
  Kind kind{};
  JobId job;                     // admit, grant, recall, freeze, thaw, refuse, evict
  LaneId lane = no_lane;         // admit, open, move, close, grant
  Bytes offset, size;            // open, move
  JobReason reason{};            // refuse, evict
  JobMemory fits;                // refuse, evict

  friend bool operator==(const JobCommand&, const JobCommand&) = default;
};
using JobCommands = std::vector<JobCommand>;

struct JobOptions {
  Bytes capacity;  // of the device, for jobs
  // What a job whose needs are not known is taken to need until it has told.
  JobMemory assumed{mib(64), mib(256)};
  // fair: how far jobs of a lane may drift apart before the one ahead is recalled. 1 ms .. 1 h
  Duration quantum{std::chrono::milliseconds{50}};
  // best: no job that was admitted goes without an iteration for longer, nor waits longer to be admitted than
  // this many times ... (see best.h). 0: no bound.
  Duration longest_wait{std::chrono::minutes{30}};
  // A recalled job that ends no iteration for so long is said to hang: it is frozen, and evicted where
  // `evict_hanging`. Never shorter than 20 times its longest iteration. max(): never
  Duration hang_after{std::chrono::seconds{60}};
  bool evict_hanging = false;
};

// What a job is doing, for those who look.
enum class JobState : std::uint8_t { queued, waiting, running, recalled, frozen };

struct JobView {
  JobId job;
  JobState state{};
  LaneId lane = no_lane;
  JobMemory memory;
  Duration attained{0};               // device time so far
  std::optional<Duration> remaining;  // as far as known
  TimePoint came;
  std::uint64_t iterations = 0;
};

// Not thread-safe; `now` never goes back. Each call appends to `out` and returns when JobWake is wanted unless
// another event comes before; max() for never. Events of jobs that are not here are passed over: a job may
// tell of an iteration while its eviction is under way.
class JobSharing {
 public:
  virtual ~JobSharing() = default;
  virtual TimePoint on(const JobEvent& event, TimePoint now, JobCommands& out) = 0;
  virtual std::vector<JobView> jobs() const = 0;  // in the order in which they came
  virtual const Lanes& lanes() const = 0;
};

// "fifo", "srtf", "pack", "fair", "best".
std::span<const std::string_view> job_policy_names();
// Errors: an unknown name (with the names), an option out of its range, a capacity of 0.
Result<std::unique_ptr<JobSharing>> make_job_sharing(std::string_view name, const JobOptions& options);

}  // namespace carillon::device
