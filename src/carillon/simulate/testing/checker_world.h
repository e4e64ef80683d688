#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/simulate/testing/checker.h"

namespace carillon::simulate::testing::broken {

using schedule::ActionStatus;
using Outcome = Observer::Outcome;

inline constexpr Duration delay = 200us;
inline constexpr ActionId far_id{1'000'000};

// Serves three models, of which two fit, on one device: refuses the third until, at `swap`, it takes the
// second one's place. Stops one INFER, at `stop`, and sends its requests again. All that it promises it
// keeps.
class Plain final : public schedule::Scheduler {
 public:
  TimePoint swap{200ms}, stop{100ms};
  Duration patience = 10s;  // windows are so long
  Duration later{0};        // and open so long after the decision
  int batch = 1;

  std::string_view name() const override { return "plain"; }

  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override;

 private:
  struct Sent {
    std::optional<ModelId> load, unload;
    ModelId model;
    std::vector<RequestId> requests;
  };
  ActionId book(Sent sent);
  void load(ModelId model, TimePoint now, schedule::Actions& out);
  void unload(schedule::Actions& out);
  void send(ModelId model, TimePoint now, schedule::Actions& out);
  void reported(const schedule::ActionDone& done, TimePoint now, schedule::Actions& out);

  TimePoint wake_ = TimePoint::max();
  std::uint64_t next_ = 0;
  bool began_ = false, swapping_ = false;
  std::optional<ActionId> stopped_;
  bool loaded_[3] = {}, loading_[3] = {};
  std::vector<RequestId> waiting_[3];
  std::set<RequestId> gone_;
  std::map<ActionId, Sent> sent_;
};

// A run under Plain, and what is changed between the simulation and the checker.
struct World final : public schedule::Scheduler, public Observer {
  workload::Scenario scenario;
  Options options;
  Plain plain;

  // What the scheduler decides, for the simulation and the checker.
  std::function<void(const schedule::Event&, TimePoint, schedule::Actions&)> decides;
  std::function<TimePoint(TimePoint wake, TimePoint now)> wakes;
  bool hide_wakes = false;  // from the checker
  // What is told to the checker: each may change it, or return false to keep it back.
  std::function<bool(Checker&, Request&, Duration& alone, TimePoint& at)> sent;
  std::function<bool(Checker&, DeviceId&, bool& alive, Duration& clock, TimePoint& at)> device;
  std::function<bool(Checker&, schedule::Event&, TimePoint&, schedule::Actions&)> decision;
  std::function<bool(Checker&, TimePoint&)> decided;
  std::function<bool(Checker&, Request&, Outcome&, TimePoint&)> outcome;
  std::function<bool(Checker&, ActionId&, DeviceId&, TimePoint&)> start;
  std::function<bool(Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint&)> end;
  std::function<void(Figures&)> figures;

  World();
  World(const World&) = delete;

  // What the checker says of the run.
  std::map<std::string, std::string> problems();

  std::string_view name() const override { return "world"; }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override;

  void on_sent(const Request& request, Duration alone, TimePoint at) override;
  void on_device(DeviceId id, bool alive, Duration clock, TimePoint at) override;
  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions,
                   TimePoint wake) override;
  void on_decided(TimePoint at) override;
  void on_odd_report(DeviceId id, TimePoint at) override { checker_->on_odd_report(id, at); }
  void on_outcome(const Request& request, Outcome what, TimePoint at) override;
  void on_start(ActionId id, DeviceId on, TimePoint at) override;
  void on_end(ActionId id, DeviceId on, ActionStatus status, TimePoint at) override;

 private:
  Checker* checker_ = nullptr;
  bool alive_ = true;        // the device
  std::uint64_t added_ = 0;  // actions that were planted
};

// Worlds in which other promises count.
void cancelled(World& world);
void of_two_modes(World& world);
void closed_loop(World& world);
void by_class(World& world);  // some of the second model's, which are real-time, run so

// The first action of a kind among these.
template <typename Kind>
Kind* first(schedule::Actions& actions) {
  for (schedule::Action& action : actions)
    if (auto* found = std::get_if<Kind>(&action)) return found;
  return nullptr;
}

// Tells the checker that each INFER is to make way, so many times.
inline void preempted(World& world, int times) {
  world.decision = [times](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
    if (const auto* found = first<schedule::Infer>(actions)) {
      const schedule::Preempt preempt{found->id, found->device, TimePoint::max()};
      actions.insert(actions.end(), static_cast<std::size_t>(times), preempt);
    }
    return true;
  };
}

// Changes each action of a kind that is decided.
template <typename Kind>
auto each(std::function<void(Kind&, TimePoint)> change) {
  return [change = std::move(change)](const schedule::Event&, TimePoint now, schedule::Actions& actions) {
    if (Kind* found = first<Kind>(actions)) change(*found, now);
  };
}
// The same, but of what the checker is told: so the device seems to do otherwise.
template <typename Kind>
auto each_told(std::function<void(Kind&, TimePoint)> change) {
  return [change = std::move(change)](Checker&, schedule::Event&, TimePoint now, schedule::Actions& actions) {
    if (Kind* found = first<Kind>(actions)) change(*found, now);
    return true;
  };
}
// Changes each event of a kind that the scheduler is said to hear.
template <typename Kind>
auto each_heard(std::function<void(Kind&, TimePoint&)> change) {
  return [change = std::move(change)](Checker&, schedule::Event& event, TimePoint& now, schedule::Actions&) {
    if (auto* found = std::get_if<Kind>(&event)) change(*found, now);
    return true;
  };
}
// Keeps events of a kind from the checker.
template <typename Kind>
auto unheard() {
  return [](Checker&, schedule::Event& event, TimePoint, schedule::Actions&) {
    return !std::holds_alternative<Kind>(event);
  };
}
// Tells the checker of an event twice.
template <typename Kind>
auto heard_twice() {
  return [](Checker& checker, schedule::Event& event, TimePoint now, schedule::Actions&) {
    if (std::holds_alternative<Kind>(event)) checker.on_decision(event, now, {}, TimePoint::max());
    return true;
  };
}
// Adds an action to the decision in which an action of a kind is.
template <typename Kind>
auto with(std::function<schedule::Action(const Kind&, TimePoint)> more) {
  return [more = std::move(more)](const schedule::Event&, TimePoint now, schedule::Actions& actions) {
    if (const Kind* found = first<Kind>(actions)) {
      const schedule::Action added = more(*found, now);
      actions.push_back(added);
    }
  };
}
inline auto ends_as(ActionStatus from, ActionStatus to) {
  return [=](Checker&, ActionId&, DeviceId&, ActionStatus& status, TimePoint&) {
    if (status == from) status = to;
    return true;
  };
}

}  // namespace carillon::simulate::testing::broken
