// A checker that finds nothing proves nothing: here each of its promises is broken once, and must be found.
#include "carillon/simulate/testing/checker.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::simulate::testing {
namespace {

using schedule::ActionStatus;
using Outcome = Observer::Outcome;

constexpr Duration delay = 200us;
constexpr ActionId far_id{1'000'000};

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

  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
      if (change->device == DeviceId{0} && change->alive && !began_) {
        began_ = true;
        load(ModelId{0}, now, out);
        load(ModelId{1}, now, out);
        wake_ = stop;
      }
    } else if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
      const ModelId model = arrival->request.model;
      if (loaded_[model.index()] || (loading_[model.index()] && model.index() < 2)) {
        waiting_[model.index()].push_back(arrival->request.id);
        send(model, now, out);
      } else {
        out.emplace_back(schedule::Refuse{arrival->request.id, schedule::Reason::cannot_finish, now});
      }
    } else if (const auto* gone = std::get_if<schedule::RequestCancelled>(&event)) {
      std::erase(waiting_[gone->model.index()], gone->request);
      gone_.insert(gone->request);
    } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
      reported(*done, now, out);
    } else if (std::holds_alternative<schedule::Wake>(event)) {
      if (now == stop) {
        for (auto& [id, sent] : sent_)
          if (!stopped_) out.emplace_back(schedule::Stop{*(stopped_ = id), DeviceId{0}});
        wake_ = swap;
      } else {
        loading_[1] = loaded_[1] = false;
        for (const RequestId id : waiting_[1])
          out.emplace_back(schedule::Refuse{id, schedule::Reason::deadline_passed, now});
        waiting_[1].clear();
        swapping_ = true;
        wake_ = TimePoint::max();
        unload(out);
      }
    }
    return wake_;
  }

 private:
  struct Sent {
    std::optional<ModelId> load, unload;
    ModelId model;
    std::vector<RequestId> requests;
  };
  ActionId book(Sent sent) {
    const ActionId id{next_++};
    sent_[id] = std::move(sent);
    return id;
  }
  void load(ModelId model, TimePoint now, schedule::Actions& out) {
    loading_[model.index()] = true;
    out.emplace_back(schedule::Load{
        book({.load = model, .model = model}), DeviceId{0}, model, {now, TimePoint::max()}, 5ms});
  }
  void unload(schedule::Actions& out) {
    if (!swapping_) return;
    for (const auto& [id, sent] : sent_)
      if (sent.model == ModelId{1}) return;
    swapping_ = false;
    out.emplace_back(
        schedule::Unload{book({.unload = ModelId{1}, .model = ModelId{1}}), DeviceId{0}, ModelId{1}});
  }
  void send(ModelId model, TimePoint now, schedule::Actions& out) {
    auto& waiting = waiting_[model.index()];
    while (loaded_[model.index()] && waiting.size() >= static_cast<std::size_t>(batch)) {
      std::vector<RequestId> members(waiting.begin(), waiting.begin() + batch);
      waiting.erase(waiting.begin(), waiting.begin() + batch);
      out.emplace_back(schedule::Infer{book({.model = model, .requests = members}),
                                       DeviceId{0},
                                       model,
                                       members,
                                       {now + later, now + later + patience},
                                       5ms});
    }
  }
  void reported(const schedule::ActionDone& done, TimePoint now, schedule::Actions& out) {
    const auto found = sent_.find(done.id);
    if (found == sent_.end()) return;  // told twice
    const Sent sent = found->second;
    sent_.erase(found);
    if (sent.load) {
      loaded_[sent.model.index()] = done.status == ActionStatus::success;
      send(sent.model, now, out);
    } else if (sent.unload) {
      load(ModelId{2}, now, out);
    } else if (done.status != ActionStatus::success) {
      for (const RequestId id : sent.requests)
        if (!gone_.contains(id)) out.emplace_back(schedule::Refuse{id, schedule::Reason::rejected_late, now});
    }
    unload(out);
  }

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

  World() {
    scenario.name = "plain";
    scenario.seed = 5;
    scenario.devices = 1;
    scenario.duration = 300ms;
    scenario.warmup = 20ms;
    scenario.network_delay = delay;
    scenario.memory = mib(32);
    scenario.rate = 240;
    for (int i = 0; i < 3; ++i) {
      workload::ScenarioModel m{.name = "m" + std::to_string(i), .slo = 12ms, .max_batch = 2};
      m.latency.linear = true;
      m.latency.alpha = m.latency.beta = 2ms;
      m.weights = mib(16);
      m.load = 5ms;
      scenario.models.push_back(std::move(m));
    }
    options.interval = 70ms;
    options.timeline = 10;
  }
  World(const World&) = delete;

  std::map<std::string, std::string> problems() {
    Checker checker(scenario, options);
    checker_ = &checker;
    options.observer = this;
    int looks = 0;
    options.progress = [&](double) { return ++looks < 50; };
    Figures told = run(scenario, *this, options);
    if (figures) figures(told);
    checker.finish(told);
    return checker.problems();
  }

  std::string_view name() const override { return "world"; }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    const TimePoint wake = plain.decide(event, now, out);
    if (decides) decides(event, now, out);
    return wakes ? wakes(wake, now) : wake;
  }

  void on_sent(const Request& request, Duration alone, TimePoint at) override {
    Request r = request;
    if (!sent || sent(*checker_, r, alone, at)) checker_->on_sent(r, alone, at);
  }
  void on_device(DeviceId id, bool alive, Duration clock, TimePoint at) override {
    if (!device || device(*checker_, id, alive, clock, at)) checker_->on_device(id, alive, clock, at);
  }
  void on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions,
                   TimePoint wake) override {
    schedule::Event e = event;
    schedule::Actions a = actions;
    if (hide_wakes) wake = TimePoint::max();
    if (!decision || decision(*checker_, e, now, a)) checker_->on_decision(e, now, a, wake);
  }
  void on_decided(TimePoint at) override {
    if (!decided || decided(*checker_, at)) checker_->on_decided(at);
  }
  void on_outcome(const Request& request, Outcome what, TimePoint at) override {
    Request r = request;
    if (!outcome || outcome(*checker_, r, what, at)) checker_->on_outcome(r, what, at);
  }
  void on_start(ActionId id, DeviceId on, TimePoint at) override {
    if (!start || start(*checker_, id, on, at)) checker_->on_start(id, on, at);
  }
  void on_end(ActionId id, DeviceId on, ActionStatus status, TimePoint at) override {
    if (!end || end(*checker_, id, on, status, at)) checker_->on_end(id, on, status, at);
  }

 private:
  Checker* checker_ = nullptr;
};

