#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/research/sharing/sharing.h"
#include "carillon/workload/request.h"

namespace carillon::research {

// How a simulated device of compute units differs from an ideal one. The times are those that REEF's paper
// gives for an AMD MI50 where it gives them (sections 4.1, 7.3 and figure 14).
struct UnitDeviceOptions {
  // From the launch into a stream that has nothing until its kernel may start; hidden where the stream runs.
  // (Figure 15a: with one kernel in the device's queue ResNet-152's 307 take 2 ms longer.)
  Duration dispatch{6'500};
  // An eviction: the host's queue is emptied, and each kernel that waits in the device's queue is fetched to
  // be dismissed, one after the other; the queues of `pipes` streams at a time.
  Duration reset_host{3'000};
  Duration dismiss{8'000};
  int pipes = 4;
  Duration kill{3'000};  // then what runs is killed
  // A kernel that starts while kernels of other streams run takes so much longer (REEF, section 5.1: about
  // 1%).
  double interference = 0.01;
  // Standard deviation of a round's time, relative to it.
  double noise = 0;
};

// Sees what units do, and what runs are asked for. `launch` is as the device was told.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void run_asked(Queue, const RunSpec&, Class, TimePoint /*at*/) {}
  virtual void run_finished(Queue, std::uint64_t /*run*/, TimePoint /*at*/) {}
  virtual void evicting(Queue, bool /*kill*/, TimePoint /*at*/) {}
  virtual void evicted(Queue, TimePoint /*at*/) {}
  // Of the launch that is first in the queue: `units` run `blocks` of it from `at` to `end`.
  virtual void round_started(Queue, const ShareCommand&, int /*units*/, int /*blocks*/, TimePoint /*at*/,
                             TimePoint /*end*/) {}
  virtual void round_ended(Queue, const ShareCommand&, int /*units*/, int /*blocks*/, TimePoint /*started*/,
                           TimePoint /*at*/) {}
  virtual void round_killed(Queue, const ShareCommand&, int /*units*/, int /*blocks*/, TimePoint /*started*/,
                            TimePoint /*at*/) {}
  virtual void launch_ended(Queue, const ShareCommand&, TimePoint /*at*/) {}
  virtual void launch_killed(Queue, const ShareCommand&, TimePoint /*at*/) {}
  virtual void launch_dismissed(Queue, const ShareCommand&, TimePoint /*at*/) {}
};

// A device of compute units in virtual time: streams side by side, each in order. The dispatcher gives free
// units to the first launch of each stream, those with priority first, then by when they could start; a unit
// runs blocks of one launch at a time, as many at once as the launch says, for as long as the plan says that
// so many take. A launch with priority starts all its units at once, and nothing else gets units while it
// waits for them.
class UnitDevice {
 public:
  // The observers outlive it.
  UnitDevice(int units, std::size_t streams, const UnitDeviceOptions& options, std::uint64_t seed,
             std::vector<UnitObserver*> observers = {});

  // `rounds`: of the launch's kernel, by depth from 1; used until the launch has ended.
  void launch(const ShareCommand& command, std::span<const Duration> rounds, TimePoint now);
  void evict(Queue queue, bool kill, TimePoint now);

  struct Event {
    enum class Kind : std::uint8_t { ended, evicted };
    Kind kind{};
    Queue queue = 0;
    TimePoint at;
  };
  // When something happens next; max() for never.
  TimePoint next() const;
  // Lets what happens at next() happen. Nothing where nobody is to be told of it.
  std::optional<Event> step();

  int units() const { return units_; }
  int free_units() const { return free_; }

 private:
  struct Entry {
    ShareCommand command;
    std::span<const Duration> rounds;
    int left = 0;           // blocks that have not started
    int units_running = 0;  // units that run it
    double slower = 1;      // by what runs beside it, set as it starts
  };
  struct Stream {
    std::deque<Entry> queue;
    bool evicting = false;
    bool killing = false;          // what is first gets no more units
    std::int64_t to_dismiss = -1;  // as soon as what is first has ended; -1: nothing is to be
    std::uint64_t generation = 0;  // of the first in the queue
  };
  // Units that run a launch's blocks together.
  struct Round {
    Queue queue = 0;
    std::uint64_t generation = 0;
    int units = 0, blocks = 0;
    TimePoint started;
  };
  enum class What : std::uint8_t { round, ready, evicted };
  struct Timer {
    TimePoint at;
    std::uint64_t order = 0;
    What what{};
    Queue queue = 0;
    std::uint64_t generation = 0;  // ready, evicted: of the stream
    std::uint32_t round = 0;
    bool operator>(const Timer& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };

  template <typename Call>
  void tell(Call&& call) {
    for (UnitObserver* observer : observers_) call(*observer);
  }
  void schedule(TimePoint at, What what, Queue queue, std::uint64_t generation, std::uint32_t round = 0);
  void make_ready(Queue queue);
  void dispatch(TimePoint now);
  void start(Queue queue, int units, TimePoint now);
  void first_goes(Stream& stream, Queue queue, TimePoint now);
  // When so many kernels have been dismissed, from `now` on.
  TimePoint dismiss(std::int64_t count, TimePoint now);
  std::optional<Event> empty(Queue queue, TimePoint now);

  int units_;
  int free_;
  UnitDeviceOptions options_;
  std::vector<UnitObserver*> observers_;
  Random random_;
  std::vector<Stream> streams_;
  std::vector<Queue> waiting_;    // whose first wants units, in the order in which they get them
  std::vector<TimePoint> pipes_;  // when each is free to dismiss
  std::vector<Round> rounds_;
  std::vector<std::uint32_t> free_rounds_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::uint64_t order_ = 0;
};

}  // namespace carillon::research
