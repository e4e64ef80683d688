// Schedulers that hear what is not so, and decide what cannot be done.
#include <functional>
#include <optional>
#include <utility>

#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

using schedule::Action;
using schedule::ActionDone;
using schedule::DeviceChanged;
using schedule::GiveUp;
using schedule::Infer;
using schedule::Keep;
using schedule::Load;
using schedule::Refuse;
using schedule::RequestArrived;
using schedule::RequestCancelled;
using schedule::RequestProfiled;
using schedule::Stop;
using schedule::Unload;
using schedule::Wake;

// Tells the checker of one more action, in each decision on an event of a kind.
template <typename Kind>
auto tells(std::function<Action(const Kind&, TimePoint)> more) {
  return
      [more = std::move(more)](Checker&, schedule::Event& event, TimePoint now, schedule::Actions& actions) {
        if (const auto* found = std::get_if<Kind>(&event)) actions.push_back(more(*found, now));
        return true;
      };
}

schedule::Profile run_again(RequestId request, ModelId model, TimePoint now) {
  return {.id = far_id,
          .device = {0},
          .model = model,
          .request = request,
          .window = {now, TimePoint::max()},
          .expected = 5ms};
}

const Fault of_decisions[] = {
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
    {"a second report of nothing",
     [](World& w) {
       w.start = [](Checker& c, ActionId&, DeviceId& device, TimePoint& at) {
         return c.on_odd_report(device, at), true;
       };
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
    {"times that nobody changed",
     [](World& w) {
       w.decision = [](Checker&, schedule::Event& event, TimePoint, schedule::Actions&) {
         if (std::holds_alternative<Wake>(event)) event = schedule::TimesChanged{ModelId{0}, {{1, 1ns}}};
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
    {"an action for a dead device",
     [](World& w) {
       w.options.faults.deaths_per_s = 20;
       w.decision = [](Checker&, schedule::Event& event, TimePoint now, schedule::Actions& actions) {
         if (const auto* change = std::get_if<DeviceChanged>(&event); change != nullptr && !change->alive)
           actions.push_back(Load{far_id, change->device, ModelId{0}, {now, TimePoint::max()}, 5ms});
         return true;
       };
     }},
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
    {"called a failure what none was",
     [](World& w) {
       w.decides = each<Refuse>([](Refuse& r, TimePoint) { r.reason = schedule::Reason::device_failed; });
     }},
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
    {"a preemption of what does not run",
     [](World& w) {
       w.decides = with<Load>([](const Load& l, TimePoint) { return schedule::Preempt{l.id, l.device, {}}; });
     }},
    {"preempted too often", [](World& w) { preempted(w, 9); }},
    {"made late by a preemption",
     [](World& w) {
       preempted(w, 1);
       w.outcome = [](Checker&, Request& request, Outcome& what, TimePoint& at) {
         if (what == Outcome::on_time) what = Outcome::late, at = request.deadline + 1ns;
         return true;
       };
     }},
    // -- what is run again, and who is given up: told to the checker alone
    {"nothing to keep, or to forget",
     [](World& w) {
       w.decision = tells<RequestArrived>(
           [](const auto& arrived, TimePoint) { return Keep{{arrived.request.id.value + 1000}}; });
     }},
    {"nothing to keep, or to forget",
     [](World& w) {
       w.decision = tells<RequestArrived>([](const auto& arrived, TimePoint) {
         return Keep{arrived.request.id, false};
       });
     }},
    {"ran again what is not kept",
     [](World& w) {  // it was answered long ago
       of_two_modes(w);
       w.decision = tells<RequestArrived>([](const auto& arrived, TimePoint now) {
         return run_again({arrived.request.id.value / 2}, arrived.request.model, now);
       });
     }},
    {"ran again what is not kept",
     [](World& w) {  // its time does not vary
       w.decision = tells<RequestArrived>([kept = false](const auto& arrived, TimePoint now) mutable {
         return std::exchange(kept, true) ? Action{run_again({0}, arrived.request.model, now)}
                                          : Action{Keep{arrived.request.id}};
       });
     }},
    {"ran again while others wait",
     [](World& w) {
       of_two_modes(w);
       w.decision = tells<RequestArrived>(
           [first = std::optional<Request>{}](const auto& arrived, TimePoint now) mutable {
             if (first) return Action{run_again(first->id, first->model, now)};
             first = arrived.request;
             return Action{Keep{first->id}};
           });
     }},
    {"gave up what is dead",
     [](World& w) {
       w.decision = tells<RequestArrived>([](const auto&, TimePoint) { return GiveUp{DeviceId{7}}; });
     }},
    {"gave up what is dead",
     [](World& w) {  // by then
       w.decision = tells<RequestArrived>([](const auto&, TimePoint) { return GiveUp{DeviceId{0}}; });
     }},
    {"gave up what did not hang",
     [](World& w) {
       w.decision = tells<RequestArrived>([](const auto&, TimePoint) { return GiveUp{DeviceId{0}}; });
     }},
};

}  // namespace

std::span<const Fault> by_decisions() {
  return of_decisions;
}

}  // namespace carillon::simulate::testing::broken
