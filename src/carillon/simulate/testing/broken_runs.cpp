// What ends on a device as it should not, or when.
#include <memory>
#include <optional>
#include <set>

#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

using schedule::Infer;
using schedule::Load;
using schedule::Stop;

// What is to make way does so when it has ended; and its end is told when that of the next is.
void ends_late(World& world) {
  world.scenario.rate = 900;
  world.decision = [told = std::optional<Infer>(), sent = TimePoint()](
                       Checker&, schedule::Event&, TimePoint now, schedule::Actions& actions) mutable {
    if (told && now >= sent + 3 * delay) {  // it has begun
      actions.push_back(schedule::Preempt{told->id, told->device, TimePoint::max()});
      told.reset();
    } else if (const Infer* infer = first<Infer>(actions); infer != nullptr && !told) {
      told = *infer;
      sent = now;
    }
    return true;
  };
  world.end = [held = std::optional<ActionId>()](Checker& checker, ActionId& id, DeviceId& device,
                                                 ActionStatus& status, TimePoint& at) mutable {
    if (id.value < 2) return true;  // LOADs
    if (held) checker.on_end(*held, device, status, at);
    held = id;
    return false;
  };
}

const Fault of_runs[] = {
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
    {"did not wait for its weights",
     [](World& w) {
       w.decides = each<Infer>([](Infer& i, TimePoint) { i.model.value = 2; });
       w.decision = [](Checker&, schedule::Event&, TimePoint now, schedule::Actions& actions) {
         if (const Infer* i = first<Infer>(actions); i != nullptr && i->id.value < 5)
           actions.insert(actions.begin(),
                          Load{far_id, i->device, i->model, {now + 1h, TimePoint::max()}, 5ms});
         return true;
       };
     }},
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
    {"made way later than it could", ends_late},
    {"made no way",  // the device is not told
     [](World& w) {
       w.scenario.rate = 900;
       w.decision = [](Checker&, schedule::Event&, TimePoint, schedule::Actions& actions) {
         if (const Infer* infer = first<Infer>(actions))
           actions.push_back(schedule::Preempt{infer->id, infer->device, TimePoint::max()});
         return true;
       };
     }},
    {"ended while it had made way", ends_late},
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
};

}  // namespace

std::span<const Fault> by_runs() {
  return of_runs;
}

}  // namespace carillon::simulate::testing::broken
