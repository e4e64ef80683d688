#include "carillon/device/core.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::device {
namespace {

using Kind = Command::Kind;

TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window open_window{TimePoint::min(), TimePoint::max()};
constexpr Executor stream0 = first_stream;

// A core whose executors take their turns as soon as they are woken; what they are to do then waits in
// `todo` for the test to complete.
class Driven {
 public:
  explicit Driven(const Limits& limits, std::vector<std::uint64_t> pages = {1, 1, 1, 1}) : core(limits) {
    for (std::uint32_t i = 0; i < pages.size(); ++i) core.add_model(ModelId{i}, pages[i]);
  }

  Slot load(std::uint64_t id, std::uint32_t model, Window window = open_window) {
    return settle(core.submit(LoadAction{{id}, {model}, window}, now, out));
  }
  Slot unload(std::uint64_t id, std::uint32_t model, bool discard = false) {
    return settle(core.submit(UnloadAction{{id}, {model}, discard}, now, out));
  }
  Slot infer(std::uint64_t id, std::uint32_t model, Window window = open_window, std::uint8_t stream = 0,
             std::uint64_t units = 0, Class cls = Class::normal) {
    return settle(core.submit(
        InferAction{
            .id = {id}, .model = {model}, .window = window, .cls = cls, .stream = stream, .units = units},
        now, out));
  }
  // An INFER up to its launch, or to where it waits for one.
  Slot ready(std::uint64_t id, std::uint32_t model, Window window = open_window, int kernels = 10,
             std::uint64_t workspace = 0, std::uint8_t stream = 0) {
    const Slot slot = infer(id, model, window, stream);
    EXPECT_TRUE(take(Kind::gather, id));
    gathered(slot, kernels, workspace);
    return slot;
  }
  void gathered(Slot slot, int kernels = 10, std::uint64_t workspace = 0) {
    core.gathered(slot, {.kernels = kernels, .workspace = workspace}, now, out);
    settle(slot);
  }
  void no_room(Slot slot) {
    core.gathered(slot, {.status = ActionStatus::no_memory}, now, out);
    settle(slot);
  }
  void copied(Slot slot, bool done = true) {
    core.copied(slot, done, now, out);
    settle(slot);
  }
  void ended(Slot slot, int next = 10, bool failed = false) {
    core.ended(slot, next, failed, now, out);
    settle(slot);
  }
  void scattered(Slot slot) {
    core.scattered(slot, now, out);
    settle(slot);
  }
  void unmapped(Slot slot) {
    core.unmapped(slot, now, out);
    settle(slot);
  }
  void committed(Slot slot, TimePoint end) {
    core.committed(slot, end, now, out);
    settle(slot);
  }
  void evict(std::uint64_t id, After after, TimePoint order = {}) {
    core.evict({id}, after, order, now, out);
    settle(0);
  }
  void cancel(std::uint64_t id) {
    core.cancel({id}, now, out);
    settle(0);
  }
  // A model from nothing to loaded.
  void bring(std::uint64_t id, std::uint32_t model) {
    const Slot slot = load(id, model);
    EXPECT_TRUE(take(Kind::copy, id));
    copied(slot);
    EXPECT_EQ(reported(id), "success");
  }
  void tick(TimePoint to) {
    now = to;
    for (Executor e = 0; e < first_stream + 2 && e < first_stream + streams; ++e) core.turn(e, now, out);
    settle(0);
  }

  // Whether that is to be done, for that action; then it is taken off the list.
  bool take(Kind kind, std::uint64_t id) {
    const auto found = std::ranges::find_if(todo, [&](const Command& command) {
      return command.kind == kind && core.id(command.slot) == ActionId{id};
    });
    if (found == todo.end()) return false;
    last = *found;
    todo.erase(found);
    return true;
  }
  // What was reported of the action, with commas between where it was more than once.
  std::string reported(std::uint64_t id) const {
    std::string text;
    for (const auto& [action, status] : reports)
      if (action == ActionId{id}) text += (text.empty() ? "" : ",") + std::string(name_of(status));
    return text;
  }

  Core core;
  TimePoint now{};
  int streams = 1;
  std::vector<Command> todo;
  Command last;
  std::vector<std::pair<ActionId, ActionStatus>> reports;
  std::vector<Failure> failures;

 private:
  Slot settle(Slot slot) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Command command = out[i];
      if (command.kind == Kind::wake) {
        core.turn(command.executor, now, out);
      } else if (command.kind == Kind::report) {
        reports.emplace_back(core.id(command.slot), command.status);
        failures.push_back(command.failure);
      } else {
        todo.push_back(command);
      }
    }
    out.clear();
    return slot;
  }
  Commands out;
};

Limits limits() {
  return {.pages = 4, .io = kib(64), .workspace = kib(64), .queue = 8, .reserved = 8};
}

// Best-effort runs keep their pieces for long: they leave room for others.
TEST(DeviceCore, BestEffortLeavesAQuarterOfTheIoCache) {
  Driven d(limits());
  d.bring(0, 0);
  std::vector<Slot> slots;
  const auto takes = [&](std::uint64_t id, Class cls, std::uint64_t bytes) {
    slots.push_back(d.infer(id, 0, open_window, 0, 0, cls));
    EXPECT_TRUE(d.take(Kind::gather, id));
    const bool there = d.core.take_io(slots.back(), bytes);
    if (there)
      d.gathered(slots.back(), 1);
    else
      d.no_room(slots.back());
    return there;
  };
  EXPECT_TRUE(takes(1, Class::best_effort, std::uint64_t{60} * 1024)) << "one may have what it needs";
  EXPECT_FALSE(takes(2, Class::best_effort, 4096));
  EXPECT_TRUE(takes(3, Class::real_time, 4096));
  d.ended(slots[0], 1);
  d.scattered(slots[0]);
  EXPECT_TRUE(takes(4, Class::best_effort, std::uint64_t{40} * 1024));
  EXPECT_FALSE(takes(5, Class::best_effort, std::uint64_t{8} * 1024)) << "12 KiB would be left";
  EXPECT_TRUE(takes(6, Class::best_effort, std::uint64_t{4} * 1024));
  EXPECT_TRUE(takes(7, Class::normal, std::uint64_t{12} * 1024));
}

