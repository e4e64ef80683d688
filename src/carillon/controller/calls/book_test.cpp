#include "carillon/controller/calls/book.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

using schedule::BatchProfile;
using schedule::Reason;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}

bool counts(const StepStatistics& step, std::uint64_t count, Duration total) {
  return step.count == count && step.total == total;
}

// Two devices; models "a" and "b", of which nothing is known.
class BookTest : public ::testing::Test {
 protected:
  BookTest() {
    for (const char* name : {"first", "second"}) book.add_device(name);
    book.add_model("a", 1);
    book.add_model("b", 2, 50ms);
  }
  ModelStatistics model(std::size_t place = 0) const { return book.snapshot().models.at(place); }
  DeviceStatistics device(std::size_t id = 0) const { return book.snapshot().devices.at(id); }
  // EXEC of `ran` that ended at `end`.
  static worker::ActionTimes times(Duration ran, TimePoint end) {
    worker::ActionTimes out;
    out.exec_start = end - ran;
    out.exec_end = end;
    return out;
  }

  Book book;
};

TEST_F(BookTest, BeginsWithNothing) {
  const ServerStatistics all = book.snapshot();
  ASSERT_EQ(all.models.size(), 2U);
  ASSERT_EQ(all.devices.size(), 2U);
  EXPECT_EQ(all.open_requests, 0U);
  EXPECT_EQ(all.exec_busy, 0ms);
  EXPECT_EQ(all.load_busy, 0ms);
  EXPECT_EQ(all.models[0].name, "a");
  EXPECT_EQ(all.models[0].version, 1);
  EXPECT_EQ(all.models[0].slo, std::nullopt);
  EXPECT_EQ(all.models[1].name, "b");
  EXPECT_EQ(all.models[1].version, 2);
  EXPECT_EQ(all.models[1].slo, Duration{50ms});
  const ModelStatistics& none = all.models[0];
  for (const std::uint64_t count : {none.last_inference_ms,
                                    none.inference_count,
                                    none.execution_count,
                                    none.on_time,
                                    none.late,
                                    none.refused,
                                    none.cancelled,
                                    none.failed,
                                    none.shed,
                                    none.invalid,
                                    none.waiting,
                                    none.loads,
                                    none.unloads,
                                    none.rows,
                                    none.profiled,
                                    none.devices,
                                    none.preemptions,
                                    none.latency.count(),
                                    none.exec.count(),
                                    none.prediction_error.count(),
                                    none.preemption_latency.count()})
    EXPECT_EQ(count, 0U);
  for (const Duration none_yet : {none.load_time, none.preemption_lost, none.padded, all.devices[0].exec_busy,
                                  all.devices[0].load_busy})
    EXPECT_EQ(none_yet, 0ms);
  EXPECT_EQ(none.share_pct, 0);
  for (const StepStatistics* step : {&none.success, &none.fail, &none.queue, &none.compute_input,
                                     &none.compute_infer, &none.compute_output})
    EXPECT_TRUE(counts(*step, 0, 0ms));
  EXPECT_THAT(none.reasons, ::testing::Each(0U));
  EXPECT_FALSE(none.loaded);
  EXPECT_EQ(all.devices[0].name, "first");
  EXPECT_TRUE(all.devices[0].alive);
  for (const std::uint64_t count :
       {all.devices[0].lost, all.devices[0].odd_reports, all.devices[0].executions, all.devices[0].models,
        all.devices[0].pages_total, all.devices[0].pages_free, all.pages_total, all.pages_free, all.sizes,
        all.waiting_for_size, all.sizes_made, all.sizes_bytes, all.later_models, all.later_complete,
        all.later_made, all.later_dropped, all.later_bytes})
    EXPECT_EQ(count, 0U);
}

