// Devices that come and go by themselves, and start what they should not, or at another time.
#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

using schedule::DeviceChanged;
using schedule::Infer;
using schedule::Load;
using schedule::Stop;

const Fault of_devices[] = {
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
};

}  // namespace

std::span<const Fault> by_devices() {
  return of_devices;
}

}  // namespace carillon::simulate::testing::broken
