#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/simulate/testing/device_account.h"

namespace carillon::simulate::testing {

// The EXEC of a device that has a stream for each class, worked out from the messages alone. Each takes its
// actions as one stream does (DeviceAccount). Real-time goes before normal, and normal before best effort:
// none begins while one that goes first runs, or waits and may start; and what runs when one that goes first
// begins makes way. So does a run that a Preempt is there for, as soon as something is there in its stream
// that comes before its order: once, for each Preempt. What makes way does so within the latency, inside a
// kernel of a hundredth of the run, unless it ends by itself before, and waits in its stream: by its order
// where a Preempt is there for it, else as the first. It goes on once it is the first there and nothing that
// goes first runs, at that very moment.
//
// A device tells neither of the one nor of the other. So time passes here from event to event: what must have
// made way in between, or gone on, has.
class ClassAccount {
 public:
  using Sent = DeviceAccount::Sent;
  using Ended = DeviceAccount::Ended;
  // What an INFER must come to that starts then, where it may not run.
  using Refusal = std::function<std::optional<schedule::ActionStatus>(const Sent&, TimePoint)>;

  // Whether an INFER waits for a LOAD of its model, should its turn have come.
  using Cold = std::function<bool(const Sent&, TimePoint)>;

  ClassAccount(DeviceId id, const Faults& faults, Duration latency, Problems& problems)
      : id_(id), faults_(faults), latency_(latency), problems_(problems) {}

  // The device dies, or starts anew, with that clock: the runs that were under way, by id.
  std::vector<std::pair<ActionId, Ended>> power(Duration clock, TimePoint at);

  // To be called before any other call.
  void waits_by(Cold cold) { cold_ = std::move(cold); }
  template <typename Visit>
  void visit_waiting(Visit&& visit) {
    for (Stream& s : streams_) std::ranges::for_each(s.waiting, visit);
  }

  bool has(ActionId id) const;
  void sent(const Sent& action);
  void stop(ActionId id, TimePoint heard);
  void preempt(ActionId id, TimePoint order, TimePoint heard);
  void started(ActionId id, TimePoint at, const Refusal& refusal);
  // Of one that it has.
  Ended ended(ActionId id, schedule::ActionStatus status, TimePoint at);
  // A run of the model is under way that began before then.
  bool uses(ModelId model, TimePoint at) const;
  // A run of the model that began by `since` ended then.
  bool ended_then(ModelId model, TimePoint since, TimePoint at) const;
  void finish(TimePoint now);

 private:
  struct Run {
    Sent action;
    TimePoint start;
    Duration paused{0};                  // since then
    int cuts = 0;                        // so often it was told to end before its end,
    std::uint64_t cut = 0;               // the last time as the so-manieth of all
    TimePoint resumed;                   // the last time, or started
    std::optional<TimePoint> stops_at;   // told so, it does then, or ends before
    TimePoint order = TimePoint::min();  // since it waits to go on, unless it is told another
    TimePoint since;                     // it waits
  };
  struct Stream {
    std::vector<Sent> waiting;
    std::optional<Run> running;
    std::vector<Run> suspended;
    TimePoint free_at = TimePoint::min();
    ModelId last_model{};
    TimePoint last_start = TimePoint::min(), last_end = TimePoint::min();
  };
  // What has started, or is refused in the same breath: it is ended() that tells, as the next thing.
  struct Start {
    std::size_t rank = 0;
    Sent action;
    TimePoint at;
    std::optional<schedule::ActionStatus> refusal;  // what it must come to
    bool cold = false;                              // a LOAD was open that it had to wait for
  };

  Stream& stream(Class cls) { return streams_[static_cast<std::size_t>(cls)]; }
  template <typename Visit>
  void visit(ActionId id, Visit&& visit);
  void problem(const std::string& kind, ActionId id, TimePoint at);

  bool is_there(const Sent& action, TimePoint at) const;
  const Sent* first_waiting(const Stream& stream, TimePoint at) const;
  const Sent* first_in_time(const Stream& stream, TimePoint at) const;
  static std::tuple<TimePoint, ActionId> place_of_run(const Run& run, TimePoint at);
  TimePoint opens(const Sent& action) const;
  TimePoint due(std::size_t rank, const Sent& action) const;
  bool may_start(std::size_t rank, TimePoint at) const;
  bool blocked(std::size_t rank, TimePoint at) const;

  std::optional<TimePoint> yields_at(const Stream& stream) const;
  void cut(Run& run, TimePoint at);
  void make_way(std::size_t rank, TimePoint at);
  void suspend(Stream& stream, TimePoint at);
  void settle(TimePoint at);
  void advance(TimePoint to, bool through);
  void begin();

  void judge_turn(const Start& start);
  void judge_refusal(const Start& start, schedule::ActionStatus status);
  void judge(const Run& run, schedule::ActionStatus status, TimePoint at);
  static Duration busy(const Run& run, TimePoint at) { return at - run.start - run.paused; }
  Duration least(Duration time) const;
  std::optional<Duration> most(Duration time) const;
  std::optional<Duration> most(const Run& run) const;

  DeviceId id_;
  Faults faults_;
  Duration latency_;
  Problems& problems_;
  Duration clock_{0};
  std::array<Stream, 3> streams_;  // by class, which is their rank
  std::optional<Start> start_;
  Cold cold_;
  std::uint64_t cuts_ = 0;
  TimePoint planned_ = TimePoint::min();  // since when it was known that what happens now would
};

}  // namespace carillon::simulate::testing
