// A checker that finds nothing proves nothing: here each of its promises is broken once, and must be found.
#include "carillon/simulate/testing/checker.h"

#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <set>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

struct Table {
  const char* whose;
  std::span<const Fault> faults;
};

const Table tables[] = {{"requests", by_requests()},   {"devices", by_devices()}, {"runs", by_runs()},
                        {"decisions", by_decisions()}, {"figures", by_figures()}, {"classes", by_classes()}};

TEST(Checker, FindsEveryPromiseBroken) {
  for (const auto& [whose, faults] : tables) {
    int row = 0;
    for (const Fault& fault : faults) {
      World world;
      fault.plant(world);
      const auto problems = world.problems();
      std::string text;
      for (const auto& [kind, detail] : problems) text += "  " + kind + ": " + detail + "\n";
      EXPECT_TRUE(problems.contains(fault.found))
          << whose << ", row " << row << ": " << fault.found << " in\n"
          << text;
      ++row;
    }
  }
}

// Whatever the checker can say is said by some row of the tables.
TEST(Checker, HasNoPromiseThatWasNeverBroken) {
  std::set<std::string> broken;
  for (const Table& table : tables)
    for (const Fault& fault : table.faults) broken.insert(fault.found);
  std::size_t said = 0;
  for (const char* file : {"checker.cpp", "device_account.cpp", "class_account.cpp"}) {
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
      by_class,
      [](World& w) {
        by_class(w);
        w.options.stop_latency = 300us;
        w.scenario.network_delay = Duration{0};
      },
      [](World& w) {  // normal runs make way for whatever comes
        by_class(w);
        w.decides = [by = w.decides](const schedule::Event& event, TimePoint now,
                                     schedule::Actions& actions) {
          by(event, now, actions);
          if (const auto* infer = first<schedule::Infer>(actions);
              infer != nullptr && infer->cls == Class::normal)
            actions.emplace_back(schedule::Preempt{infer->id, infer->device, TimePoint::max()});
        };
      },
      [](World& w) {
        by_class(w);
        w.options.faults.noise = 0.3;
        w.options.faults.stalls_per_s = 20;
      },
      [](World& w) { w.plain.later = 3ms; },
      [](World& w) { w.plain.patience = 0ns; },
      [](World& w) { w.plain.patience = 2 * delay; },  // what finds the device idle starts at the last moment
      [](World& w) { w.plain.batch = 2; },
      [](World& w) { w.scenario.rate = 900; },
      [](World& w) { w.scenario.network_delay = Duration{0}; },
      [](World& w) { w.scenario.fetch = 3 * delay; },
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
}  // namespace carillon::simulate::testing::broken