TEST(DeviceCore, AnInferGoesThroughItsSteps) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot slot = d.infer(1, 0, {at(10ms), at(20ms)});
  ASSERT_TRUE(d.take(Kind::gather, 1)) << "on receipt, before its window";
  ASSERT_TRUE(d.core.take_io(slot, 5000));
  EXPECT_EQ(d.core.free_io(), kib(64 - 8));
  d.gathered(slot, 3, 4096);
  EXPECT_FALSE(d.take(Kind::launch, 1)) << "its window is not open";
  Commands out;
  EXPECT_EQ(d.core.turn(stream0, d.now, out), at(10ms));
  d.tick(at(10ms));
  ASSERT_TRUE(d.take(Kind::launch, 1));
  EXPECT_EQ(d.last.kernel, 0);
  EXPECT_EQ(d.last.executor, stream0);
  EXPECT_EQ(d.core.free_workspace(), kib(60));
  d.ended(slot, 3);
  EXPECT_EQ(d.core.free_workspace(), kib(64)) << "a run's workspace is its own to its last kernel";
  ASSERT_TRUE(d.take(Kind::scatter, 1));
  EXPECT_EQ(d.reported(1), "");
  d.scattered(slot);
  EXPECT_EQ(d.reported(1), "success");
  EXPECT_EQ(d.core.free_io(), kib(64));
  EXPECT_EQ(d.core.open(), 0U);
  EXPECT_TRUE(d.core.at_rest());
}

TEST(DeviceCore, WithoutLimitsRowsAreTakenOnReceiptAndNobodyScatters) {
  Limits any = limits();
  any.gathers = any.scatters = 0;
  Driven d(any);
  d.bring(0, 0);
  const Slot a = d.infer(1, 0, {at(5ms), at(9ms)}), b = d.infer(2, 0);
  ASSERT_TRUE(d.take(Kind::gather, 2));
  ASSERT_TRUE(d.take(Kind::gather, 1));
  d.gathered(b);
  d.gathered(a);
  ASSERT_TRUE(d.take(Kind::launch, 2));
  d.ended(b);
  EXPECT_EQ(d.reported(2), "success");
  EXPECT_FALSE(d.take(Kind::scatter, 2));
  d.now = at(9ms) + 1ns;
  d.infer(3, 0, {at(5ms), at(9ms)});
  EXPECT_EQ(d.reported(3), "too_late");
  d.tick(d.now);
  EXPECT_EQ(d.reported(1), "too_late");
  EXPECT_EQ(d.core.open(), 0U);
}

TEST(DeviceCore, WindowsHoldForLoadAndExec) {
  Driven d(limits());
  d.now = at(21ms);
  d.load(0, 0, {at(10ms), at(20ms)});
  EXPECT_EQ(d.reported(0), "too_late");
  d.bring(1, 0);
  d.infer(2, 0, {at(10ms), at(20ms)});
  EXPECT_EQ(d.reported(2), "too_late") << "not even copied";
  const Slot slot = d.infer(3, 0, {at(30ms), at(40ms)});
  d.gathered(slot);
  d.tick(at(40ms) + 1ns);
  EXPECT_EQ(d.reported(3), "too_late");
}

TEST(DeviceCore, OneThingAtATimeInOrder) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot first = d.ready(1, 0), second = d.ready(2, 0);
  EXPECT_TRUE(d.take(Kind::launch, 1));
  EXPECT_FALSE(d.take(Kind::launch, 2));
  d.ended(first);
  EXPECT_TRUE(d.take(Kind::launch, 2));
  const Slot a = d.load(3, 1), b = d.load(4, 2);
  EXPECT_TRUE(d.take(Kind::copy, 3));
  EXPECT_FALSE(d.take(Kind::copy, 4));
  d.copied(a);
  EXPECT_TRUE(d.take(Kind::copy, 4));
  d.copied(b);
  const Slot x = d.infer(5, 0);
  d.infer(6, 0);
  EXPECT_TRUE(d.take(Kind::gather, 5));
  EXPECT_FALSE(d.take(Kind::gather, 6));
  d.gathered(x);
  EXPECT_TRUE(d.take(Kind::gather, 6));
  EXPECT_TRUE(d.take(Kind::scatter, 1));
  d.ended(second);
  EXPECT_FALSE(d.take(Kind::scatter, 2));
  d.scattered(first);
  EXPECT_TRUE(d.take(Kind::scatter, 2));
}

TEST(DeviceCore, PagesAreTakenAndComeBack) {
  Driven d(limits(), {3, 2, 5, 0});
  d.bring(0, 0);
  EXPECT_EQ(d.core.free_pages(), 1U);
  EXPECT_EQ(d.core.pages(ModelId{0}).size(), 3U);
  d.load(1, 1);
  EXPECT_EQ(d.reported(1), "no_memory");
  d.load(2, 2);
  EXPECT_EQ(d.reported(2), "no_memory") << "more than there will ever be";
  d.load(3, 0);
  EXPECT_EQ(d.reported(3), "failed");
  EXPECT_EQ(d.failures.back(), Failure::loaded_already);
  d.load(4, 9);
  EXPECT_EQ(d.failures.back(), Failure::unknown_model);
  d.unload(5, 9);
  EXPECT_EQ(d.failures.back(), Failure::unknown_model);
  const Slot gone = d.unload(6, 0);
  EXPECT_FALSE(d.core.loaded(ModelId{0})) << "at once";
  EXPECT_EQ(d.core.free_pages(), 1U) << "but its pages are there until they are unmapped";
  ASSERT_TRUE(d.take(Kind::unmap, 6));
  EXPECT_EQ(d.core.pages(ModelId{0}).size(), 3U);
  d.unmapped(gone);
  EXPECT_EQ(d.reported(6), "success");
  EXPECT_EQ(d.core.free_pages(), 4U);
  d.unload(7, 0);
  EXPECT_EQ(d.reported(7), "success") << "of what is not there";
  const Slot failing = d.load(8, 1);
  ASSERT_TRUE(d.take(Kind::copy, 8));
  d.copied(failing, false);
  EXPECT_EQ(d.reported(8), "failed");
  EXPECT_EQ(d.core.free_pages(), 4U);
  d.ready(9, 0);
  EXPECT_EQ(d.reported(9), "not_loaded");
  d.ready(10, 3);
  EXPECT_TRUE(d.take(Kind::launch, 10)) << "a model without pages is always there";
}

