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
  words.all.fill(55);
  ring.put(9, words, 17);
  ASSERT_TRUE(ring.get(9, words));
  EXPECT_EQ(words.all[2], 55U) << "a word of which a byte means something is written";
  EXPECT_EQ(words.all[3], 9U);
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

// When two threads write one place at the same time, one of them gives way, and the place stays whole.
TEST(RecordRing, WritersOfOnePlaceDoNotMix) {
  RecordRing<Words> ring(1);
  std::vector<std::thread> writers;
  for (std::uint64_t first : {1'000'000, 2'000'000})
    writers.emplace_back([&ring, first] {
      Words words;
      for (std::uint64_t n = first; n < first + 200'000; ++n) {
        words.all.fill(n);
        ring.put(1, words);
      }
    });
  for (std::thread& writer : writers) writer.join();
  Words words;
  ASSERT_TRUE(ring.get(1, words));
  for (const std::uint64_t word : words.all) EXPECT_EQ(word, words.all[0]);
  words.all.fill(7);
  ring.put(1, words);
  ASSERT_TRUE(ring.get(1, words));
  EXPECT_EQ(words.all[99], 7U);
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

// Each field has a value of its own.
CallRecord filled_call() {
  CallRecord record;
  record.number = 7;
  record.log_request = 3;
  record.arrival = at(10ms);
  record.deadline = at(90ms);
  record.handed = at(11ms);
  record.at_door = at(12ms);
  record.decided = at(13ms);
  record.ended = at(80ms);
  record.would_take = 0ms;
  record.retry_after = 0ms;
  record.version = 4;
  record.rows = 5;
  record.priority = 6;
  record.cls = Class::best_effort;
  record.deadline_from = explain::DeadlineFrom::grpc;
  record.outcome = explain::Outcome::refused;
  record.cause = explain::Cause::cannot_finish;
  record.has_expected = true;
  record.loading = true;
  record.exec_batch = 8;
  record.devices = 9;
  record.holding = 10;
  record.device = 11;
  record.device_actions = 12;
  record.exec = 14ms;
  record.busy = 15ms;
  record.tries = 2;
  record.say(record.id, "id", 64);
  record.say(record.application, "application", 64);
  record.say(record.key, "key", 64);
  record.say(record.trace, "trace", 64);
  record.say(record.message, "message", 64);
  return record;
}

TEST(Journal, ACallIsReadAsItWasPut) {
  Journal journal(4, 1000s);
  CallRecord record = filled_call();
  journal.put(record);
  EXPECT_EQ(journal.call(7)->request.model, "") << "a name that it does not know";
  EXPECT_NE(journal.name("first"), journal.name("second"));
  EXPECT_EQ(journal.name("second"), journal.name("second"));
  record.model = journal.name("second");
  journal.put(record);
  const explain::RequestFacts read = journal.call(7)->request;
  EXPECT_EQ(read.number, 7U);
  EXPECT_EQ(read.id, "id");
  EXPECT_EQ(read.application, "application");
  EXPECT_EQ(read.key, "key");
  EXPECT_EQ(read.trace, "trace");
  EXPECT_EQ(read.text, "message");
  EXPECT_EQ(read.model, "second");
  EXPECT_EQ(read.version, 4);
  EXPECT_EQ(read.cls, Class::best_effort);
  EXPECT_EQ(read.priority, 6U);
  EXPECT_EQ(read.rows, 5);
  EXPECT_EQ(read.log_request, 3U);
  EXPECT_EQ(read.arrived_unix_us, 1'000'010'000);
  EXPECT_EQ(read.arrival, at(10ms));
  EXPECT_EQ(read.deadline, at(90ms));
  EXPECT_EQ(read.deadline_from, explain::DeadlineFrom::grpc);
  EXPECT_EQ(read.handed, at(11ms));
  EXPECT_EQ(read.at_door, at(12ms));
  EXPECT_EQ(read.decided, at(13ms));
  EXPECT_EQ(read.ended, at(80ms));
  EXPECT_EQ(read.outcome, explain::Outcome::refused);
  EXPECT_EQ(read.cause, explain::Cause::cannot_finish);
  EXPECT_EQ(read.would_take, 0ms);
  EXPECT_EQ(read.retry_after, 0ms);
  ASSERT_TRUE(read.expected.has_value());
  EXPECT_EQ(read.expected->exec, 14ms);
  EXPECT_EQ(read.expected->batch, 8);
  EXPECT_EQ(read.expected->devices, 9);
  EXPECT_EQ(read.expected->holding, 10);
  EXPECT_EQ(read.expected->device, 11U);
  EXPECT_EQ(read.expected->busy, 15ms);
  EXPECT_EQ(read.expected->actions, 12);
  EXPECT_TRUE(read.expected->loading);
  EXPECT_EQ(read.tries, 2);
}

TEST(Journal, OfACallOfWhichNothingIsKnownNothingIsSaid) {
  Journal journal(4, 0s);
  journal.put(CallRecord{.number = 1});
  const auto kept = journal.call(1);
  ASSERT_TRUE(kept.has_value());
  const explain::RequestFacts& read = kept->request;
  for (const std::string& text :
       {read.id, read.application, read.key, read.trace, read.text, kept->device_name})
    EXPECT_EQ(text, "");
  EXPECT_EQ(read.deadline, TimePoint::max());
  for (const TimePoint time : {read.handed, read.at_door, read.decided, read.ended})
    EXPECT_EQ(time, explain::never);
  EXPECT_EQ(read.log_request, 0U);
  EXPECT_EQ(read.version, 1);
  EXPECT_EQ(read.rows, 1);
  EXPECT_EQ(read.priority, 0U);
  EXPECT_EQ(read.outcome, explain::Outcome::open);
  EXPECT_EQ(read.would_take, std::nullopt);
  EXPECT_EQ(read.retry_after, std::nullopt);
  EXPECT_FALSE(read.expected.has_value());
  EXPECT_EQ(read.tries, 0);
  EXPECT_TRUE(kept->own.empty());
}

TEST(Journal, OfAnActionOfWhichNothingIsKnownNothingIsSaid) {
  Journal journal(4, 0s);
  journal.put(ActionRecord{.entry = 1});
  const auto read = journal.action(1);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->device, 0U);
  EXPECT_EQ(read->rows, 0);
  EXPECT_EQ(read->preemptions, 0);
  EXPECT_EQ(read->ended, explain::never);
  EXPECT_FALSE(read->again || read->lost || read->status.has_value());
  EXPECT_TRUE(read->requests.empty());
}

TEST(Journal, AnActionIsReadAsItWasPut) {
  Journal journal(4, 0s);
  ActionRecord record;
  record.entry = 9;
  record.kind = schedule::ActionKind::infer;
  record.again = true;
  record.device = 3;
  record.model = journal.name("model");
  record.rows = 2;
  record.sent = at(1ms);
  record.window = {at(2ms), at(30ms)};
  record.predicted = 4ms;
  record.input_start = at(5ms);
  record.input_end = at(6ms);
  record.exec_start = at(7ms);
  record.exec_end = at(8ms);
  record.output_start = record.output_end = at(9ms);
  record.paused = 100us;
  record.preemptions = 5;
  record.count = 2;
  record.requests = {20, 21, 22};
  journal.put(record);
  explain::ActionFacts read = *journal.action(9);
  EXPECT_EQ(read.entry, 9U);
  EXPECT_EQ(read.kind, schedule::ActionKind::infer);
  EXPECT_TRUE(read.again);
  EXPECT_EQ(read.device, 3U);
  EXPECT_EQ(read.model, "model");
  EXPECT_EQ(read.rows, 2);
  EXPECT_EQ(read.sent, at(1ms));
  EXPECT_EQ(read.window, (Window{at(2ms), at(30ms)}));
  EXPECT_EQ(read.predicted, 4ms);
  EXPECT_FALSE(read.lost);
  EXPECT_EQ(read.paused, 100us);
  EXPECT_EQ(read.preemptions, 5);
  EXPECT_THAT(read.requests, ElementsAre(20, 21));
  EXPECT_FALSE(read.status.has_value()) << "it is under way";
  EXPECT_EQ(read.ended, explain::never);
  EXPECT_EQ(read.exec_start, explain::never);

  record.status = static_cast<std::uint8_t>(schedule::ActionStatus::failed);
  record.ended = at(10ms);
  record.lost = true;
  journal.put(record);
  read = *journal.action(9);
  EXPECT_EQ(read.status, schedule::ActionStatus::failed);
  EXPECT_EQ(read.ended, at(10ms));
  EXPECT_TRUE(read.lost);
  EXPECT_EQ(read.input_start, at(5ms));
  EXPECT_EQ(read.input_end, at(6ms));
  EXPECT_EQ(read.exec_start, at(7ms));
  EXPECT_EQ(read.exec_end, at(8ms));
  EXPECT_EQ(read.output_start, explain::never) << "a step that took no time was not done";
  EXPECT_EQ(read.output_end, explain::never);
  record.output_end = at(11ms);
  journal.put(record);
  EXPECT_EQ(journal.action(9)->output_start, at(9ms));
  EXPECT_EQ(journal.action(9)->output_end, at(11ms));
}

TEST(Journal, TellsOfACallsLastSixActions) {
  Journal journal(20, 0s);
  journal.add_device("first");
  journal.add_device("second");
  CallRecord call{.number = 1};
  ASSERT_EQ(call.actions.size(), 6U);
  const auto own = [&] {
    const auto kept = journal.call(1);
    std::vector<std::uint64_t> entries;
    for (const explain::ActionFacts& action : kept->own) entries.push_back(action.entry);
    return entries;
  };
  for (std::uint64_t entry = 11; entry <= 18; ++entry) {
    journal.put(ActionRecord{.entry = entry, .device = entry == 18 ? 1U : 0U});
    call.actions[static_cast<std::size_t>(call.tries++) % 6] = entry;
    journal.put(call);
    if (entry == 16) {
      EXPECT_THAT(own(), ElementsAre(11, 12, 13, 14, 15, 16));
    }
  }
  EXPECT_THAT(own(), ElementsAre(13, 14, 15, 16, 17, 18));
  EXPECT_EQ(journal.call(1)->device_name, "second") << "of the last";
}

TEST(CallRecord, HasWhatIsKnownOfACallWhenItComes) {
  InferCall call;
  call.arrival = at(10ms);
  call.handed = at(11ms);
  call.at_door = at(12ms);
  call.rows = 3;
  call.priority = 4;
  call.deadline_from = explain::DeadlineFrom::timeout;
  call.id = std::string(70, 'i');
  call.application = std::string(70, 'a');
  call.key = std::string(70, 'k');
  call.trace.trace_id.fill(0xab);
  call.trace.span_id.fill(0x12);
  CallRecord record = record_of(call, 5, NameNumber{6}, 7, Class::best_effort, at(90ms));
  say_message(record, std::string(200, 'm'));
  EXPECT_EQ(record.number, 5U);
  EXPECT_EQ(record.arrival, at(10ms));
  EXPECT_EQ(record.deadline, at(90ms));
  EXPECT_EQ(record.handed, at(11ms));
  EXPECT_EQ(record.at_door, at(12ms));
  EXPECT_EQ(record.version, 7);
  EXPECT_EQ(record.model, NameNumber{6});
  EXPECT_EQ(record.rows, 3);
  EXPECT_EQ(record.priority, 4U);
  EXPECT_EQ(record.cls, Class::best_effort);
  EXPECT_EQ(record.deadline_from, explain::DeadlineFrom::timeout);
  EXPECT_EQ(record.read(record.id), std::string(64, 'i'));
  EXPECT_EQ(record.read(record.application), std::string(64, 'a'));
  EXPECT_EQ(record.read(record.key), std::string(64, 'k'));
  std::string trace;
  for (int i = 0; i < 16; ++i) trace += "ab";
  EXPECT_EQ(record.read(record.trace), trace);
  EXPECT_EQ(record.read(record.message), std::string(168, 'm')) << "all that there is room for";
  EXPECT_EQ(record.used(), sizeof(CallRecord));
  record = record_of(InferCall{}, 5, {}, 7, Class::normal, at(0ms));
  EXPECT_EQ(record.said, 0U) << "a client need not say anything";
  EXPECT_EQ(record.rows, 1);
  EXPECT_EQ(record.priority, 0U);
}

// Its calls come at 10 s. An action of another model is before its own on the device.
struct StoryTest : ::testing::Test {
  StoryTest() {
    journal.name("model");
    call.arrival = call.decided = at(10s);
    call.tries = 1;
    ActionRecord own{.entry = 0, .kind = schedule::ActionKind::infer, .rows = 3};
    own.sent = at(10s + 1ms);
    own.status = static_cast<std::uint8_t>(schedule::ActionStatus::success);
    own.exec_start = at(10s + 5ms);
    own.exec_end = own.ended = at(10s + 8ms);
    last = own;
    other = {.entry = journal.next_entry(), .kind = schedule::ActionKind::infer, .rows = 1};
    other.model = journal.name("other");
    other.sent = at(0ms);
    other.status = own.status;
    other.exec_start = at(9s);
    other.exec_end = other.ended = at(10s + 4ms);
  }
  // What the call's story says of the other.
  std::vector<explain::Step> busy() {
    last.entry = journal.next_entry();
    call.number = journal.next_number();
    call.actions[0] = last.entry;
    call.ended = last.ended;
    journal.put(call);
    journal.put(last);
    journal.put(other);
    story = journal.find(call.number, at(20s), all).value();
    std::vector<explain::Step> out;
    for (const explain::Step& step : story.steps)
      if (step.what == explain::Step::What::busy) out.push_back(step);
    return out;
  }
  Journal journal{8, 0s};
  explain::Story story;
  CallRecord call;
  ActionRecord last, other;
};

TEST_F(StoryTest, TellsWhatTheDeviceRanBefore) {
  const std::vector<explain::Step> steps = busy();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].other, "other");
  EXPECT_EQ(steps[0].end, 4ms);
  other.ended = explain::never;
  other.status = ActionRecord::under_way;
  EXPECT_TRUE(busy().empty()) << "of what has not ended the times are not known";
}