TEST_F(BookTest, AResultCountsItsRowsItsLatencyAndItsSteps) {
  book.set_unix_offset(1000s);
  book.answered({0}, Outcome::on_time, 3, at(10ms), at(25ms),
                {.queue = 1ms, .input = 2ms, .infer = 4ms, .output = 8ms});
  book.answered({0}, Outcome::late, 2, at(30ms), at(70ms), {.queue = 10ms});
  const ModelStatistics of = model();
  EXPECT_EQ(of.on_time, 1U);
  EXPECT_EQ(of.late, 1U);
  EXPECT_EQ(of.rows, 5U);
  EXPECT_EQ(of.inference_count, 5U);
  EXPECT_EQ(of.last_inference_ms, 1'000'070U);
  EXPECT_EQ(of.latency.count(), 2U);
  EXPECT_EQ(of.latency.sum(), 55ms);
  EXPECT_TRUE(counts(of.success, 2, 55ms));
  EXPECT_TRUE(counts(of.queue, 2, 11ms));
  EXPECT_TRUE(counts(of.compute_input, 2, 2ms));
  EXPECT_TRUE(counts(of.compute_infer, 2, 4ms));
  EXPECT_TRUE(counts(of.compute_output, 2, 8ms));
  EXPECT_TRUE(counts(of.fail, 0, 0ms));
  EXPECT_EQ(model(1).rows, 0U);
}

// Where time or rows are less than nothing, they count as nothing.
TEST_F(BookTest, WhatCannotBeCountsAsNothing) {
  book.answered({1}, Outcome::on_time, 1, at(1ms), at(2ms) - 1ns, {});
  EXPECT_TRUE(counts(model(1).queue, 1, 0ms));
  EXPECT_TRUE(counts(model(1).compute_input, 1, 0ms));
  EXPECT_TRUE(counts(model(1).compute_infer, 1, 0ms));
  EXPECT_TRUE(counts(model(1).compute_output, 1, 0ms));
  EXPECT_EQ(model(1).last_inference_ms, 1U);
  book.answered({0}, Outcome::refused, -1, at(10ms), at(9ms), {});
  EXPECT_EQ(model().rows, 0U);
  EXPECT_TRUE(counts(model().fail, 1, 0ms));
  book.set_unix_offset(-1s);
  book.answered({0}, Outcome::refused, 1, at(0ms), at(9ms), {});
  EXPECT_EQ(model().last_inference_ms, 0U);
}

// Of each outcome that is no result: on which counts it stands.
TEST_F(BookTest, WhatHasNoResultIsCountedByItsOutcome) {
  const struct {
    Outcome outcome;
    std::uint64_t refused, shed, cancelled, failed, invalid;
  } rows[] = {{Outcome::refused, 1, 0, 0, 0, 0},
              {Outcome::shed, 1, 1, 0, 0, 0},
              {Outcome::cancelled, 0, 0, 1, 0, 0},
              {Outcome::failed, 0, 0, 0, 1, 0},
              {Outcome::invalid, 0, 0, 0, 1, 1}};
  for (const auto& row : rows) {
    Book one;
    one.add_model("a", 1);
    one.answered({0}, row.outcome, 2, at(1ms), at(4ms), {.queue = 1ms});
    const ModelStatistics of = one.snapshot().models[0];
    EXPECT_EQ(of.refused, row.refused);
    EXPECT_EQ(of.shed, row.shed);
    EXPECT_EQ(of.cancelled, row.cancelled);
    EXPECT_EQ(of.failed, row.failed);
    EXPECT_EQ(of.invalid, row.invalid);
    EXPECT_EQ(of.rows, 2U);
    EXPECT_TRUE(counts(of.fail, 1, 3ms));
    EXPECT_EQ(
        of.on_time + of.late + of.inference_count + of.latency.count() + of.success.count + of.queue.count,
        0U);
  }
  book.refused({1}, Reason::no_device);
  book.refused({1}, Reason::no_device);
  EXPECT_EQ(model(1).reasons[static_cast<std::size_t>(Reason::no_device)], 2U);
  EXPECT_EQ(model(1).reasons[static_cast<std::size_t>(Reason::no_model)], 0U);
  EXPECT_EQ(model(1).refused, 0U) << "its answer is told apart";
  book.profiled({1});
  EXPECT_EQ(model(1).profiled, 1U);
}