TEST(DeviceCore, AModelComesAgainWithOtherPages) {
  Driven d(limits(), {2, 0});
  d.core.set_pages(ModelId{0}, 3);
  d.bring(0, 0);
  EXPECT_EQ(d.core.free_pages(), 1U);
  d.core.set_pages(ModelId{0}, 1);
  EXPECT_EQ(d.core.pages(ModelId{0}).size(), 3U) << "what is there stays";
  const Slot gone = d.unload(1, 0);
  d.unmapped(gone);
  EXPECT_EQ(d.core.free_pages(), 4U);
  d.todo.clear();
  d.bring(2, 0);
  EXPECT_EQ(d.core.free_pages(), 3U);
  d.core.set_pages(ModelId{1}, 2);
  EXPECT_FALSE(d.core.loaded(ModelId{1})) << "it has pages now";
}

TEST(DeviceCore, UnloadWaitsForTheRunAndALoadForTheUnload) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot run = d.ready(1, 0);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  const Slot unload = d.unload(2, 0);
  EXPECT_FALSE(d.take(Kind::unmap, 2)) << "under a run";
  const Slot again = d.load(3, 0);
  EXPECT_FALSE(d.take(Kind::copy, 3));
  const Slot other = d.load(4, 1);
  EXPECT_TRUE(d.take(Kind::copy, 4)) << "another model's goes on";
  d.copied(other);
  d.ready(5, 0);  // finds it gone once its turn comes, and that it is coming again
  d.ended(run);
  EXPECT_EQ(d.reported(5), "");
  ASSERT_TRUE(d.take(Kind::unmap, 2));
  EXPECT_FALSE(d.take(Kind::copy, 3)) << "not before the pages are back";
  d.unmapped(unload);
  ASSERT_TRUE(d.take(Kind::copy, 3));
  d.copied(again);
  EXPECT_EQ(d.reported(2) + d.reported(3), "successsuccess");
  EXPECT_TRUE(d.core.loaded(ModelId{0}));
  EXPECT_TRUE(d.take(Kind::launch, 5));
}

TEST(DeviceCore, AnInferWaitsForTheLoadOfItsModelAndOthersGoOn) {
  Driven d(limits());
  d.bring(0, 1);
  const Slot load = d.load(1, 0);
  d.ready(2, 0);
  EXPECT_FALSE(d.take(Kind::launch, 2));
  EXPECT_EQ(d.reported(2), "");
  const Slot other = d.ready(3, 1);
  ASSERT_TRUE(d.take(Kind::launch, 3)) << "its model is there";
  d.ready(4, 1);
  d.copied(load);
  EXPECT_EQ(d.reported(1), "success");
  EXPECT_FALSE(d.take(Kind::launch, 2)) << "beside another run";
  d.ended(other);
  EXPECT_TRUE(d.take(Kind::launch, 2)) << "in its place: before what came later";
  EXPECT_FALSE(d.take(Kind::launch, 4));
}

TEST(DeviceCore, AnInferThatWaitsForALoadStartsAsThatEnds) {
  Driven d(limits());
  const Slot load = d.load(1, 0);
  d.ready(2, 0, {TimePoint::min(), at(5ms)});
  d.now = at(5ms);  // the end of its window belongs to it
  d.copied(load);
  EXPECT_TRUE(d.take(Kind::launch, 2));
}

TEST(DeviceCore, AnInferWaitsForALoadWithinItsWindowOnly) {
  Driven d(limits());
  const Slot load = d.load(1, 0);
  d.ready(2, 0, {TimePoint::min(), at(5ms)});
  d.ready(3, 0, {TimePoint::min(), at(4ms)});
  Commands out;
  EXPECT_EQ(d.core.turn(stream0, at(1ms), out), at(4ms) + 1ns) << "when the first window has closed";
  d.tick(at(4ms) + 1ns);
  EXPECT_EQ(d.reported(3), "too_late");
  EXPECT_EQ(d.reported(2), "");
  d.tick(at(5ms));
  EXPECT_EQ(d.reported(2), "");
  d.tick(at(6ms));
  EXPECT_EQ(d.reported(2), "too_late");
  d.copied(load);
  EXPECT_FALSE(d.take(Kind::launch, 2));
}

TEST(DeviceCore, AnInferWhoseLoadComesToNothingFindsNoWeights) {
  Driven d(limits(), {1, 1, 5});
  const Slot load = d.load(1, 0);
  d.ready(2, 0);
  d.copied(load, false);
  EXPECT_EQ(d.reported(1) + " " + d.reported(2), "failed not_loaded");
  // One that is refused in its turn.
  const Slot copying = d.load(3, 1);
  d.load(4, 2);
  d.load(5, 0, {TimePoint::min(), at(1ms)});
  d.ready(6, 2);
  d.ready(7, 0);
  EXPECT_EQ(d.reported(6) + d.reported(7), "");
  d.now = at(2ms);
  d.copied(copying);
  EXPECT_EQ(d.reported(4) + " " + d.reported(5), "no_memory too_late");
  EXPECT_EQ(d.reported(6) + " " + d.reported(7), "not_loaded not_loaded");
}

TEST(DeviceCore, AnInferWaitsForTheSecondLoadWhereTheFirstFails) {
  Driven d(limits());
  const Slot first = d.load(1, 0);
  d.load(2, 0);
  d.ready(3, 0);
  d.copied(first, false);
  EXPECT_EQ(d.reported(3), "");
  ASSERT_TRUE(d.take(Kind::copy, 2));
  d.copied(d.last.slot);
  EXPECT_TRUE(d.take(Kind::launch, 3));
}

// It may be of another version of the model than the INFER.
TEST(DeviceCore, AnInferDoesNotWaitForALoadThatWasToldLater) {
  Driven d(limits());
  d.bring(0, 1);
  const Slot run = d.ready(1, 1);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  d.ready(2, 0);
  const Slot load = d.load(3, 0);
  ASSERT_TRUE(d.take(Kind::copy, 3));
  d.ready(4, 0);
  d.ended(run);
  EXPECT_EQ(d.reported(2) + "," + d.reported(4), "not_loaded,");
  d.copied(load);
  EXPECT_TRUE(d.take(Kind::launch, 4));
}

