#include "carillon/controller/calls/journal.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/testing/fakes.h"

namespace carillon::controller {
namespace {

using schedule::Infer;
using schedule::Reason;
using schedule::Refuse;
using schedule::RequestArrived;
using testing::call_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HeldWorker;
using testing::ScriptedScheduler;
using testing::served;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Window always{TimePoint::min(), TimePoint::max()};

bool all(const explain::RequestFacts&) {
  return true;
}

struct Words {
  std::array<std::uint64_t, 100> all{};
};

TEST(RecordRing, KeepsTheNewest) {
  RecordRing<Words> ring(4);
  Words words;
  EXPECT_FALSE(ring.get(1, words));
  for (std::uint64_t n = 1; n <= 10; ++n) {
    words.all.fill(n);
    ring.put(n, words);
  }
  for (std::uint64_t n = 0; n <= 12; ++n) EXPECT_EQ(ring.get(n, words), n >= 7 && n <= 10) << n;
  // One that is late does not take the place of a newer one; one that comes again takes its own.
  words.all.fill(99);
  ring.put(5, words);
  EXPECT_FALSE(ring.get(5, words));
  ASSERT_TRUE(ring.get(9, words));
  EXPECT_EQ(words.all[99], 9U);
  words.all.fill(77);
  ring.put(9, words, 16);
  ASSERT_TRUE(ring.get(9, words));
  EXPECT_EQ(words.all[1], 77U);
  EXPECT_EQ(words.all[2], 9U);
}

// Readers see whole records or none, whatever is written meanwhile, and by however many.
TEST(RecordRing, ReadersSeeWholeRecords) {
  constexpr std::uint64_t last = 30'000;
  RecordRing<Words> ring(8);
  std::atomic<std::uint64_t> next{1};
  std::atomic<std::uint64_t> read{0}, torn{0};
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      Words words;
      for (std::uint64_t n = next++; n <= last; n = next++) {
        words.all.fill(n);
        ring.put(n, words);
        words.all.fill(n + 1'000'000);  // as what is open and then answered
        ring.put(n, words);
      }
    });
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      Words words;
      while (!ended) {
        const std::uint64_t n = next.load();
        for (std::uint64_t back = 1; back <= 8 && back < n; ++back) {
          if (!ring.get(n - back, words)) continue;
          ++read;
          for (const std::uint64_t word : words.all)
            if (word != words.all[0] || word % 1'000'000 != n - back) ++torn;
        }
      }
    });
  threads[0].join();
  threads[1].join();
  ended = true;
  threads[2].join();
  threads[3].join();
  EXPECT_EQ(torn, 0U);
  // The last of them may be lost, to one that was being written in its place. A place stays usable after
  // that.
  for (std::uint64_t n = last + 1; n <= last + 8; ++n) {
    Words words;
    words.all.fill(n);
    ring.put(n, words);
    EXPECT_TRUE(ring.get(n, words)) << n;
  }
}

// One place that is written again and again, as many times as it takes to be read while it is.
TEST(RecordRing, ReadersSeeNothingHalfWritten) {
  constexpr std::uint64_t enough = 200'000;
  RecordRing<Words> ring(1);
  std::atomic<std::uint64_t> read{0}, torn{0};
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    Words words;
    for (std::uint64_t n = 1; n <= enough || (read < enough && n < 100 * enough); ++n) {
      words.all.fill(n);
      ring.put(1, words);
    }
    ended = true;
  });
  std::thread reader([&] {
    Words words;
    while (!ended) {
      if (!ring.get(1, words)) continue;
      ++read;
      for (const std::uint64_t word : words.all) torn += word != words.all[0] ? 1 : 0;
    }
  });
  writer.join();
  reader.join();
  EXPECT_EQ(torn, 0U);
}