TEST_F(BookTest, AnExecutionCountsForItsModelItsSizeAndItsDevice) {
  worker::ActionTimes run = times(6ms, at(20ms));
  run.received = at(11ms);
  run.input_start = at(12ms);
  run.input_end = at(13ms);
  run.output_start = at(20ms);
  run.output_end = at(22ms);
  run.paused = 1ms;
  run.preemptions = 2;
  run.lost = 300us;
  run.padded = 700us;
  book.executed({1}, {0}, 4, run, 6ms);
  book.executed({1}, {0}, 2, times(3ms, at(30ms)), 1ms);
  run.preempts = true;
  book.executed({0}, {0}, 4, run, 5ms);
  const ModelStatistics of = model();
  EXPECT_EQ(of.execution_count, 3U);
  ASSERT_EQ(of.batches.size(), 2U);
  EXPECT_EQ(of.batches[0].size, 2);
  EXPECT_TRUE(counts(of.batches[0].infer, 1, 3ms));
  EXPECT_EQ(of.batches[1].size, 4);
  EXPECT_TRUE(counts(of.batches[1].input, 2, 2ms));
  EXPECT_TRUE(counts(of.batches[1].infer, 2, 10ms)) << "without the time that it was paused";
  EXPECT_TRUE(counts(of.batches[1].output, 2, 4ms));
  EXPECT_EQ(of.exec.count(), 3U);
  EXPECT_EQ(of.exec.sum(), 13ms);
  EXPECT_EQ(of.prediction_error.count(), 3U);
  EXPECT_EQ(of.prediction_error.sum(), 3ms) << "1 ms less, 2 ms more, and as it was expected";
  EXPECT_EQ(of.preemptions, 4U);
  EXPECT_EQ(of.preemption_lost, 600us);
  EXPECT_EQ(of.padded, 1400us);
  EXPECT_EQ(of.preemption_latency.count(), 1U) << "where others made way";
  EXPECT_EQ(of.preemption_latency.sum(), 3ms);
  EXPECT_EQ(device(0).executions, 1U);
  EXPECT_EQ(device(0).exec_busy, 5ms);
  EXPECT_EQ(device(1).executions, 2U);
  EXPECT_EQ(device(1).exec_busy, 8ms);
  book.wasted({0}, 2ms);
  EXPECT_EQ(device(0).exec_busy, 7ms);
  EXPECT_EQ(device(0).executions, 1U);
  EXPECT_EQ(book.snapshot().exec_busy, 15ms);
}

TEST_F(BookTest, AnEnsemblesRequestIsAnExecution) {
  book.executed_whole({1}, 3, {.queue = 1ms, .input = 2ms, .infer = 3ms, .output = 4ms});
  EXPECT_EQ(model(1).execution_count, 1U);
  ASSERT_EQ(model(1).batches.size(), 1U);
  EXPECT_EQ(model(1).batches[0].size, 3);
  EXPECT_TRUE(counts(model(1).batches[0].input, 1, 2ms));
  EXPECT_TRUE(counts(model(1).batches[0].infer, 1, 3ms));
  EXPECT_TRUE(counts(model(1).batches[0].output, 1, 4ms));
}

TEST_F(BookTest, KnowsWhichDevicesHoldAModel) {
  book.loaded({1}, {0}, 5ms, false);
  book.loaded({0}, {0}, 3ms, false);
  book.loaded({0}, {1}, 4ms, false);
  EXPECT_THAT(model().held_by, ElementsAre(DeviceId{0}, DeviceId{1}));
  EXPECT_EQ(model().devices, 2U);
  EXPECT_TRUE(model().loaded);
  EXPECT_EQ(device(0).models, 2U);
  EXPECT_EQ(device(1).models, 1U);
  EXPECT_EQ(device(0).load_busy, 7ms);
  EXPECT_EQ(book.snapshot().load_busy, 12ms);
  book.loaded({1}, {0}, 5ms, true);
  EXPECT_EQ(model().loads, 3U);
  EXPECT_EQ(model().devices, 2U) << "it had it before";

  book.unloaded({1}, {0});
  EXPECT_THAT(model().held_by, ElementsAre(DeviceId{0}));
  EXPECT_EQ(model().devices, 1U);
  book.unloaded({1}, {0});
  EXPECT_EQ(model().unloads, 2U);
  EXPECT_EQ(model().devices, 1U) << "nor does a device let go what it does not have";

  book.device_lost({0});
  EXPECT_THAT(model().held_by, IsEmpty());
  EXPECT_EQ(model().devices, 0U);
  EXPECT_FALSE(model().loaded);
  EXPECT_FALSE(model(1).loaded) << "of all models";
  EXPECT_FALSE(device(0).alive);
  EXPECT_EQ(device(0).lost, 1U);
  EXPECT_TRUE(device(1).alive);
  book.device_back({0});
  EXPECT_TRUE(device(0).alive);
  EXPECT_EQ(device(0).lost, 1U);
  book.odd_report({1});
  EXPECT_EQ(device(1).odd_reports, 1U);
}