TEST(DeviceCore, AnInferThatWaitsForALoadIsStoppedAsAny) {
  Driven d(limits());
  const Slot load = d.load(1, 0);
  d.ready(2, 0);
  d.evict(2, After::drop);
  EXPECT_EQ(d.reported(2), "stopped");
  d.copied(load);
  EXPECT_FALSE(d.take(Kind::launch, 2));
  // Nor does it outlive the device.
  d.unload(3, 0);
  ASSERT_TRUE(d.take(Kind::unmap, 3));
  d.unmapped(d.last.slot);
  d.load(4, 0);
  d.ready(5, 0);
  d.core.retire();
  EXPECT_EQ(d.core.open(), 1U) << "the copy that an executor has in hand";
}

TEST(DeviceCore, UnloadUnderACopyFollowsIt) {
  Driven d(limits());
  const Slot load = d.load(0, 0);
  const Slot unload = d.unload(1, 0);
  EXPECT_EQ(d.reported(1), "");
  d.copied(load);
  EXPECT_EQ(d.reported(0), "success");
  ASSERT_TRUE(d.take(Kind::unmap, 1));
  EXPECT_FALSE(d.core.loaded(ModelId{0}));
  d.unmapped(unload);
  EXPECT_EQ(d.core.free_pages(), 4U);
}

TEST(DeviceCore, AStopEndsWhatHasNotRunOrDropsIt) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot running = d.ready(1, 0);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  d.ready(2, 0);
  const Slot gathering = d.infer(3, 0);
  ASSERT_TRUE(d.take(Kind::gather, 3));
  d.infer(4, 0);
  d.evict(4, After::drop);
  EXPECT_EQ(d.reported(4), "stopped");
  d.evict(3, After::drop);
  EXPECT_EQ(d.reported(3), "") << "INPUT has it in hand";
  d.gathered(gathering);
  EXPECT_EQ(d.reported(3), "stopped");
  d.evict(2, After::drop);
  EXPECT_EQ(d.reported(2), "stopped");
  d.evict(1, After::drop);
  ASSERT_TRUE(d.take(Kind::evict, 1));
  d.evict(1, After::drop);
  EXPECT_FALSE(d.take(Kind::evict, 1)) << "once";
  d.ended(running, 4);
  EXPECT_EQ(d.reported(1), "stopped");
  d.evict(77, After::drop);  // nobody's
  const Slot last = d.ready(5, 0);
  d.evict(5, After::drop);
  d.ended(last, 10);
  ASSERT_TRUE(d.take(Kind::scatter, 5)) << "its last kernel had begun: it ends as any";
  d.evict(5, After::drop);
  d.scattered(last);
  EXPECT_EQ(d.reported(5), "success");
  EXPECT_EQ(d.core.free_io(), kib(64));
}

TEST(DeviceCore, ACancelEndsWhatHasNotBegunAndNothingElse) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot running = d.ready(1, 0);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  d.ready(2, 0);
  const Slot copying = d.load(3, 1);
  ASSERT_TRUE(d.take(Kind::copy, 3));
  d.load(4, 2);
  d.unload(5, 0);  // waits for the run
  d.load(6, 0);    // and this waits for the UNLOAD
  d.ready(7, 1);   // and this for its LOAD
  for (std::uint64_t id = 1; id <= 8; ++id) d.cancel(id);
  for (const std::uint64_t id : {1, 3, 5}) EXPECT_EQ(d.reported(id), "") << id;
  for (const std::uint64_t id : {2, 4, 6, 7}) EXPECT_EQ(d.reported(id), "stopped") << id;
  d.copied(copying);
  EXPECT_EQ(d.reported(3), "success");
  d.ended(running);
  ASSERT_TRUE(d.take(Kind::scatter, 1));
  ASSERT_TRUE(d.take(Kind::unmap, 5));
  d.unmapped(d.last.slot);
  EXPECT_TRUE(d.todo.empty());
}

// Whether it is at the LOAD executor or behind the UNLOAD: what follows keeps its place.
TEST(DeviceCore, ACancelledLoadLeavesTheOthersInTheirOrder) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot running = d.ready(1, 0);
  d.unload(2, 0);
  for (std::uint64_t id = 3; id <= 6; ++id) id == 4 ? d.unload(id, 0) : d.load(id, 0);
  d.tick(at(1ms));
  for (const std::uint64_t id : {3, 6}) {
    d.cancel(id);
    EXPECT_EQ(d.reported(id), "stopped") << id;
  }
  d.ended(running);
  ASSERT_TRUE(d.take(Kind::unmap, 2));
  d.unmapped(d.last.slot);
  EXPECT_EQ(d.reported(4), "success") << "there is nothing any more";
  ASSERT_TRUE(d.take(Kind::copy, 5));
}

TEST(DeviceCore, AnEvictedRunResumesAtItsKernelAndIsReportedOnce) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot longer = d.ready(1, 0, open_window, 10, 8192);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  const Slot urgent = d.ready(2, 0, {at(1ms), at(9ms)}, 10, 4096);
  d.now = at(2ms);
  d.evict(1, After::resume, at(3ms));
  ASSERT_TRUE(d.take(Kind::evict, 1));
  d.ended(longer, 4);
  ASSERT_TRUE(d.take(Kind::launch, 2));
  EXPECT_EQ(d.core.free_workspace(), kib(64 - 12)) << "each its own";
  const Slot unload = d.unload(3, 0);
  d.ended(urgent);
  ASSERT_TRUE(d.take(Kind::launch, 1)) << "though its model is being unloaded";
  EXPECT_EQ(d.last.kernel, 4);
  EXPECT_FALSE(d.take(Kind::unmap, 3)) << "a run that waits keeps its model's pages";
  d.evict(1, After::resume, at(4ms));
  EXPECT_FALSE(d.take(Kind::evict, 1)) << "nobody else is there";
  EXPECT_EQ(d.reported(1), "");
  d.ended(longer, 10);
  EXPECT_TRUE(d.take(Kind::unmap, 3));
  d.unmapped(unload);
  d.scattered(urgent);
  d.scattered(longer);
  EXPECT_EQ(d.reported(1), "success");
  EXPECT_EQ(d.core.free_workspace(), kib(64));
}

