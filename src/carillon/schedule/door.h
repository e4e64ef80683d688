#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "carillon/schedule/timer_heap.h"
#include "carillon/workload/request.h"

namespace carillon::schedule {

struct DoorOptions {
  // Of the time that requests have to spare, the share for which they may stand here all the time, and not
  // only in a burst: what CoDel allows a queue of the time in which a burst must be over (RFC 8289, section
  // 4.3: 5 to 10%; the smaller, since what is lost here is lost for batching).
  double standing = 0.05;
  // But fewer rows than this do not stand in anybody's way: with random arrivals at just the rate that can be
  // decided, 1/32 of the time nobody would be there.
  std::size_t least = 16;
  // The time that a request without a deadline has to spare.
  Duration patience = 1s;
  // Rows that may wait at all: memory is finite.
  std::size_t most = 1 << 16;
};

// Where arrivals wait for the thread that decides, and are turned away when it cannot keep up: what decides a
// request ten milliseconds late has decided for nothing. A queue of keys and times: no clock, no thread, no
// request's data. The controller and the simulator put the same object between their inbox and the scheduler.
//
// While decisions keep up, everything comes in and leaves in its order. Turned away is
//   - on arrival, what could have been on time, but not any more by the time at which it would be decided;
//   - on arrival, while decisions fall behind for good: the oldest has waited longer than the options'
//     `standing` share of the time to spare for as long as all of that time. Then no more are let in than are
//     decided within that share;
//   - when it is taken, what could have been on time when it came, and no longer can be.
// While they fall behind, whoever asks least goes first: where the door is full, an arrival takes the place
// of one of a lower class, or of the model that has the most rows waiting in its own class, where that has at
// least two more; else it is turned away itself. So a model that asks for less than its share of the
// decisions is not turned away for the sake of one that asks for more, and among equals the load is shed
// alike.
//
// The time that requests have to spare is that of the hurried ones (a mean in which shorter times weigh
// heavily). How long a decision takes is measured from one take() to the next while somebody waits, reports
// and wakes in between included.
//
// O(1) a call while decisions keep up; else O(log models), and O(rows waiting) where one takes another's
// place. Not thread-safe; `now` never goes back.
class Door {
 public:
  using Key = std::uint64_t;  // the caller's name for an arrival, unique among those that wait

  explicit Door(const DoorOptions& options = {}) : options_(options) {}

  // Ids ascend by one from zero. `shortest`: how long a request of the model takes at the least.
  void add_model(Duration shortest) { models_.push_back({shortest, {}, {}}); }

  // From now on, for those that come.
  void set_shortest(ModelId model, Duration shortest) { models_[model.index()].shortest = shortest; }

  struct Arrival {
    Key key = 0;
    ModelId model;
    Class cls = Class::normal;
    std::size_t rows = 1;
    TimePoint deadline;  // max(): none
  };
  struct Answer {
    bool in = true;                // it waits; else it is turned away
    bool hurried = false;          // then: few others wait; it is its own deadline that is too near
    std::optional<Key> displaced;  // this one is turned away for it, and waits no longer
  };
  [[nodiscard]] Answer arrive(const Arrival& arrival, TimePoint now) {
    const auto refused = knock(arrival, now);
    return refused ? *refused : enter(arrival, now);
  }
  // The same in two steps, for whoever needs something for an arrival that is let in. knock(): it has come;
  // an answer where it is turned away. enter(), after a knock() without an answer: it waits, or is turned
  // away, as others came meanwhile.
  [[nodiscard]] std::optional<Answer> knock(const Arrival& arrival, TimePoint now);
  [[nodiscard]] Answer enter(const Arrival& arrival, TimePoint now);

  struct Taken {
    Key key = 0;
    bool turned_away = false;  // too late to be decided
    bool hurried = false;      // then: few others wait; it is its own deadline that is too near
  };
  // The thread has decided all that it took before: appends the oldest arrivals to `out`, at most `most`.
  void take(std::size_t most, TimePoint now, std::vector<Taken>& out);

  bool empty() const { return rows_ == 0; }
  std::size_t waiting_rows() const { return rows_; }
  Key oldest() const { return queue_.front().key; }  // not where it is empty
  // Arrivals wait longer than they should, if not for good yet: what they wait for goes first.
  bool lagging(TimePoint now) const {
    return overloaded_ || (rows_ > 0 && now - queue_.front().came > target());
  }
  // Decisions fall behind for good.
  bool overloaded() const { return overloaded_; }
  // What a row takes of the thread, as measured; zero while nothing is known.
  Duration decision_time() const { return each_; }

 private:
  struct Waiting {
    Key key = 0;
    ModelId model;
    Class cls = Class::normal;
    std::size_t rows = 0;  // 0: it has lost its place
    TimePoint came;
    TimePoint useful_until;  // decided later it cannot be on time
  };
  static constexpr std::size_t classes = 3;
  struct Model {
    Duration shortest;
    std::array<std::size_t, classes> rows;  // waiting
    std::array<std::uint32_t, classes>
        displaced_at;  // the number of the displacement that took its last place
  };

  Duration target() const { return from_ns(static_cast<double>(spare_.count()) * options_.standing); }
  std::size_t limit() const;
  void observe_spare(Duration spare);
  void note_lag(TimePoint now);
  TimePoint useful_until(const Arrival& arrival) const;
  bool full_for(const Arrival& arrival) const {
    return rows_ + arrival.rows > (overloaded_ ? limit() : options_.most);
  }
  std::optional<std::pair<ModelId, std::size_t>> to_displace(const Arrival& arrival) const;
  std::optional<Key> displace(const Arrival& arrival);
  void add(ModelId model, Class cls, std::size_t rows);
  void remove(ModelId model, Class cls, std::size_t rows);
  void list(ModelId model, std::size_t cls);
  void drop_gone();

  DoorOptions options_;
  std::vector<Model> models_;
  std::deque<Waiting> queue_;
  std::size_t rows_ = 0;
  std::array<std::size_t, classes> rows_of_{};  // of rows_
  Duration spare_{0};                           // of the hurried ones
  Duration each_{0};
  std::size_t in_hand_ = 0;                  // rows that the thread has taken and not yet decided
  std::optional<TimePoint> taken_at_;        // while it has had something to do since
  TimePoint kept_up_at_ = TimePoint::min();  // the last time that nobody had waited longer than the target
  bool overloaded_ = false;
  // While overloaded: models by their rows, the most on top; among equals the one that was let alone for
  // longest.
  std::array<TimerHeap, classes> most_waiting_;
  std::uint32_t displacements_ = 0;
};

}  // namespace carillon::schedule