TEST(CallRecord, CutsTextsOffBetweenCharacters) {
  CallRecord record;
  record.say(record.id, std::string(63, 'x') + "\xc3\xa4", 64);
  EXPECT_EQ(record.read(record.id), std::string(63, 'x'));
  record.say(record.key, "k", 64);
  EXPECT_EQ(record.read(record.key), "k");
  // However much is said, there is no more room than there is.
  for (int i = 0; i < 10; ++i) record.say(record.message, std::string(168, 'm'), 168);
  EXPECT_EQ(record.used(), sizeof(CallRecord));
  EXPECT_EQ(record.read(record.id), std::string(63, 'x'));
  EXPECT_EQ(record.read(record.application), "");
}

// One device, a scheduler that does as it is told, and a journal.
class JournalTest : public ::testing::Test {
 protected:
  void make(std::size_t capacity = 100, const CoreOptions& given = {}) {
    CoreOptions options = given;
    journal = options.journal = std::make_shared<Journal>(capacity, 1000s);
    auto owned = std::make_unique<ScriptedScheduler>();
    scheduler = owned.get();
    core = std::make_unique<Core>(std::move(owned), options);
    core->add_device(worker, "a device");
    ServedModel model = served(0);
    model.slo = 50ms;
    model.info.pages = pages;
    core->add_model(std::move(model));
    core->start(at(0ms));
  }
  void SetUp() override { make(); }

  std::uint64_t submit(TimePoint now, TimePoint deadline = TimePoint::max(), schedule::Actions actions = {},
                       int rows = 1) {
    on_next<RequestArrived>(std::move(actions));
    auto call = call_of({0}, rows, now, deadline, 10, worker.row_bytes);
    call->handed = now;
    call->at_door = now;
    call->id = "id-" + std::to_string(journal->newest() + 1);
    call->key = "team";
    call->application = "camera";
    const std::uint64_t number = journal->next_number();
    core->submit(
        number, std::move(call), [this](InferAnswer answer) { answers.push_back(std::move(answer)); }, now);
    return number;
  }
  template <typename E>
  void on_next(schedule::Actions actions) {
    scheduler->script = [actions = std::move(actions), this](const schedule::Event& event, TimePoint,
                                                             schedule::Actions& out, TimePoint&) {
      if (!std::holds_alternative<E>(event)) return;
      out = actions;
      scheduler->script = nullptr;
    };
  }
  static Infer infer(std::uint64_t id, std::vector<RequestId> requests) {
    return {.id = {id},
            .device = {0},
            .model = {0},
            .requests = std::move(requests),
            .window = always,
            .expected = 2ms};
  }
  void end(std::uint64_t id, schedule::ActionStatus status, TimePoint now, std::string error = {}) {
    core->on_result(worker.end({id}, status, now, 3ms, std::move(error)), now);
  }
  explain::Story story(std::uint64_t number, TimePoint now = at(10s)) {
    const auto found = journal->find(number, now, all);
    EXPECT_TRUE(found.has_value()) << number;
    return found.value_or(explain::Story{});
  }

  std::uint64_t pages = 0;
  std::shared_ptr<Journal> journal;
  ScriptedScheduler* scheduler = nullptr;
  HeldWorker worker;
  std::vector<InferAnswer> answers;
  std::unique_ptr<Core> core;
};