TEST(DeviceCore, ARunMakesWayOnceWhatComesBeforeItIsThere) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot longer = d.ready(1, 0, open_window, 10, kib(20).count);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  d.now = at(5ms);
  d.evict(1, After::resume, at(2ms));
  d.ready(2, 0, {at(3ms), TimePoint::max()});
  EXPECT_FALSE(d.take(Kind::evict, 1)) << "it comes later";
  d.ready(3, 0, {at(1ms), TimePoint::max()}, 10, kib(60).count);
  EXPECT_FALSE(d.take(Kind::evict, 1)) << "it has no room beside it";
  d.ended(longer);
  ASSERT_TRUE(d.take(Kind::launch, 3)) << "which came first";

  Driven e(limits());
  e.bring(0, 0);
  e.now = at(5ms);
  const Slot run = e.ready(1, 0);
  e.evict(1, After::resume, at(2ms));
  const Slot urgent = e.ready(2, 0, {at(1ms), TimePoint::max()});
  ASSERT_TRUE(e.take(Kind::evict, 1));
  e.ready(3, 0, {at(1ms), TimePoint::max()});
  EXPECT_FALSE(e.take(Kind::evict, 1)) << "once";
  e.ended(run, 4);
  ASSERT_TRUE(e.take(Kind::launch, 2));
  e.ended(urgent);
  ASSERT_TRUE(e.take(Kind::launch, 3));
}

TEST(DeviceCore, WhatIsToldToMakeWayBeforeItBeginsDoesSo) {
  for (const bool gathering : {false, true}) {
    Driven d(limits());
    d.bring(0, 0);
    const Slot first = d.ready(1, 0);
    d.now = at(5ms);
    const Slot run = d.infer(2, 0);
    ASSERT_TRUE(d.take(Kind::gather, 2));
    if (gathering) d.evict(2, After::resume, at(2ms));
    d.gathered(run);
    if (!gathering) d.evict(2, After::resume, at(2ms));
    d.ended(first);
    ASSERT_TRUE(d.take(Kind::launch, 2)) << "nothing else is there";
    d.ready(3, 0, {at(1ms), TimePoint::max()});
    ASSERT_TRUE(d.take(Kind::evict, 2));
    d.ended(run, 3);
    EXPECT_TRUE(d.take(Kind::launch, 3));
  }
}

TEST(DeviceCore, ARunThatWaitsToResumeHasItsPlaceInTheOrder) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot run = d.ready(1, 0);
  const Slot before = d.ready(2, 0, {at(1ms), TimePoint::max()});
  d.ready(3, 0, {at(3ms), TimePoint::max()});
  d.now = at(5ms);
  d.evict(1, After::resume, at(2ms));
  d.ended(run, 5);
  ASSERT_TRUE(d.take(Kind::launch, 2));
  d.ended(before);
  ASSERT_TRUE(d.take(Kind::launch, 1)) << "behind 2, before 3";
  d.ended(run);
  EXPECT_TRUE(d.take(Kind::launch, 3));
}

// What it is to make way for is there already as it begins.
TEST(DeviceCore, OneThatWasToldBeforeItBeganMakesWayAsItBegins) {
  Driven d(limits());
  d.bring(0, 0);
  d.now = at(5ms);
  const Slot before = d.ready(1, 0);
  const Slot run = d.ready(2, 0, {at(1ms), TimePoint::max()});
  const Slot first = d.ready(3, 0, {at(2ms), TimePoint::max()});
  d.evict(2, After::resume, at(3ms));
  d.ended(before);
  ASSERT_TRUE(d.take(Kind::launch, 2)) << "in its place";
  ASSERT_TRUE(d.take(Kind::evict, 2));
  d.ended(run, 1);
  ASSERT_TRUE(d.take(Kind::launch, 3));
  d.ended(first);
  ASSERT_TRUE(d.take(Kind::launch, 2));
  EXPECT_EQ(d.last.kernel, 1);
  d.ready(4, 0, {at(1ms), TimePoint::max()});
  EXPECT_FALSE(d.take(Kind::evict, 2)) << "once";
}

TEST(DeviceCore, DropOverrulesResume) {
  for (const bool suspended : {false, true}) {
    Driven d(limits());
    d.bring(0, 0);
    const Slot run = d.ready(1, 0, open_window, 10, 4096);
    ASSERT_TRUE(d.take(Kind::launch, 1));
    const Slot next = d.ready(2, 0);
    d.evict(1, After::resume, at(1ms));
    if (!suspended) d.evict(1, After::drop);
    if (!suspended) d.evict(1, After::resume);  // too late
    d.ended(run, 5);
    ASSERT_TRUE(d.take(Kind::launch, 2));
    if (suspended) {
      EXPECT_EQ(d.reported(1), "");
      d.evict(1, After::drop);
    }
    EXPECT_EQ(d.reported(1), "stopped");
    EXPECT_EQ(d.core.free_workspace(), kib(64));
    d.ended(next);
    EXPECT_FALSE(d.take(Kind::launch, 1));
  }
}

TEST(DeviceCore, WhereTwoWorkspacesDoNotFitTheOneThatWaitsGoesFirst) {
  Driven d(limits());
  d.bring(0, 0);
  const Slot large = d.ready(1, 0, open_window, 10, kib(40).count);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  const Slot urgent = d.ready(2, 0, open_window, 10, kib(40).count);
  d.evict(1, After::resume, at(1s));
  d.ended(large, 5);
  ASSERT_TRUE(d.take(Kind::launch, 1)) << "it has the room that the other needs";
  EXPECT_EQ(d.last.kernel, 5);
  d.ended(large);
  ASSERT_TRUE(d.take(Kind::launch, 2));
  d.ended(urgent);
}

TEST(DeviceCore, StreamsRunSideBySideEachInItsOwnRoom) {
  Limits two = limits();
  two.streams = 2;
  Driven d(two);
  d.streams = 2;
  d.bring(0, 0);
  const Slot a = d.ready(1, 0, open_window, 10, kib(40).count, 0);
  const Slot b = d.ready(2, 0, open_window, 10, kib(20).count, 1);
  ASSERT_TRUE(d.take(Kind::launch, 1));
  ASSERT_TRUE(d.take(Kind::launch, 2));
  EXPECT_EQ(d.last.executor, first_stream + 1);
  EXPECT_NE(d.core.workspace_offset(a), d.core.workspace_offset(b));
  EXPECT_EQ(d.core.workspace_offset(b), kib(64).count) << "the second stream's begins behind the first's";
  d.ended(b);
  const Slot c = d.ready(3, 0, open_window, 10, kib(64).count, 1);
  EXPECT_TRUE(d.take(Kind::launch, 3)) << "whatever the other stream has";
  const Slot unload = d.unload(4, 0);
  d.ended(a);
  EXPECT_FALSE(d.take(Kind::unmap, 4));
  d.ended(c);
  EXPECT_TRUE(d.take(Kind::unmap, 4)) << "of two runs the last holds it";
  d.unmapped(unload);
}

