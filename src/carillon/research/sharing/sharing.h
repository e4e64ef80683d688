#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/circular_buffer.hpp>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/research/sharing/kernel_plan.h"
#include "carillon/workload/request.h"

namespace carillon::research {

struct SharingOptions {
  int units = 1;  // of the device: 1..1024
  // What a best-effort stream may have in flight: as many launches, and no further one while those take
  // longer than `in_flight_time`. (REEF: 4, section 4.1.)
  int in_flight = 4;                // 1..512
  Duration in_flight_time{20'000};  // 0..1 s
  // What a launch into a stream that has nothing takes before its kernel starts. 0..1 s
  Duration dispatch{6'500};
  // After an eviction it is known which kernel was the first not to end; else the stream goes back by what it
  // had in flight (section 4.3), at most `in_flight`.
  bool knows_kernel = false;
  // Best-effort kernels may outlast the real-time kernel beside which they start, where those after it leave
  // them their units. Without, rule 1 of section 5.2 to the letter.
  bool look_ahead = true;
  bool padding = true;  // best-effort kernels beside real-time ones at all
  // What a kernel may take longer than its plan says, relative to it, where another depends on it. In [0, 1].
  double margin = 0.02;
  // What real-time runs may take longer, on average, than if there were no best-effort work, relative to
  // that. Padding is held back where they do. In [0, 1].
  double slowdown = 0.015;
  // The part of the device's time that best-effort work is given where it has that much to do; 0: none. In
  // [0, 0.9].
  double best_effort_share = 0;
};

// A stream of the device, and the runs that go through it one after the other.
using Queue = std::uint16_t;

// A run that is asked for.
struct RunSpec {
  std::uint64_t run = 0;   // the caller's name for it; any
  std::uint32_t plan = 0;  // what add_plan() returned
  TimePoint deadline;      // of a real-time one; the earliest goes first
};

// What whoever drives a Sharing is to do; in this order.
struct ShareCommand {
  enum class Kind : std::uint8_t {
    launch,   // into the queue's stream, behind what is there; ended() once all its blocks have run
    evict,    // empty the stream: what has not begun is dismissed; then evicted()
    finished  // the run has
  };
  Kind kind{};
  Queue queue = 0;
  // launch: starts only once all its units are free, and before what has no priority.
  bool priority = false;
  bool again = false;  // launch: its blocks had run before an eviction
  bool kill = false;   // evict: what runs is ended, and its blocks count as not run; else it runs to its end
  std::uint64_t run = 0;
  std::uint32_t plan = 0;
  int kernel = 0;
  int first = 0, blocks = 0;  // of the kernel's blocks
  Spread spread;              // at most; with the time that is expected
};
using ShareCommands = std::vector<ShareCommand>;

// Decides what runs beside what on one device, kernel by kernel: pure, as device::Core is. Runs come in by
// queue; launches and evictions go out. A launch ends in the order of its stream, and a stream whose eviction
// was asked for gets nothing until evicted().
//
// Not thread-safe; `now` never goes back. Every call appends to `out` and returns when tick() is to be called
// unless another call comes before; max() for never. No call allocates but add_plan() and add_queue(), nor
// where `out` has room.
class Sharing {
 public:
  explicit Sharing(const SharingOptions& options);
  virtual ~Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  // Of a device of as many units as this one. Plans are numbered from 0 on.
  std::uint32_t add_plan(KernelPlan plan);
  // Of real-time or best-effort runs, not of normal ones; at most `waiting` (>= 1) of them wait at a time.
  // At most 1,024 queues, numbered from 0 on.
  Queue add_queue(Class cls, std::size_t waiting = 64);
  std::size_t queues() const { return queues_.size(); }
  const KernelPlan& plan(std::uint32_t id) const { return plans_[id]; }  // of an add_plan()
  bool full(Queue queue) const;                                          // as many of its runs wait as may

  // Needs !full(queue), and a plan that was added.
  TimePoint submit(Queue queue, const RunSpec& spec, TimePoint now, ShareCommands& out);
  // The oldest launch of the queue has run; needs one in flight.
  TimePoint ended(Queue queue, TimePoint now, ShareCommands& out);
  // The stream is empty; needs an eviction that was asked for. What was in flight has not run to its end, but
  // for what ended() told of.
  TimePoint evicted(Queue queue, TimePoint now, ShareCommands& out);
  // At the time that the last call returned, or later; earlier, it changes nothing.
  TimePoint tick(TimePoint now, ShareCommands& out);

  // A real-time run is on the device, or waits for it.
  bool real_time() const { return real_time_open_ > 0; }

 protected:
  struct Asked {
    RunSpec spec;
    std::uint64_t order = 0;  // in which runs were asked for
    TimePoint at;             // when
  };
  struct Flight {
    int kernel = 0, first = 0, blocks = 0;
    Spread spread;
    TimePoint end;  // expected
  };
  struct Stream {
    Class cls{};
    boost::circular_buffer<Asked> waiting;
    boost::circular_buffer<Flight> flight;  // launched and not ended, in order
    Asked run;                              // the one under way, where `active`
    bool active = false;
    bool evicting = false;
    int kernel = 0, first = 0;          // the next to launch: blocks [first, ...) of it
    int kernel_ran = 0, first_ran = 0;  // all before it has run at least once
    int resumed = 0;  // the kernel at which it went on after its last eviction: all before it have run
    bool idle() const { return flight.empty() && !evicting; }
    bool wants() const { return active || !waiting.empty(); }
  };

  // What a policy does when something has changed; `queue` has a new run, or a launch of it ended, or it was
  // evicted.
  virtual TimePoint submitted(Queue queue, TimePoint now, ShareCommands& out) = 0;
  virtual TimePoint advanced(Queue queue, const Flight& ended, TimePoint now, ShareCommands& out) = 0;
  virtual TimePoint emptied(Queue queue, TimePoint now, ShareCommands& out) = 0;
  virtual TimePoint ticked(TimePoint, ShareCommands&) { return TimePoint::max(); }
  virtual void queue_added(Queue) {}
  // The launch that was first in an evicted stream, and did not end.
  virtual void killed(Queue, const Flight&) {}

  Stream& stream(Queue queue) { return queues_[queue]; }
  const Stream& stream(Queue queue) const { return queues_[queue]; }
  const KernelPlan& plan_of(const Stream& stream) const { return plans_[stream.run.spec.plan]; }
  // Makes the first that waits the stream's run; false where none waits and none is under way.
  bool begin(Stream& stream);
  bool all_launched(const Stream& stream) const {
    return stream.kernel == plans_[stream.run.spec.plan].kernels();
  }
  // Launches the next `blocks` of the stream's run, which has some left.
  void launch(Queue queue, int blocks, const Spread& spread, bool priority, TimePoint now,
              ShareCommands& out);
  // All that is left of its next kernel, spread as alone.
  void launch_whole(Queue queue, bool priority, TimePoint now, ShareCommands& out);
  void evict(Queue queue, bool kill, TimePoint now, ShareCommands& out);
  // Best-effort and real-time queues, in the order in which they were added.
  const std::vector<Queue>& of(Class cls) const { return by_class_[cls == Class::real_time ? 0 : 1]; }
  // The real-time queue whose run has the earliest deadline, of those that wait or are under way; the first
  // asked for where several have.
  std::optional<Queue> most_urgent() const;
  // What a real-time stream may have in flight: its next kernel is always there as one ends.
  std::size_t real_time_in_flight() const {
    return static_cast<std::size_t>(std::max(2, options_.in_flight));
  }

  SharingOptions options_;

 private:
  std::vector<KernelPlan> plans_;
  std::vector<Stream> queues_;
  std::vector<Queue> by_class_[2];
  std::uint64_t asked_ = 0;
  std::size_t real_time_open_ = 0;  // runs
};

// "reef", "rt-only", "sequential", "streams", "wait".
std::span<const std::string_view> sharing_names();
// Errors: an unknown name, an option out of its range.
Result<std::unique_ptr<Sharing>> make_sharing(std::string_view name, const SharingOptions& options);

}  // namespace carillon::research
