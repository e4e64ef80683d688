// What holds where devices have streams by class.
#include <memory>
#include <set>

#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

using schedule::Infer;

// As by_class(), but the checker is told that they are of another class.
auto told_as(Class cls) {
  return [cls](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
    for (schedule::Action& action : actions)
      if (auto* infer = std::get_if<Infer>(&action); infer != nullptr && infer->cls == Class::real_time)
        infer->cls = cls;
    return true;
  };
}

// Of the normal runs' Preempts, which let them make way for whatever comes, only one of the two is told: the
// device, or the checker.
auto makes_way(bool device_is_told) {
  return [device_is_told](World& w) {
    by_class(w);
    const auto preempt = [](schedule::Actions& actions) {
      if (const Infer* infer = first<Infer>(actions); infer != nullptr && infer->cls == Class::normal)
        actions.emplace_back(schedule::Preempt{infer->id, infer->device, TimePoint::max()});
    };
    if (device_is_told)
      w.decides = [preempt, by = w.decides](const schedule::Event& event, TimePoint now,
                                            schedule::Actions& actions) {
        by(event, now, actions);
        preempt(actions);
      };
    w.decision = [=](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
      if (!device_is_told)
        preempt(actions);
      else
        std::erase_if(actions,
                      [](const auto& action) { return std::holds_alternative<schedule::Preempt>(action); });
      return true;
    };
  };
}

const Fault of_classes[] = {
    {"two things at once", makes_way(true)},
    {"ended while it had made way", makes_way(false)},
    {"began in the way of what goes first",
     [](World& w) {
       by_class(w);
       w.decision = told_as(Class::best_effort);
     }},
    {"ran in the way of what goes first",  // what is in its way is said not to end
     [](World& w) {
       by_class(w);
       const auto urgent = std::make_shared<std::set<ActionId>>();
       w.decision = [=](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
         for (const schedule::Action& action : actions)
           if (const auto* infer = std::get_if<Infer>(&action);
               infer != nullptr && infer->cls == Class::real_time)
             urgent->insert(infer->id);
         return true;
       };
       w.end = [=](Checker&, ActionId& id, DeviceId&, ActionStatus&, TimePoint&) {
         return !urgent->contains(id);
       };
     }},
    {"ran in another class's stream",
     [](World& w) {
       by_class(w);
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.cls = Class::best_effort; });
     }},
    {"more of a class than a device is given",
     [](World& w) {
       by_class(w);
       w.scenario.rate = 2000;
       w.decides = each<Infer>([](Infer& i, TimePoint) {
         if (i.model == ModelId{1}) i.cls = Class::real_time;
       });
     }},
    {"more of a class than a device is given",  // which has no streams by class
     [](World& w) { w.decides = each<Infer>([](Infer& i, TimePoint) { i.cls = Class::real_time; }); }},
    {"took too much time",  // though it did not have to make way
     [](World& w) {
       by_class(w);
       w.end = [](Checker&, ActionId&, DeviceId&, ActionStatus&, TimePoint& at) { return at += 1ns, true; };
     }},
    {"started later than it could",
     [](World& w) {
       by_class(w);
       w.start = [](Checker&, ActionId&, DeviceId&, TimePoint& at) { return at += 1ns, true; };
     }},
    {"a report that is not so",
     [](World& w) {
       by_class(w);
       w.options.stop_latency = 50us;
       w.decision = each_heard<schedule::ActionDone>(
           [](schedule::ActionDone& done, TimePoint&) { done.duration = done.end - done.start + 1ns; });
     }},
};

}  // namespace

std::span<const Fault> by_classes() {
  return of_classes;
}

}  // namespace carillon::simulate::testing::broken