// Stream 0 goes after stream 1 on its two units; stream 2, on the second of them, goes last.
Limits three_ranks() {
  return {.pages = 4,
          .workspace = kib(12),
          .streams = 3,
          .places = {{.rank = 1, .units = 0b11}, {.rank = 0, .units = 0b11}, {.rank = 2, .units = 0b10}},
          .gathers = 0,
          .scatters = 0};
}

TEST(DeviceCore, WhatGoesFirstEvictsAndTheOtherResumesByItself) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot later = d.ready(10, 0, open_window, 10, 4096, 0);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  const Slot urgent = d.ready(11, 0, open_window, 10, 4096, 1);
  EXPECT_TRUE(d.take(Kind::launch, 11));  // at once: it does not wait for the other's end
  EXPECT_TRUE(d.take(Kind::evict, 10));
  d.ended(later, 4);
  EXPECT_FALSE(d.take(Kind::launch, 10));
  const Slot next = d.ready(12, 0, open_window, 10, 4096, 1);
  d.ended(urgent);
  EXPECT_EQ(d.reported(11), "success");
  EXPECT_TRUE(d.take(Kind::launch, 12));  // the next urgent one before it
  EXPECT_FALSE(d.take(Kind::launch, 10));
  d.ended(next);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  EXPECT_EQ(d.last.kernel, 4);
  d.ended(later);
  EXPECT_EQ(d.reported(10), "success");
}

TEST(DeviceCore, WhatWaitsForTheWayBeginsWhenItIsFree) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot urgent = d.ready(10, 0, open_window, 10, 0, 1);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  const Slot last = d.ready(11, 0, open_window, 10, 0, 2);
  const Slot later = d.ready(12, 0, open_window, 10, 0, 0);
  EXPECT_FALSE(d.take(Kind::launch, 11));
  EXPECT_FALSE(d.take(Kind::launch, 12));
  d.ended(urgent);
  ASSERT_TRUE(d.take(Kind::launch, 12));
  EXPECT_FALSE(d.take(Kind::launch, 11));
  d.ended(later);
  ASSERT_TRUE(d.take(Kind::launch, 11));
  d.ended(last);
  EXPECT_EQ(d.reported(11), "success");
}

TEST(DeviceCore, ARunOnFewerUnitsLeavesOthersAlone) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot last = d.ready(10, 0, open_window, 10, 0, 2);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  const Slot narrow = d.infer(11, 0, open_window, 1, 0b01);
  ASSERT_TRUE(d.take(Kind::gather, 11));
  d.gathered(narrow);
  EXPECT_TRUE(d.take(Kind::launch, 11));
  EXPECT_FALSE(d.take(Kind::evict, 10));
  const Slot wide = d.ready(12, 0, open_window, 10, 0, 0);
  EXPECT_FALSE(d.take(Kind::launch, 12));  // it wants both
  d.ended(narrow);
  EXPECT_TRUE(d.take(Kind::launch, 12));
  EXPECT_TRUE(d.take(Kind::evict, 10));
  d.ended(last, 3);
  d.ended(wide);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  EXPECT_EQ(d.last.kernel, 3);
}

TEST(DeviceCore, WhatMadeWayIsFirstToResume) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot evicted = d.ready(12, 0, {TimePoint{}, TimePoint::max()});
  ASSERT_TRUE(d.take(Kind::launch, 12));
  d.ready(11, 0, {TimePoint{}, TimePoint::max()});  // whose turn would be before, by its number
  const Slot urgent = d.ready(13, 0, open_window, 10, 0, 1);
  ASSERT_TRUE(d.take(Kind::evict, 12));
  d.ended(evicted, 1);
  d.ended(urgent);
  EXPECT_TRUE(d.take(Kind::launch, 12));
}

TEST(DeviceCore, WhatAnotherStreamEndsStillMakesWayInItsOwn) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  d.now = at(5ms);
  const Slot run = d.ready(10, 0);
  d.evict(10, After::resume, at(2ms));
  const Slot urgent = d.ready(11, 0, open_window, 10, 0, 1);
  ASSERT_TRUE(d.take(Kind::evict, 10));
  d.ended(run, 4);
  d.ended(urgent);
  ASSERT_TRUE(d.take(Kind::launch, 11));
  d.take(Kind::launch, 10);  // the first time
  ASSERT_TRUE(d.take(Kind::launch, 10)) << "and on";
  d.ready(12, 0, {at(1ms), TimePoint::max()});
  EXPECT_TRUE(d.take(Kind::evict, 10));
}

// It is told while it waits, and goes on before what it is to make way for is there.
TEST(DeviceCore, WhatIsToldToMakeWayWhileItWaitsDoesSoOnceItHasGoneOn) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  d.now = at(5ms);
  const Slot run = d.ready(10, 0);
  const Slot urgent = d.ready(11, 0, open_window, 10, 0, 1);
  ASSERT_TRUE(d.take(Kind::evict, 10));
  d.ended(run, 4);
  d.evict(10, After::resume, at(2ms));
  d.ended(urgent);
  d.take(Kind::launch, 10);  // the first time
  ASSERT_TRUE(d.take(Kind::launch, 10)) << "and on";
  d.ready(12, 0, {at(3ms), TimePoint::max()});
  EXPECT_FALSE(d.take(Kind::evict, 10)) << "it comes later";
  d.ready(13, 0, {at(1ms), TimePoint::max()});
  EXPECT_TRUE(d.take(Kind::evict, 10));
}