TEST_F(JournalTest, KnowsWhatIsOpen) {
  const std::uint64_t number = submit(at(5ms));
  const explain::Story told = story(number, at(9ms));
  EXPECT_EQ(told.request.outcome, explain::Outcome::open);
  EXPECT_EQ(told.request.model, "model0");
  EXPECT_EQ(told.request.id, "id-1");
  EXPECT_EQ(told.request.key, "team");
  EXPECT_EQ(told.request.application, "camera");
  EXPECT_EQ(told.request.deadline, at(55ms));
  EXPECT_EQ(told.request.deadline_from, explain::DeadlineFrom::slo);
  EXPECT_EQ(told.request.arrived_unix_us, 1'000'005'000);
  EXPECT_EQ(told.took(), std::nullopt);
}

TEST_F(JournalTest, KnowsAnAnswerOnTimeAndALateOne) {
  const std::uint64_t first = submit(at(1ms));
  const std::uint64_t second = submit(at(2ms), at(8ms), {infer(1, {{0}, {1}})});
  end(1, schedule::ActionStatus::success, at(9ms));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].number, first);
  EXPECT_EQ(answers[1].number, second);
  const explain::Story on_time = story(first);
  EXPECT_EQ(on_time.request.outcome, explain::Outcome::on_time);
  EXPECT_EQ(on_time.took(), 8ms);
  EXPECT_EQ(on_time.device_name, "a device");
  ASSERT_TRUE(on_time.last.has_value());
  EXPECT_EQ(on_time.last->rows, 2);
  EXPECT_EQ(on_time.last->predicted, 2ms);
  EXPECT_THAT(on_time.last->requests, ElementsAre(first, second));
  EXPECT_EQ(on_time.request.log_request, 0U);
  EXPECT_EQ(story(second).request.log_request, 1U);
  EXPECT_EQ(story(second).request.outcome, explain::Outcome::late);
}

TEST_F(JournalTest, KnowsTheNumbersBehindARefusal) {
  submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  const std::uint64_t number = submit(
      at(2ms), at(6ms), {Refuse{.request = {1}, .reason = Reason::cannot_finish, .would_finish = at(9ms)}});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].number, number);
  EXPECT_EQ(answers[0].retry_after, 3ms);  // then 4 ms from there are enough
  const explain::Story told = story(number);
  EXPECT_EQ(told.request.outcome, explain::Outcome::refused);
  EXPECT_EQ(told.request.cause, explain::Cause::cannot_finish);
  EXPECT_EQ(told.request.would_take, 7ms);
  EXPECT_EQ(told.request.retry_after, 3ms);
  EXPECT_THAT(told.request.text, HasSubstr("cannot finish by its deadline"));
  ASSERT_TRUE(told.request.expected.has_value());
  EXPECT_EQ(told.request.expected->actions, 1);
  EXPECT_EQ(told.request.expected->busy, 2ms);
  EXPECT_EQ(told.request.expected->exec, 2ms);
  EXPECT_EQ(told.request.expected->devices, 1);
}

TEST_F(JournalTest, WaitingDoesNotHelpWhoHasLessThanARunTakes) {
  submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  submit(at(2ms), at(3ms),
         {Refuse{.request = {1}, .reason = Reason::cannot_finish, .would_finish = at(9ms)}});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].would_take, 7ms);
  EXPECT_EQ(answers[0].retry_after, std::nullopt);
}

TEST_F(JournalTest, WaitingDoesNotHelpWhereADeviceHasNothingToDo) {
  submit(at(2ms), at(6ms),
         {Refuse{.request = {0}, .reason = Reason::cannot_finish, .would_finish = at(9ms)}});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].retry_after, std::nullopt);
}

TEST_F(JournalTest, WaitingHelpsWhereTheModelMustBeLoaded) {
  pages = 2;
  make();
  const std::uint64_t number =
      submit(at(2ms), at(6ms),
             {schedule::Load{.id = {1}, .device = {0}, .model = {0}, .window = always, .expected = 5ms},
              Refuse{.request = {0}, .reason = Reason::cannot_finish, .would_finish = at(9ms)}});
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].retry_after, 3ms);
  ASSERT_TRUE(story(number).request.expected.has_value());
  EXPECT_EQ(story(number).request.expected->holding, 0);
  EXPECT_TRUE(story(number).request.expected->loading);
}