// What was sent more than ten seconds before the call came is not looked at.
TEST_F(StoryTest, LooksBackForTenSeconds) {
  other.sent = at(-1ns);
  EXPECT_TRUE(busy().empty());
  other.sent = at(0ns);
  EXPECT_EQ(busy().size(), 1U);
}

TEST_F(StoryTest, TellsHowManyOfItsBatchCameLater) {
  const auto put = [&](std::uint64_t number, TimePoint arrival, int rows) {
    journal.put(CallRecord{.number = number, .arrival = arrival, .rows = rows});
  };
  put(1, at(10s - 1ms), 1);
  put(2, at(10s + 1ms), 5);
  put(3, at(10s), 1);
  for (int i = 0; i < 3; ++i) journal.next_number();
  other.exec_end = other.ended = at(9500ms);
  last.sent = at(10s + 4ms);
  last.rows = 8;
  last.count = 4;
  last.requests = {1, 2, 3, 4};
  (void)busy();
  std::string notes;
  for (const explain::Step& step : story.steps) notes += step.note + ";";
  EXPECT_THAT(notes, HasSubstr("until 5 of its batch's 7 had come"));
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

TEST_F(JournalTest, NamesSeventeenCallsOfAnAction) {
  std::vector<RequestId> rows;
  for (std::uint64_t row = 0; row < 18; ++row) rows.push_back({row});
  for (int i = 0; i < 17; ++i) submit(at(1ms));
  const std::uint64_t last = submit(at(1ms), TimePoint::max(), {infer(1, rows)});
  end(1, schedule::ActionStatus::success, at(9ms));
  EXPECT_EQ(story(1).last->rows, 18);
  EXPECT_EQ(story(1).last->requests.size(), 17U);
  EXPECT_EQ(story(last).last->rows, 18) << "which it was in, too";
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