// Between the end of a run and its own stream's next turn another stream may take one.
TEST(DeviceCore, NobodyOvertakesWhatMayBeginInAStreamThatGoesFirst) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot urgent = d.ready(10, 0, open_window, 10, 0, 1);
  d.ready(11, 0, open_window, 10, 0, 1);
  d.ready(12, 0);
  Commands out;
  d.core.ended(urgent, 10, false, d.now, out);
  const std::size_t said = out.size();
  d.core.turn(stream0, d.now, out);
  EXPECT_EQ(out.size(), said);
  d.core.turn(stream0 + 1, d.now, out);
  EXPECT_EQ(out.back().kind, Kind::launch);
}

TEST(DeviceCore, AnInferThatWaitsForALoadIsInNobodysWay) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 1);
  d.load(2, 0);
  d.ready(3, 0, open_window, 10, 0, 1);  // of the stream that goes first
  d.ready(4, 1);
  EXPECT_TRUE(d.take(Kind::launch, 4));
}

TEST(DeviceCore, AnUnloadDiscardsRunsWhereItIsTold) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  d.bring(2, 1);
  const Slot suspended = d.ready(10, 0);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  const Slot urgent = d.ready(11, 1, open_window, 10, 0, 1);
  d.ended(suspended, 4);
  d.ready(12, 0);  // has not begun: it finds no weights, as ever
  d.unload(20, 0, true);
  EXPECT_EQ(d.reported(10), "stopped");
  EXPECT_TRUE(d.take(Kind::unmap, 20));
  d.ended(urgent);
  EXPECT_EQ(d.reported(11), "success");
  EXPECT_EQ(d.reported(12), "not_loaded");
}

TEST(DeviceCore, AnUnloadThatDiscardsEndsWhatRuns) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot run = d.ready(10, 0);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  d.unload(20, 0, true);
  EXPECT_TRUE(d.take(Kind::evict, 10));
  EXPECT_FALSE(d.take(Kind::unmap, 20));
  d.ended(run, 4);
  EXPECT_EQ(d.reported(10), "stopped");
  EXPECT_TRUE(d.take(Kind::unmap, 20));
}

// What waits to resume keeps its room, and does not keep from running who goes first.
TEST(DeviceCore, WhatMadeWayHoldsNobodyUpByItsRoom) {
  Driven d(three_ranks());
  d.streams = 3;
  d.bring(1, 0);
  const Slot first = d.ready(10, 0, open_window, 10, 8192, 0);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  const Slot urgent = d.ready(11, 0, open_window, 10, 12288, 1);
  ASSERT_TRUE(d.take(Kind::launch, 11));
  ASSERT_TRUE(d.take(Kind::evict, 10));
  d.ended(first, 2);
  d.ended(urgent);
  ASSERT_TRUE(d.take(Kind::launch, 10));
}

// One that goes first but has no room does not stand in the way of the others.
TEST(DeviceCore, WhatHasNoRoomIsInNobodysWay) {
  Limits two = three_ranks();
  std::swap(two.places[0], two.places[1]);
  Driven d(two);
  d.streams = 3;
  d.bring(1, 0);
  const RangeLedger::Piece borrowed = d.core.borrow_workspace(8192);
  d.ready(10, 0, open_window, 10, 8192, 0);
  EXPECT_FALSE(d.take(Kind::launch, 10));
  d.ready(11, 0, open_window, 10, 0, 1);
  EXPECT_TRUE(d.take(Kind::launch, 11));
  d.core.return_workspace(borrowed);
}

// As three_ranks(), but real-time runs gather their own rows.
Limits own_gathers() {
  Limits limits = three_ranks();
  limits.places[1].gathers = true;
  limits.gathers = 1;
  return limits;
}

TEST(DeviceCore, AStreamGathersForItselfAndHasTheWayClearedAtOnce) {
  Driven d(own_gathers());
  d.streams = 3;
  d.bring(1, 0);
  const Slot later = d.ready(10, 0);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  Commands out;  // no turn is taken: the submitting call itself says so
  const Slot urgent =
      d.core.submit(InferAction{.id = {11}, .model = {0}, .window = open_window, .stream = 1}, d.now, out);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].kind, Kind::evict);
  EXPECT_EQ(out[1].kind, Kind::wake);
  EXPECT_EQ(out[1].executor, stream0 + 1);
  out.clear();
  d.core.turn(stream0 + 1, d.now, out);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].kind, Kind::gather);
  EXPECT_EQ(out[0].executor, stream0 + 1);
  d.ended(later, 3);
  EXPECT_FALSE(d.take(Kind::launch, 10)) << "its way is not free";
  d.gathered(urgent);
  EXPECT_TRUE(d.take(Kind::launch, 11));
  d.ended(urgent);
  EXPECT_EQ(d.reported(11), "success");
  EXPECT_TRUE(d.take(Kind::launch, 10));
}

TEST(DeviceCore, AStreamThatCannotGatherTakesTheNext) {
  Driven d(own_gathers());
  d.streams = 3;
  d.bring(1, 0);
  const Slot first = d.infer(10, 0, open_window, 1);
  d.infer(11, 0, open_window, 1);
  ASSERT_TRUE(d.take(Kind::gather, 10));
  EXPECT_FALSE(d.take(Kind::gather, 11)) << "one at a time";
  Commands out;
  d.core.gathered(first, {.status = ActionStatus::no_memory}, d.now, out);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(out[0].status, ActionStatus::no_memory);
  out.clear();
  d.tick(d.now);
  EXPECT_TRUE(d.take(Kind::gather, 11));
}

TEST(DeviceCore, WhatIsStoppedOrUnloadedWhileItsStreamGathersNeverRuns) {
  Driven d(own_gathers());
  d.streams = 3;
  d.bring(1, 0);
  const Slot stopped = d.infer(10, 0, open_window, 1);
  ASSERT_TRUE(d.take(Kind::gather, 10));
  d.evict(10, After::drop);
  EXPECT_EQ(d.reported(10), "");
  d.gathered(stopped);
  EXPECT_EQ(d.reported(10), "stopped");
  const Slot unloaded = d.infer(11, 0, open_window, 1);
  ASSERT_TRUE(d.take(Kind::gather, 11));
  d.unload(12, 0);
  d.gathered(unloaded);
  EXPECT_EQ(d.reported(11), "not_loaded");
}

Limits behind(StreamPlace first = {.rank = 1, .units = 1, .ahead = true}) {
  Limits made = limits();
  made.streams = 2;
  made.places = {first, {.rank = 0, .units = 1, .ahead = true}};
  return made;
}