TEST_F(JournalTest, KnowsCancellationsAndFailures) {
  const std::uint64_t gone = submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  core->cancel(gone, at(2ms));
  const std::uint64_t failed = submit(at(3ms), TimePoint::max(), {infer(2, {{1}})});
  on_next<schedule::ActionDone>(
      {Refuse{.request = {1}, .reason = Reason::device_failed, .would_finish = TimePoint::max()}});
  end(2, schedule::ActionStatus::failed, at(6ms), "it broke");
  EXPECT_EQ(story(gone).request.outcome, explain::Outcome::cancelled);
  EXPECT_EQ(story(gone).request.cause, explain::Cause::client_gone);
  EXPECT_EQ(story(failed).request.outcome, explain::Outcome::failed);
  EXPECT_EQ(story(failed).request.cause, explain::Cause::device_failed);
  EXPECT_THAT(story(failed).request.text, HasSubstr("it broke"));
  // What it was part of goes on behind its answer.
  end(1, schedule::ActionStatus::success, at(9ms));
  ASSERT_FALSE(story(gone).after.empty());
  EXPECT_EQ(story(gone).after.back().end, 8ms);
}

TEST_F(JournalTest, KnowsTriesInVainAndFullWorkers) {
  worker.full = true;
  const std::uint64_t number = submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  worker.full = false;
  on_next<schedule::ActionDone>({infer(2, {{0}})});
  core->wake(at(2ms));
  end(2, schedule::ActionStatus::success, at(6ms));
  const explain::Story told = story(number);
  EXPECT_EQ(told.request.outcome, explain::Outcome::on_time);
  EXPECT_EQ(told.request.tries, 2);
}

TEST_F(JournalTest, KnowsDevicesThatGo) {
  const std::uint64_t number = submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  on_next<schedule::DeviceChanged>(
      {Refuse{.request = {0}, .reason = Reason::device_failed, .would_finish = TimePoint::max()}});
  worker::ActionResult lost = worker.end({1}, schedule::ActionStatus::failed, at(3ms), 1ms, "no power");
  lost.device_lost = true;
  core->on_result(lost, at(3ms));
  const explain::Story told = story(number);
  EXPECT_EQ(told.request.outcome, explain::Outcome::failed);
  ASSERT_TRUE(told.last.has_value());
  EXPECT_TRUE(told.last->lost);
}

TEST_F(JournalTest, KnowsThoseThatNeverReachTheScheduler) {
  make(10, {.max_open = 1});
  const std::uint64_t open = submit(at(1ms));
  const std::uint64_t full = submit(at(2ms));
  const std::uint64_t bad = [&] {
    core->cancel(open, at(3ms));
    return submit(at(4ms), at(48h));
  }();
  EXPECT_EQ(story(full).request.cause, explain::Cause::full);
  EXPECT_EQ(story(full).request.deadline_from, explain::DeadlineFrom::slo);
  EXPECT_EQ(story(bad).request.cause, explain::Cause::bad_data);
  EXPECT_EQ(answers.back().number, bad);
}

TEST_F(JournalTest, CountsAnActionOfSeveralRowsOnce) {
  const std::uint64_t number = submit(at(1ms), TimePoint::max(), {}, 3);
  submit(at(2ms), TimePoint::max(), {infer(1, {{0}, {1}, {2}, {3}})});
  end(1, schedule::ActionStatus::success, at(9ms));
  const explain::Story told = story(number);
  EXPECT_EQ(told.request.tries, 1);
  EXPECT_EQ(told.request.rows, 3);
  ASSERT_TRUE(told.last.has_value());
  EXPECT_EQ(told.last->rows, 4);
  EXPECT_THAT(told.last->requests, ElementsAre(1, 2));
}

TEST_F(JournalTest, ForgetsTheOldest) {
  make(4);
  for (int i = 0; i < 10; ++i) submit(at(1ms * (i + 1)));
  EXPECT_FALSE(journal->find(6, at(1s), all).has_value());
  EXPECT_TRUE(journal->find(7, at(1s), all).has_value());
  EXPECT_FALSE(journal->find(11, at(1s), all).has_value());
  const auto listed = journal->list(3, at(1s), all);
  std::vector<std::uint64_t> numbers;
  for (const explain::Story& each : listed) numbers.push_back(each.request.number);
  EXPECT_THAT(numbers, ElementsAre(10, 9, 8));
  // An answer to one that was forgotten changes nothing of those that are kept.
  core->cancel(3, at(1s));
  EXPECT_EQ(story(7).request.number, 7U);
}

