#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/simulate/testing/device_account.h"

namespace carillon::simulate::testing {

// The EXEC of a device that has a stream for each class, worked out from the messages alone. Each takes its
// actions as one stream does (DeviceAccount). Real-time goes before normal, and normal before best effort:
// none begins while one that goes first runs, or waits and may start; what runs when one that goes first
// begins ends within the latency, inside a kernel of a hundredth of the run, and goes on from there when
// nothing that goes first runs any more.
class ClassAccount {
 public:
  using Sent = DeviceAccount::Sent;
  using Ended = DeviceAccount::Ended;
  // What an INFER must come to that starts then, where it may not run.
  using Refusal = std::function<std::optional<schedule::ActionStatus>(const Sent&, TimePoint)>;

  ClassAccount(DeviceId id, const Faults& faults, Duration latency, Problems& problems)
      : id_(id), faults_(faults), latency_(latency), problems_(problems) {}

  // The device dies, or starts anew, with that clock: the runs that were under way, by id.
  std::vector<std::pair<ActionId, Ended>> power(Duration clock, TimePoint at);

  bool has(ActionId id) const;
  void sent(const Sent& action) {
    stream(action.cls).waiting.push_back(action);
    messages_[action.id] = ++count_;
  }
  void stop(ActionId id, TimePoint heard);
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
    std::optional<schedule::ActionStatus> refusal;
    Duration paused{0};
    int evicted = 0;                         // so often
    std::optional<TimePoint> blocked_since;  // something that goes first runs
    std::optional<TimePoint> freed;          // and has ended; yet the next may begin at once
    std::uint64_t freed_after = 0;           // so many messages
    TimePoint freed_planned;                 // known since then
    TimePoint resumed = TimePoint::min();    // the last time
    TimePoint stops_at = TimePoint::min();   // told to end, it does then at the latest
    TimePoint stopped_before = TimePoint::min();  // the last time before that
  };
  struct Stream {
    std::vector<Sent> waiting;
    std::optional<Run> running;
    std::vector<Run> at_input;  // refused there
    TimePoint free_at = TimePoint::min();
    ModelId last_model{};
    TimePoint last_start = TimePoint::min(), last_end = TimePoint::min();
  };

  Stream& stream(Class cls) { return streams_[static_cast<std::size_t>(cls)]; }
  void problem(const std::string& kind, ActionId id, TimePoint at);
  TimePoint opens(const Sent& action) const;
  TimePoint due(std::size_t rank, const Sent& action) const;
  bool blocked(std::size_t rank) const;
  void look(TimePoint at, const Sent* starts = nullptr, TimePoint planned = TimePoint::min());
  bool was_there(const Sent& action, const Run& run) const;
  void never_ran(TimePoint at);
  Duration busy(const Run& run, TimePoint at) const;
  void judge(const Run& run, schedule::ActionStatus status, TimePoint at);
  Duration least(Duration time) const;
  std::optional<Duration> most(Duration time) const;

  DeviceId id_;
  Faults faults_;
  Duration latency_;
  Problems& problems_;
  Duration clock_{0};
  std::array<Stream, 3> streams_;  // by class, which is their rank
  std::map<ActionId, std::uint64_t> messages_;
  std::uint64_t count_ = 0;
};

}  // namespace carillon::simulate::testing