// What is next begins as the first ends: the device has it already, and it has the first one's workspace.
TEST(DeviceCore, WhatIsNextIsLaunchedBehindARunThatIsCommitted) {
  Driven d(behind());
  d.bring(1, 0);
  const Slot first = d.ready(10, 0, open_window, 1, 8000);
  ASSERT_TRUE(d.take(Kind::launch, 10));
  const Slot second = d.ready(11, 0, open_window, 1, 4000);
  EXPECT_FALSE(d.take(Kind::launch, 11)) << "nobody said that the first is committed";
  d.committed(first, at(1ms));
  ASSERT_TRUE(d.take(Kind::launch, 11));
  EXPECT_EQ(d.core.workspace_offset(second), d.core.workspace_offset(first));
  d.ready(12, 0, open_window, 1, 8000);
  d.committed(first, at(1ms));
  EXPECT_FALSE(d.take(Kind::launch, 12)) << "one is behind it already";
  d.ended(first, 1);
  EXPECT_EQ(d.core.running(stream0), second);
  EXPECT_LT(d.core.free_workspace(), kib(64)) << "it has what the first had";
  d.committed(second, at(2ms));
  EXPECT_TRUE(d.take(Kind::launch, 12));
  d.ended(second, 1);
  EXPECT_EQ(d.reported(10), "");
  EXPECT_TRUE(d.take(Kind::scatter, 10));
}

TEST(DeviceCore, NothingIsLaunchedBehindARunThatCouldNotBeginThen) {
  struct Case {
    const char* why;
    Window window;
    int kernels;
    std::uint64_t workspace;
    std::uint32_t model;
  };
  for (const Case& each : {Case{"its window closes before", {TimePoint::min(), at(999us)}, 1, 0, 0},
                           Case{"its window is not open yet", {at(1us), TimePoint::max()}, 1, 0, 0},
                           Case{"it can end early", open_window, 2, 0, 0},
                           Case{"the first has less room", open_window, 1, 9000, 0},
                           Case{"its model is not there", open_window, 1, 0, 1}}) {
    SCOPED_TRACE(each.why);
    Driven d(behind());
    d.bring(1, 0);
    const Slot first = d.ready(10, 0, open_window, 1, 8000);
    ASSERT_TRUE(d.take(Kind::launch, 10));
    d.ready(11, each.model, each.window, each.kernels, each.workspace);
    d.committed(first, at(1ms));
    EXPECT_FALSE(d.take(Kind::launch, 11));
  }
  for (const bool urgent : {false, true}) {
    SCOPED_TRACE(urgent);
    Driven d(behind());
    d.streams = 2;
    d.bring(1, 0);
    if (urgent) d.ready(9, 0, {at(1h), TimePoint::max()}, 1, 0, 1);  // not now; but such work there is
    const Slot first = d.ready(10, 0, open_window, 1);
    ASSERT_TRUE(d.take(Kind::launch, 10));
    d.ready(11, 0, open_window, 1);
    d.committed(first, at(1ms));
    EXPECT_EQ(d.take(Kind::launch, 11), !urgent) << "what goes first would wait for both";
    if (!urgent) continue;
    d.now = at(2s);
    d.committed(first, at(2001ms));
    EXPECT_TRUE(d.take(Kind::launch, 11)) << "none came for a second";
  }
}

TEST(DeviceCore, IsBoundedByKind) {
  Driven d(limits());
  d.bring(100, 0);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_NE(d.infer(i, 0), no_slot);
  EXPECT_EQ(d.infer(8, 0), no_slot);
  for (std::uint64_t i = 10; i < 18; ++i) EXPECT_NE(d.load(i, 1, {at(1s), at(2s)}), no_slot);
  EXPECT_EQ(d.load(18, 1), no_slot);
  EXPECT_EQ(d.unload(19, 0), no_slot);
  EXPECT_EQ(d.core.open(), 16U);
}

TEST(DeviceCore, ALifeEndsWithoutAWord) {
  Driven d(limits());
  d.bring(0, 0);
  d.bring(1, 1);
  const Slot run = d.ready(2, 0, open_window, 10, 4096);
  const Slot gathering = d.infer(3, 0);
  ASSERT_TRUE(d.core.take_io(gathering, 4096));
  d.infer(4, 0);
  d.unload(5, 0);  // parked
  const Slot copy = d.load(6, 2);
  d.load(7, 3);
  d.reports.clear();
  d.core.retire();
  EXPECT_FALSE(d.core.at_rest());
  EXPECT_FALSE(d.core.at_rest(stream0));
  EXPECT_TRUE(d.core.orphaned(run));
  d.evict(2, After::drop);  // no effect
  d.ended(run, 3);
  EXPECT_TRUE(d.core.at_rest(stream0));
  d.gathered(gathering);
  d.copied(copy);
  EXPECT_TRUE(d.core.at_rest());
  EXPECT_TRUE(d.reports.empty());
  EXPECT_EQ(d.core.open(), 0U);
  EXPECT_EQ(d.core.free_io(), kib(64));
  EXPECT_EQ(d.core.free_workspace(), kib(64));
  std::vector<ModelId> unmapped;
  d.core.clear_memory([&](ModelId model) { unmapped.push_back(model); });
  EXPECT_EQ(unmapped, (std::vector{ModelId{0}, ModelId{1}, ModelId{2}}));
  EXPECT_EQ(d.core.free_pages(), 4U);
  for (std::uint32_t m = 0; m < 3; ++m) EXPECT_FALSE(d.core.loaded(ModelId{m}));
  d.bring(8, 0);  // the next
  const Slot again = d.ready(2, 0);
  d.ended(again);
  d.scattered(again);
  EXPECT_EQ(d.reported(2), "success");
}

TEST(DeviceCore, AHoldKeepsPagesAsARunDoes) {
  Driven d(limits());
  EXPECT_FALSE(d.core.hold(ModelId{0}));
  d.bring(0, 0);
  ASSERT_TRUE(d.core.hold(ModelId{0}));
  d.unload(1, 0);
  EXPECT_FALSE(d.take(Kind::unmap, 1));
  Commands out;
  d.core.let_go(ModelId{0}, d.now, out);
  ASSERT_FALSE(out.empty());
  EXPECT_EQ(out.front().kind, Kind::wake);
  EXPECT_EQ(out.front().executor, input_executor);
}

}  // namespace
}  // namespace carillon::device
