#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/ids.h"
#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/schedule/action.h"

namespace carillon::schedule {

struct ProbeOptions {
  // The share of finished requests, of models whose time depends on the input, that are run again by
  // themselves while nothing else is to be done; 0: none.
  double share = 0.05;
  std::size_t backlog = 32;           // rows that wait for idle time; while there are so many, none is added
  std::size_t largest_row = 4 << 20;  // bytes of its inputs and outputs; a larger one is not kept (live)
  int attempts = 1000;                // that other work cut short, before a row is given up
  std::uint64_t seed = 1;
};

// What there is to do besides.
struct OtherWork {
  std::size_t open = 0;     // requests without an answer
  std::size_t running = 0;  // INFERs under way, and events that the policy has yet to hear
};

// Which finished requests are run again alone, and when: what they take then is what a policy that plans by
// distributions learns from (Orloj, section 4.3.2: profiling off the critical path). The controller and the
// simulator drive the same object; `Row` is what each needs to run one again.
//
// A sample of them waits, bounded, for a time when no request is open and no INFER under way; one runs at a
// time, and whoever drives it stops it when a request comes. They run in the order in which they came, and
// one that is cut short runs again next: if it made way for shorter ones, these would be seen more often than
// they are. Not thread-safe.
template <typename Row>
class ProbeQueue {
 public:
  explicit ProbeQueue(const ProbeOptions& options) : options_(options), random_(options.seed) {}

  // A request has finished: whether it is to be kept, by chance, as long as there is room.
  bool chosen() {
    return options_.share > 0 && random_.uniform() < options_.share && rows_.size() < options_.backlog;
  }
  void keep(Row row) { rows_.push_back(std::move(row)); }

  // It is time to begin with next().
  bool due(const OtherWork& others) const {
    return !running_ && !rows_.empty() && others.open == 0 && others.running == 0;
  }
  const Row& next() const { return rows_.front(); }

  bool running() const { return running_.has_value(); }
  static bool is_probe(ActionId id) { return (id.value & mark) != 0; }
  DeviceId device() const { return running_->device; }  // requires running()
  ActionId action() const { return running_->id; }      // likewise

  // next() begins on `device`, under the id that is returned. Requires a row, and none that runs.
  ActionId begin(DeviceId device) {
    CARILLON_ASSERT(!running_ && !rows_.empty());
    running_ = Running{.id = {mark | issued_++}, .device = device};
    return running_->id;
  }
  // begin() came to nothing.
  void undo() { running_.reset(); }
  // A request comes. True the first time that the row that runs is to be stopped for it.
  bool stop() {
    const bool first = running_ && !running_->stopped;
    if (running_) running_->stopped = true;
    return first;
  }
  // The row that runs has ended. Returned where it ran to its end: what it took is a sample; else it waits
  // again, or is given up.
  std::optional<Row> end(ActionStatus status) {
    CARILLON_ASSERT(running_);
    running_.reset();
    if ((status == ActionStatus::stopped || status == ActionStatus::too_late) &&
        ++attempts_ < options_.attempts)
      return std::nullopt;
    attempts_ = 0;
    std::optional<Row> row(std::move(rows_.front()));
    rows_.pop_front();
    if (status != ActionStatus::success) row.reset();
    return row;
  }

 private:
  // Far from the schedulers' own ids, which ascend from 0.
  static constexpr std::uint64_t mark = std::uint64_t{1} << 62;

  struct Running {
    ActionId id;
    DeviceId device;
    bool stopped = false;
  };

  ProbeOptions options_;
  Random random_;
  std::deque<Row> rows_;  // the first is the one that runs
  int attempts_ = 0;      // of the first
  std::optional<Running> running_;
  std::uint64_t issued_ = 0;
};

}  // namespace carillon::schedule