// The first action of a kind among these.
template <typename Kind>
Kind* first(schedule::Actions& actions) {
  for (schedule::Action& action : actions)
    if (auto* found = std::get_if<Kind>(&action)) return found;
  return nullptr;
}

// Changes each action of a kind that is decided.
template <typename Kind>
auto each(std::function<void(Kind&, TimePoint)> change) {
  return [change](const schedule::Event&, TimePoint now, schedule::Actions& actions) {
    if (Kind* found = first<Kind>(actions)) change(*found, now);
  };
}
// The same, but of what the checker is told: so the device seems to do otherwise.
template <typename Kind>
auto each_told(std::function<void(Kind&, TimePoint)> change) {
  return [change](Checker&, schedule::Event&, TimePoint now, schedule::Actions& actions) {
    if (Kind* found = first<Kind>(actions)) change(*found, now);
    return true;
  };
}
// Changes each event of a kind that the scheduler is said to hear.
template <typename Kind>
auto each_heard(std::function<void(Kind&, TimePoint&)> change) {
  return [change](Checker&, schedule::Event& event, TimePoint& now, schedule::Actions&) {
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
  return [more](const schedule::Event&, TimePoint now, schedule::Actions& actions) {
    if (const Kind* found = first<Kind>(actions)) {
      const schedule::Action added = more(*found, now);
      actions.push_back(added);
    }
  };
}
auto ends_as(ActionStatus from, ActionStatus to) {
  return [=](Checker&, ActionId&, DeviceId&, ActionStatus& status, TimePoint&) {
    if (status == from) status = to;
    return true;
  };
}

struct Fault {
  const char* found;  // the problem that it must lead to
  std::function<void(World&)> plant;
};

using schedule::ActionDone;
using schedule::DeviceChanged;
using schedule::Infer;
using schedule::Load;
using schedule::Refuse;
using schedule::RequestArrived;
using schedule::RequestCancelled;
using schedule::RequestProfiled;
using schedule::Stop;
using schedule::Unload;
using schedule::Wake;

void cancelled(World& w) {
  w.options.faults.cancels = 0.5;
}
void of_two_modes(World& w) {
  for (auto& m : w.scenario.models) m.latency.modes = {{.mean = 2ms, .deviation = 300us}};
}
void closed_loop(World& w) {
  w.scenario.process = {.kind = workload::ArrivalKind::closed, .clients = 2};
}

const Fault faults[] = {
    // -- time and clients
    {"time ran backwards",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome&, TimePoint& at) { return at -= delay, true; };
     }},
    {"requests out of order",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.id.value += 1, true; };
     }},
    {"unknown model",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.model.value = 3, true; };
     }},
    {"unknown model",
     [](World& w) { w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.model.value = 3; }); }},
    {"a request that no client sends",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint& at) {
         r.arrival = at -= 1ns;
         r.deadline -= 1ns;
         return true;
       };
     }},
    {"a request that no client sends",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) {
         r.model.value = (r.model.value + 1) % 3;
         return true;
       };
     }},
    {"a request that no client sends",
     [](World& w) {
       closed_loop(w);
       w.sent = [](Checker& c, Request& r, Duration& alone, TimePoint& at) {
         c.on_sent(r, alone, at);
         r.id.value += 1;
         return r.id.value == 20;
       };
     }},
    {"a request that was not sent",
     [](World& w) { w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.id.value < 20; }; }},
    {"a request that was not sent",
     [](World& w) {
       closed_loop(w);
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.id.value < 20; };
     }},
    {"a request that takes no time",
     [](World& w) {
       of_two_modes(w);
       w.sent = [](Checker&, Request&, Duration& alone, TimePoint&) { return alone = Duration{0}, true; };
     }},
    {"a request that is not the scenario's",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.deadline += 1ns, true; };
     }},
    {"a request that is not the scenario's",
     [](World& w) {
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.cls = Class::real_time, true; };
     }},
    {"a request that is not the scenario's",
     [](World& w) {
       for (auto& m : w.scenario.models) {
         for (int i = 0; i < 10; ++i)
           m.arrivals.push_back({.at = TimePoint{20ms * (i + 1)}, .slo = 12ms, .priority = 2});
       }
       w.sent = [](Checker&, Request& r, Duration&, TimePoint&) { return r.priority = 0, true; };
     }},
    {"heard of what was not sent", [](World& w) { w.decision = heard_twice<RequestArrived>(); }},
    {"heard of what was not sent",
     [](World& w) {
       w.decision = each_heard<RequestArrived>([](auto& e, TimePoint&) { e.request.id.value += 1000; });
     }},
    {"heard of another request",
     [](World& w) {
       w.decision = each_heard<RequestArrived>([](auto& e, TimePoint&) { e.request.deadline += 1ns; });
     }},
    {"heard of another request",
     [](World& w) {
       w.decision = each_heard<RequestArrived>([](auto& e, TimePoint&) { e.request.arrival -= delay; });
     }},
    {"heard out of time",
     [](World& w) { w.decision = each_heard<RequestArrived>([](auto&, TimePoint& now) { now += 1ns; }); }},
    {"heard out of time",  // though its client has gone
     [](World& w) {
       cancelled(w);
       w.scenario.network_delay = 5ms;
       w.outcome = [](Checker& c, Request& r, Outcome& what, TimePoint& at) {
         c.on_outcome(r, what, at);
         r.arrival += 5ms;
         if (what == Outcome::cancelled && at < r.arrival)
           c.on_decision(RequestArrived{r}, r.arrival, {}, TimePoint::max());
         return false;
       };
     }},
    {"never heard of", [](World& w) { w.decision = unheard<RequestArrived>(); }},
    {"a cancellation of nothing",
     [](World& w) {
       cancelled(w);
       w.decision = heard_twice<RequestCancelled>();
     }},
    {"a cancellation of nothing",
     [](World& w) {
       cancelled(w);
       w.decision = each_heard<RequestCancelled>([](auto& e, TimePoint&) { e.model.value += 1; });
     }},
    {"a cancellation of nothing",
     [](World& w) {
       cancelled(w);
       w.decision = each_heard<RequestCancelled>([](auto&, TimePoint& now) { now += 1ns; });
     }},
    {"a cancellation that was not told",
     [](World& w) {
       cancelled(w);
       w.decision = unheard<RequestCancelled>();
     }},
    // -- outcomes
    {"an outcome of nothing",
     [](World& w) {
       w.outcome = [](Checker&, Request& r, Outcome&, TimePoint&) { return r.id.value += 1000, true; };
     }},
    {"an outcome of nothing",
     [](World& w) {
       w.outcome = [](Checker&, Request& r, Outcome&, TimePoint&) { return r.deadline += 1ns, true; };
     }},
    {"two outcomes",
     [](World& w) {
       w.outcome = [](Checker& c, Request& r, Outcome& what, TimePoint& at) {
         c.on_outcome(r, what, at);
         return true;
       };
     }},
    {"no outcome",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) { return what != Outcome::refused; };
     }},
    {"never answered",
     [](World& w) {
       w.decides = [](const schedule::Event&, TimePoint, schedule::Actions& actions) {
         std::erase_if(actions, [](const auto& a) { return std::holds_alternative<Refuse>(a); });
       };
     }},
    {"called on time but late",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         if (what == Outcome::late) what = Outcome::on_time;
         return true;
       };
     }},
    {"called late but on time",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         if (what == Outcome::on_time) what = Outcome::late;
         return true;
       };
     }},
    {"refused by nobody",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         if (what == Outcome::on_time) what = Outcome::refused;
         return true;
       };
     }},
    {"refused by nobody",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::refused) at += 1ns;
         return true;
       };
     }},
    {"cancelled by nobody",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) {
         return what = Outcome::cancelled, true;
       };
     }},
    {"cancelled by nobody",
     [](World& w) {
       cancelled(w);
       w.outcome = [](Checker&, Request& r, Outcome& what, TimePoint& at) {
         if (what == Outcome::cancelled) at = r.arrival + 24ms + 1ns;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.outcome = [](Checker&, Request& r, Outcome& what, TimePoint& at) {
         if (what == Outcome::refused) what = at <= r.deadline ? Outcome::on_time : Outcome::late;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::on_time) at -= 1ns;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::late) at += 1ns;
         return true;
       };
     }},
    {"an answer that nobody gave",
     [](World& w) {
       w.options.faults.late_reports = 0.5;
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint& at) {
         if (what == Outcome::late) at += 20ms + 1ns;
         return true;
       };
     }},
    {"an answer that was not given",
     [](World& w) {
       w.outcome = [](Checker&, Request&, Outcome& what, TimePoint&) { return what != Outcome::on_time; };
     }},
    // -- devices come and go
    {"unknown device",
     [](World& w) {
       w.device = [](Checker&, DeviceId& id, bool&, Duration&, TimePoint&) { return id.value += 1, true; };
     }},
    {"unknown device",
     [](World& w) {
       w.decision = each_heard<DeviceChanged>([](auto& e, TimePoint&) { e.device.value += 1; });
     }},
    {"a device that came or went by itself",
     [](World& w) {
       w.outcome = [](Checker& c, Request&, Outcome&, TimePoint& at) {
         c.on_device(DeviceId{0}, false, Duration{0}, at);
         return true;
       };
     }},
    {"a device that came or went by itself",
     [](World& w) {
       w.device = [](Checker&, DeviceId&, bool&, Duration&, TimePoint& at) { return at += 1ns, true; };
     }},
    {"a device that came or went by itself",
     [](World& w) {
       w.options.faults.deaths_per_s = 20;
       w.device = [](Checker& c, DeviceId& id, bool& alive, Duration& clock, TimePoint& at) {
         c.on_device(id, alive, clock, at);
         return true;
       };
     }},
    {"a clock that is off by too much",
     [](World& w) {
       w.options.faults.clock_offset = 1ms;
       w.device = [](Checker&, DeviceId&, bool&, Duration& clock, TimePoint&) {
         return clock = 1ms + 1ns, true;
       };
     }},
    {"a clock that is off by too much",
     [](World& w) {
       w.options.faults.clock_offset = 1ms;
       w.device = [](Checker&, DeviceId&, bool&, Duration& clock, TimePoint&) {
         return clock = -1ms - 1ns, true;
       };
     }},
    {"a clock that is off by too much",
     [](World& w) {
       w.options.faults.clock_offset = 1ms;
       w.options.faults.deaths_per_s = 20;
       w.device = [](Checker&, DeviceId&, bool& alive, Duration& clock, TimePoint&) {
         return clock += alive ? 0ns : 1ns, true;
       };
     }},
    {"a device's change that is not so",
     [](World& w) { w.decision = each_heard<DeviceChanged>([](auto& e, TimePoint&) { e.pages += 1; }); }},
    {"a device's change that is not so",
     [](World& w) {
       w.options.faults.deaths_per_s = 20;
       w.decision = each_heard<DeviceChanged>([](auto& e, TimePoint&) { e.alive = true; });
     }},
    {"a device's change that was not told",
     [](World& w) {
       w.options.faults.deaths_per_s = 20;
       w.decision = [](Checker&, schedule::Event& event, TimePoint now, schedule::Actions&) {
         return now == TimePoint{} || !std::holds_alternative<DeviceChanged>(event);
       };
     }},
    // -- starts
    {"started what was not sent",
     [](World& w) {
       w.start = [](Checker&, ActionId& id, DeviceId&, TimePoint&) { return id = far_id, true; };
     }},
    {"started what was not sent",
     [](World& w) {
       w.start = [](Checker&, ActionId&, DeviceId& device, TimePoint&) { return device.value = 1, true; };
     }},
    {"started what was not sent",
     [](World& w) {
       w.start = [](Checker& c, ActionId& id, DeviceId& device, TimePoint& at) {
         c.on_start(id, device, at);
         return true;
       };
     }},
    {"two things at once",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint&) { return false; };
     }},
    {"started before its window",
     [](World& w) {
       w.plain.later = 3ms;
       w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.window.earliest += 1ns; });
     }},
    {"started before its window",
     [](World& w) {  // by its own clock
       w.plain.later = 3ms;
       w.options.faults.clock_offset = 1ms;
       w.device = [](Checker&, DeviceId&, bool&, Duration& clock, TimePoint&) { return clock -= 1ns, true; };
     }},
    {"started before its window",
     [](World& w) {
       w.decision = each_told<Load>([](Load& l, TimePoint now) { l.window.earliest = now + delay + 1ns; });
     }},
    {"started before it was there",
     [](World& w) {
       w.start = [](Checker&, ActionId&, DeviceId&, TimePoint& at) { return at -= 1ns, true; };
     }},
    {"started later than it could",
     [](World& w) {
       w.start = [](Checker&, ActionId&, DeviceId&, TimePoint& at) { return at += 1ns, true; };
     }},
    {"started later than it could",
     [](World& w) {
       w.plain.later = 3ms;
       w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.window.earliest -= 1ns; });
     }},
    {"started out of turn",
     [](World& w) {
       w.scenario.rate = 900;
       w.decision = each_told<Infer>([](Infer& i, TimePoint) {
         if (i.id.value % 5 == 0) i.window.earliest -= 100ms;
       });
     }},
    {"started after it was stopped",
     [](World& w) {
       w.scenario.rate = 900;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus& status, TimePoint&) {
         return status != ActionStatus::stopped;
       };
       w.decision = [](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
         if (Infer* i = first<Infer>(actions)) actions.push_back(Stop{i->id, i->device});
         return true;
       };
     }},
    {"started after its window",
     [](World& w) {
       w.decision =
           each_told<Infer>([](Infer& i, TimePoint now) { i.window.latest = now + 2 * delay - 1ns; });
     }},
    {"started after its window",
     [](World& w) {  // by its own clock
       w.options.faults.clock_offset = 1ms;
       w.decision = each_told<Infer>([](Infer& i, TimePoint now) { i.window.latest = now - 1ms; });
     }},
    {"started after its window",
     [](World& w) {
       w.decision = each_told<Load>([](Load& l, TimePoint now) { l.window.latest = now + delay - 1ns; });
     }},
    // -- ends
    {"ended what was not sent",
     [](World& w) {
       w.end = [](Checker&, ActionId& id, DeviceId&, ActionStatus&, TimePoint&) { return id = far_id, true; };
     }},
    {"ended what was not sent",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId& device, ActionStatus&, TimePoint&) {
         return device.value = 1, true;
       };
     }},
    {"ended what does not run",
     [](World& w) {
       w.end = [](Checker& c, ActionId& id, DeviceId& device, ActionStatus& status, TimePoint& at) {
         c.on_end(id, device, status, at);
         return true;
       };
     }},
    {"ended without a start",
     [](World& w) { w.start = [](Checker&, ActionId&, DeviceId&, TimePoint&) { return false; }; }},
    {"never started",
     [](World& w) {
       w.start = [](Checker&, ActionId&, DeviceId&, TimePoint&) { return false; };
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint&) { return false; };
     }},
    {"never ended",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint&) { return false; };
     }},
    {"ran without its weights",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.model.value = 2; });
       w.end = ends_as(ActionStatus::not_loaded, ActionStatus::success);
     }},
    {"refused for weights that are there",
     [](World& w) { w.end = ends_as(ActionStatus::success, ActionStatus::not_loaded); }},
    {"refused within its window",
     [](World& w) { w.end = ends_as(ActionStatus::success, ActionStatus::too_late); }},
    {"refused within its window",
     [](World& w) {
       w.plain.patience = 1ms;
       w.scenario.rate = 900;
       w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.window.latest += 1s; });
     }},
    {"refused for memory that is there",
     [](World& w) { w.end = ends_as(ActionStatus::success, ActionStatus::no_memory); }},
    {"refused for memory that is there",  // having run
     [](World& w) {
       w.options.faults.lost_inputs = 0.01;
       w.end = ends_as(ActionStatus::success, ActionStatus::no_memory);
     }},
    {"more pages than there are",
     [](World& w) {
       w.decides = with<Load>([](const Load& l, TimePoint now) {
         return Load{far_id, l.device, ModelId{2}, {now, TimePoint::max()}, 5ms};
       });
       w.end = ends_as(ActionStatus::no_memory, ActionStatus::success);
     }},
    {"loaded twice",
     [](World& w) {
       w.decides = with<Load>([](const Load& l, TimePoint now) {
         return Load{far_id, l.device, l.model, {now, TimePoint::max()}, 5ms};
       });
       w.end = ends_as(ActionStatus::failed, ActionStatus::success);
     }},
    {"failed without a cause",
     [](World& w) { w.end = ends_as(ActionStatus::success, ActionStatus::failed); }},
    {"failed without a cause",
     [](World& w) {
       w.options.faults.load_failures = 0.01;  // but not of INFERs
       w.end = [](Checker&, ActionId& id, DeviceId&, ActionStatus& status, TimePoint&) {
         return status = id.value > 10 ? ActionStatus::failed : status, true;
       };
     }},
    {"took too little time",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at -= 1ns, true; };
     }},
    {"took too little time",  // for a batch of two
     [](World& w) {
       w.plain.batch = 2;
       w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.requests.pop_back(); });
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) {
         return at -= 2ms + 1ns, true;
       };
     }},
    {"took too little time",  // on a device that is twice as slow
     [](World& w) {
       w.options.faults.speed = 2;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at -= 1us, true; };
     }},
    {"took too much time",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at += 1ns, true; };
     }},
    {"took too much time",
     [](World& w) {
       w.options.faults.speed = 2;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at += 1us, true; };
     }},
    {"took too much time",
     [](World& w) {
       w.options.faults.noise = 0.01;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at += 1ms, true; };
     }},
    {"took too much time",
     [](World& w) {
       w.options.faults.hiccups = 1;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at += 1us, true; };
     }},
    {"took too much time",
     [](World& w) {
       w.options.faults.slowdowns_per_s = 0.001;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at += 50ms, true; };
     }},
    {"went on after it was stopped",
     [](World& w) {
       w.decision = [](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
         if (Infer* i = first<Infer>(actions)) actions.push_back(Stop{i->id, i->device});
         return true;
       };
       w.start = [](Checker&, ActionId&, DeviceId&, TimePoint& at) { return at -= delay, true; };
     }},
    {"stopped by nobody", [](World& w) { w.end = ends_as(ActionStatus::success, ActionStatus::stopped); }},
    {"stopped by nobody",
     [](World& w) {
       w.scenario.rate = 900;
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus& status, TimePoint& at) {
         if (status == ActionStatus::stopped) at -= 1ns;
         return true;
       };
     }},
    {"not unloaded when it was told",
     [](World& w) {
       w.end = [](Checker&, ActionId& id, DeviceId&, ActionStatus&, TimePoint& at) {
         return at += id.value > 10 ? 1ns : 0ns, true;
       };
     }},
    {"not unloaded when it was told",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) {
         return at < TimePoint{200ms};
       };
     }},
    {"unloaded under a run",  // of which the end was kept back
     [](World& w) {
       const auto others = std::make_shared<std::set<ActionId>>(),
                  runs = std::make_shared<std::set<ActionId>>();
       w.decision = [=](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
         for (const schedule::Action& action : actions)
           if (const auto* infer = std::get_if<Infer>(&action))
             (infer->model == ModelId{1} ? *runs : *others).insert(infer->id);
         return true;
       };
       w.start = [=](Checker&, ActionId& id, DeviceId&, TimePoint&) { return !others->contains(id); };
       w.end = [=](Checker&, ActionId& id, DeviceId&, ActionStatus&, TimePoint&) {
         return !others->contains(id) && !runs->contains(id);
       };
     }},
    // -- reports
    {"a report of nothing",
     [](World& w) { w.decision = each_heard<ActionDone>([](auto& e, TimePoint&) { e.id = far_id; }); }},
    {"a report of nothing", [](World& w) { w.decision = heard_twice<ActionDone>(); }},
    {"a report of nothing",
     [](World& w) {
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint&) { return false; };
     }},
    {"a report that is not so",
     [](World& w) {
       w.decision = each_heard<ActionDone>([](auto& e, TimePoint&) { e.status = ActionStatus::failed; });
     }},
    {"a report that is not so",
     [](World& w) { w.decision = each_heard<ActionDone>([](auto& e, TimePoint&) { e.start += 1ns; }); }},
    {"a report that is not so",
     [](World& w) { w.decision = each_heard<ActionDone>([](auto& e, TimePoint&) { e.end += 1ns; }); }},
    {"a report that is not so",
     [](World& w) { w.decision = each_heard<ActionDone>([](auto& e, TimePoint&) { e.duration += 1ns; }); }},
    {"a report that is not so",
     [](World& w) {  // by another clock than the device's
       w.options.faults.clock_offset = 1ms;
       w.device = [](Checker&, DeviceId&, bool&, Duration& clock, TimePoint&) {
         return clock = -clock, true;
       };
     }},
    {"a report out of time",
     [](World& w) { w.decision = each_heard<ActionDone>([](auto&, TimePoint& now) { now += 1ns; }); }},
    {"a report out of time",
     [](World& w) { w.decision = each_heard<ActionDone>([](auto&, TimePoint& now) { now -= 1ns; }); }},
    {"a report out of time",
     [](World& w) {
       w.options.faults.late_reports = 0.1;
       w.decision = each_heard<ActionDone>([](auto&, TimePoint& now) { now += 20ms + 1ns; });
     }},
    {"reported twice",
     [](World& w) {  // three times
       w.options.faults.doubled_reports = 0.5;
       w.decision = heard_twice<ActionDone>();
     }},
    {"never reported", [](World& w) { w.decision = unheard<ActionDone>(); }},
    // -- the scheduler
    {"a wake that nobody asked for", [](World& w) { w.hide_wakes = true; }},
    {"a wake that nobody asked for",
     [](World& w) { w.decision = each_heard<Wake>([](auto&, TimePoint& now) { now -= 1ns; }); }},
    {"a wake that was not given", [](World& w) { w.decision = unheard<Wake>(); }},
    {"a wake in the past",
     [](World& w) {
       w.wakes = [](TimePoint wake, TimePoint now) { return wake < TimePoint::max() ? now : wake; };
     }},
    {"a sample of nothing",
     [](World& w) {
       of_two_modes(w);
       w.decision = [](Checker&, schedule::Event& event, TimePoint, schedule::Actions&) {
         if (std::holds_alternative<Wake>(event)) event = RequestProfiled{ModelId{0}, AppId{}, 1ns};
         return true;
       };
     }},
    {"two decisions at once",
     [](World& w) {
       w.options.decision_time = 50us;
       w.decided = [](Checker&, TimePoint&) { return false; };
     }},
    {"sent what was not decided",
     [](World& w) {
       w.options.decision_time = 50us;
       w.decided = [](Checker& c, TimePoint& at) { return c.on_decided(at), true; };
     }},
    {"started later than it could",
     [](World& w) {
       w.options.decision_time = 50us;
       w.decided = [](Checker&, TimePoint& at) { return at -= 1ns, true; };
     }},
    {"heard out of time",  // though it was turned away
     [](World& w) {
       w.options.decision_time = 50us;
       w.decision = [](Checker& c, schedule::Event& event, TimePoint now, schedule::Actions&) {
         if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
           Request r = arrival->request;
           r.arrival -= delay;
           c.on_outcome(r, Outcome::refused, now);
         }
         return true;
       };
     }},
    {"an action's id was used before",
     [](World& w) { w.decision = each_told<Infer>([](Infer& i, TimePoint) { i.id.value -= 1; }); }},
    {"an action for a dead device",
     [](World& w) {
       w.scenario.devices = 2;
       w.decision = [](Checker&, schedule::Event& event, TimePoint, schedule::Actions& actions) {
         if (Infer* i = first<Infer>(actions)) i->device.value = 1;
         const auto* change = std::get_if<DeviceChanged>(&event);
         return change == nullptr || change->device == DeviceId{0};
       };
     }},
    {"an action for a dead device", [](World& w) { w.options.faults.deaths_per_s = 20; }},
    {"a window that ends before it begins",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.window.latest = i.window.earliest - 1ns; });
     }},
    {"a LOAD of what is there",
     [](World& w) {
       w.decides = with<Load>([](const Load& l, TimePoint now) {
         return Load{far_id, l.device, l.model, {now, TimePoint::max()}, 5ms};
       });
     }},
    {"a LOAD without free pages",
     [](World& w) {
       w.decides = with<Load>([](const Load& l, TimePoint now) {
         return Load{far_id, l.device, ModelId{2}, {now, TimePoint::max()}, 5ms};
       });
     }},
    {"an UNLOAD of what is not there",
     [](World& w) { w.decides = each<Unload>([](Unload& u, TimePoint) { u.model.value = 2; }); }},
    {"an UNLOAD of a model in use",
     [](World& w) {
       w.decides = with<Infer>([](const Infer& i, TimePoint) { return Unload{far_id, i.device, i.model}; });
     }},
    {"sent to where its weights are not",
     [](World& w) { w.decides = each<Infer>([](Infer& i, TimePoint) { i.model.value = 2; }); }},
    {"sent to where its weights are not",
     [](World& w) {
       w.decides = with<Unload>([](const Unload& u, TimePoint now) {
         return Infer{far_id, u.device, u.model, {RequestId{0}}, {now, TimePoint::max()}, 5ms};
       });
     }},
    {"no such batch size",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.requests.resize(3, i.requests.front()); });
     }},
    {"no such batch size",
     [](World& w) {
       for (auto& m : w.scenario.models) m.batch_sizes = {2};
     }},
    {"a request twice in a batch",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.requests.push_back(i.requests.front()); });
     }},
    {"ran what is not open",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.requests.front().value += 1000; });
     }},
    {"ran what is not open",
     [](World& w) {  // what was refused
       w.decides = with<Refuse>([](const Refuse& r, TimePoint now) {
         return Infer{far_id, DeviceId{0}, ModelId{0}, {r.request}, {now, TimePoint::max()}, 5ms};
       });
     }},
    {"ran what is not open",
     [](World& w) {  // what is cancelled
       cancelled(w);
       w.decides = [](const schedule::Event& event, TimePoint now, schedule::Actions& actions) {
         if (const auto* gone = std::get_if<RequestCancelled>(&event))
           actions.push_back(
               Infer{far_id, DeviceId{0}, ModelId{0}, {gone->request}, {now, TimePoint::max()}, 5ms});
       };
     }},
    {"ran under another model",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.model.value = (i.model.value + 1) % 3; });
     }},
    {"ran twice at once",
     [](World& w) {
       w.decides = with<Infer>([](const Infer& i, TimePoint) {
         Infer more = i;
         more.id = far_id;
         return more;
       });
     }},
    {"refused what is not open",
     [](World& w) { w.decides = with<Refuse>([](const Refuse& r, TimePoint) { return r; }); }},
    {"refused what is not open",
     [](World& w) { w.decides = each<Refuse>([](Refuse& r, TimePoint) { r.request.value += 1000; }); }},
    {"refused what runs",
     [](World& w) {
       w.decides = with<Infer>([](const Infer& i, TimePoint now) {
         return Refuse{i.requests.front(), schedule::Reason::cannot_finish, now};
       });
     }},
    {"a stop of what does not run",
     [](World& w) { w.decides = each<Stop>([](Stop& s, TimePoint) { s.id = far_id; }); }},
    {"a stop of what does not run",
     [](World& w) { w.decides = with<Load>([](const Load& l, TimePoint) {
                      return Stop{l.id, l.device};
                    }); }},
    // -- figures
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.loads; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.unloads; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.stopped; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.too_late; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.decisions; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.span += 1ns; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.batch_sizes.at(1); }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.busy.at(0) += 1ns; }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { f.timeline.at(3).end += 1ns; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.models.pop_back(); }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { f.models.at(0).name.assign(1, 'x'); }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.models.at(0).slo += 1ns; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).offered; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).on_time; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).late; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).refused; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).cancelled; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).batches; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).batched; }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { f.models.at(0).latencies.at(2) += 1ns; }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).offered_by.at(1); }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).on_time_by.at(1); }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.intervals.pop_back(); }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { ++f.intervals.at(1).offered; }; }},
};