TEST_F(BookTest, KnowsWhatIsOpenAndWhatWaits) {
  book.set_open_requests(3);
  for (const bool waits : {true, true, false}) book.waits({1}, waits);
  EXPECT_EQ(book.snapshot().open_requests, 3U);
  EXPECT_EQ(model(1).waiting, 1U);
  EXPECT_EQ(model(0).waiting, 0U);
}

// A model that comes again with its name and version goes on counting where it was.
TEST_F(BookTest, AModelThatComesAgainGoesOn) {
  book.add_model("a", 2);
  book.add_model("b", 2, 70ms);
  EXPECT_EQ(book.place_of({0}), 0U);
  EXPECT_EQ(book.place_of({2}), 2U) << "another version is another model";
  EXPECT_EQ(book.place_of({3}), 1U);
  book.answered({1}, Outcome::on_time, 1, at(0ms), at(1ms), {});
  book.answered({3}, Outcome::on_time, 1, at(0ms), at(1ms), {});
  EXPECT_EQ(book.snapshot().models.size(), 3U);
  EXPECT_EQ(model(1).on_time, 2U);
  EXPECT_EQ(model(1).slo, Duration{70ms}) << "as it came last";
}

TEST_F(BookTest, ExpectsTheSmallestBatchesWithRoom) {
  EXPECT_EQ(book.expected({0}, 1, at(0ms)), 0ms) << "nobody knows";
  book.seed({0}, {{1, 2ms}, {2, 3ms}, {4, 5ms}});
  EXPECT_EQ(book.expected({0}, 1, at(0ms)), 2ms);
  EXPECT_EQ(book.expected({0}, 2, at(0ms)), 3ms);
  EXPECT_EQ(book.expected({0}, 3, at(0ms)), 5ms);
  EXPECT_EQ(book.expected({0}, 4, at(0ms)), 5ms);
  EXPECT_EQ(book.expected({0}, 5, at(0ms)), 7ms) << "4 and 1";
  EXPECT_EQ(book.expected({0}, 11, at(0ms)), 15ms) << "4, 4 and 3";
  EXPECT_EQ(book.expected({1}, 1, at(0ms)), 0ms);
  book.seed({0}, {{1, 1ms}});
  EXPECT_EQ(book.expected({0}, 3, at(0ms)), 3ms) << "what was there before is gone";
}

TEST_F(BookTest, ExpectsWhatWasMeasuredOfThatSize) {
  book.seed({0}, {{1, 2ms}, {2, 3ms}});
  book.executed({0}, {0}, 2, times(4ms, at(10ms)), 3ms);
  EXPECT_EQ(book.expected({0}, 2, at(10ms)), 4ms);
  EXPECT_EQ(book.expected({0}, 1, at(10ms)), 2ms);
  book.reseed({0}, {{1, 2ms}, {2, 3ms}}, {{1, 1ms}, {2, 3ms}});
  EXPECT_EQ(book.expected({0}, 1, at(10ms)), 1ms);
  EXPECT_EQ(book.expected({0}, 2, at(10ms)), 4ms) << "its time did not change";
}

// After a second in which nothing ran, one long run counts no more.
TEST_F(BookTest, ALongRunIsBelievedForASecond) {
  book.seed({0}, {{1, 2ms}});
  EXPECT_EQ(book.expected({0}, 1, at(5s)), 2ms);
  book.executed({0}, {0}, 1, times(1500us, at(10s)), 2ms);
  book.executed({0}, {0}, 1, times(4ms, at(10s)), 2ms);
  EXPECT_EQ(book.expected({0}, 1, at(11s)), 4ms);
  EXPECT_EQ(book.expected({0}, 1, at(11s) + 1ns), 2ms);
  EXPECT_EQ(book.expected({0}, 1, at(12s)), 2ms);
}

}  // namespace
}  // namespace carillon::controller