TEST_F(JournalTest, FindsTheNewestOfAnId) {
  const std::uint64_t first = submit(at(1ms));
  EXPECT_EQ(journal->find_id("id-1", at(1s), all)->request.number, first);
  EXPECT_FALSE(journal->find_id("id-2", at(1s), all).has_value());
  EXPECT_FALSE(journal->find_id("", at(1s), all).has_value());
  EXPECT_FALSE(
      journal->find_id("id-1", at(1s), [](const explain::RequestFacts& r) { return r.key != "team"; })
          .has_value());
}

TEST_F(JournalTest, TellsOfACallWithoutWhatSurroundsIt) {
  const std::uint64_t number = submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  ASSERT_TRUE(journal->call(number));
  EXPECT_FALSE(journal->call(number)->own.at(0).status);  // under way
  end(1, schedule::ActionStatus::success, at(9ms));
  const auto kept = journal->call(number);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->request.number, number);
  EXPECT_EQ(kept->request.outcome, explain::Outcome::on_time);
  ASSERT_EQ(kept->own.size(), 1U);
  EXPECT_EQ(kept->own[0].status, schedule::ActionStatus::success);
  EXPECT_EQ(kept->device_name, "a device");
  EXPECT_FALSE(journal->call(0));
  EXPECT_FALSE(journal->call(number + 1));
}

TEST(Journal, FollowsLoads) {
  Journal journal(4, Duration{0});
  std::uint64_t seen = 0;
  EXPECT_TRUE(journal.loads_since(seen).empty());
  const auto put = [&](schedule::ActionKind kind) {
    ActionRecord record{.entry = journal.next_entry(), .kind = kind};
    journal.put(record);
  };
  for (int i = 0; i < 6; ++i) put(i % 2 == 0 ? schedule::ActionKind::load : schedule::ActionKind::infer);
  EXPECT_THAT(journal.loads_since(seen), ElementsAre(3, 5));  // the first is not kept any more
  EXPECT_TRUE(journal.loads_since(seen).empty());
  put(schedule::ActionKind::load);
  EXPECT_THAT(journal.loads_since(seen), ElementsAre(7));
  ASSERT_TRUE(journal.action(7));
  EXPECT_EQ(journal.action(7)->kind, schedule::ActionKind::load);
  EXPECT_FALSE(journal.action(1));
  EXPECT_FALSE(journal.action(0));
}

TEST_F(JournalTest, DrawsATrace) {
  submit(at(1ms), TimePoint::max(), {infer(1, {{0}})});
  end(1, schedule::ActionStatus::success, at(9ms));
  const std::string trace = journal->trace(at(0ms), at(10ms), {});
  EXPECT_THAT(trace, HasSubstr("device 0: a device"));
  EXPECT_THAT(trace, HasSubstr("EXEC"));
  EXPECT_THAT(journal->trace(at(9500us), at(10ms), {}), ::testing::Not(HasSubstr("EXEC")));
}

// Without one nothing is numbered, and all else is as it was.
TEST_F(JournalTest, MayBeOff) {
  auto owned = std::make_unique<ScriptedScheduler>();
  Core off(std::move(owned), {});
  HeldWorker its;
  off.add_device(its);
  off.add_model(served(0));
  off.start(at(0ms));
  std::uint64_t number = 77;
  off.submit(
      5, call_of({0}, 1, at(1ms), TimePoint::max(), 10, its.row_bytes),
      [&](InferAnswer answer) { number = answer.number; }, at(1ms));
  off.cancel(5, at(2ms));
  EXPECT_EQ(number, 0U);
}

}  // namespace
}  // namespace carillon::controller