TEST(Checker, FindsEveryPromiseBroken) {
  int row = 0;
  for (const Fault& fault : faults) {
    World world;
    fault.plant(world);
    const auto problems = world.problems();
    std::string text;
    for (const auto& [kind, detail] : problems) text += "  " + kind + ": " + detail + "\n";
    EXPECT_TRUE(problems.contains(fault.found)) << "row " << row << ": " << fault.found << " in\n" << text;
    ++row;
  }
}

// Whatever the checker can say is said by some row above.
TEST(Checker, HasNoPromiseThatWasNeverBroken) {
  std::set<std::string> broken;
  for (const Fault& fault : faults) broken.insert(fault.found);
  std::size_t said = 0;
  for (const char* file : {"checker.cpp", "device_account.cpp"}) {
    std::ifstream in(std::string(CARILLON_SOURCE_DIR "/src/carillon/simulate/testing/") + file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::regex words("\"([A-Za-z][^\"]* [^\"]*[a-z])\"");
    for (std::sregex_iterator at(text.begin(), text.end(), words), end; at != end; ++at) {
      ++said;
      EXPECT_TRUE(broken.contains((*at)[1])) << (*at)[1];
    }
  }
  EXPECT_GE(said, broken.size());
}

TEST(Checker, FindsNothingWhereNothingIsWrong) {
  const std::function<void(World&)> worlds[] = {
      [](World&) {},
      cancelled,
      of_two_modes,
      closed_loop,
      [](World& w) { w.plain.later = 3ms; },
      [](World& w) { w.plain.patience = 0ns; },
      [](World& w) { w.plain.patience = 2 * delay; },  // what finds the device idle starts at the last moment
      [](World& w) { w.plain.batch = 2; },
      [](World& w) { w.scenario.rate = 900; },
      [](World& w) { w.scenario.network_delay = Duration{0}; },
      [](World& w) { w.scenario.memory.reset(); },
      [](World& w) { w.options.faults.clock_offset = 1ms; },
      [](World& w) { w.options.faults.speed = 0.7; },
      [](World& w) { w.options.faults.noise = 0.3; },
      [](World& w) { w.options.faults.hiccups = 0.1; },
      [](World& w) { w.options.faults.slowdowns_per_s = 20; },
      [](World& w) { w.options.faults.stalls_per_s = 20; },
      [](World& w) { w.options.faults.infer_failures = 0.3; },
      [](World& w) { w.options.faults.lost_inputs = 0.3; },
      [](World& w) { w.options.faults.late_reports = 0.3; },
      [](World& w) { w.options.faults.doubled_reports = 0.3; },
      [](World& w) { w.options.decision_time = 50us; },
      [](World& w) { w.options.measured_decisions = true; },
      [](World& w) {
        w.options.decision_time = 50us;
        cancelled(w);
      },
  };
  int row = 0;
  for (const auto& change : worlds) {
    World world;
    change(world);
    for (const auto& [kind, detail] : world.problems())
      ADD_FAILURE() << "row " << row << ": " << kind << ": " << detail;
    ++row;
  }
}

}  // namespace
}  // namespace carillon::simulate::testing
