
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/log/lines.h"
#include "carillon/schedule/log/reader.h"
#include "carillon/schedule/log/recording.h"
#include "carillon/schedule/registry.h"

namespace carillon::schedule::log {
namespace {

using ::testing::HasSubstr;

class DecisionLog : public ::testing::Test {
 protected:
  DecisionLog()
      : file(std::filesystem::path(::testing::TempDir()) /
             ("carillon_log_of_" +
              std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove(file);
  }
  ~DecisionLog() override { std::filesystem::remove(file); }

  struct Said {
    std::vector<std::string> lines;
    std::vector<TimePoint> wakes;
    friend bool operator==(const Said&, const Said&) = default;
  };
  // A run of many kinds of events under a real policy; returns what the policy decided.
  Said record(const std::string& scheduler) {
    const Environment environment{
        .dispatch = 100us, .answer = 1ms, .overrun = 0.05, .preemption = Preemption::deadline};
    auto recording =
        RecordingScheduler::open(file, *make_scheduler(scheduler, environment), scheduler, environment);
    EXPECT_TRUE(recording) << recording.error().message;
    Scheduler& s = **recording;
    ModelInfo model{.id = ModelId{0},
                    .name = "a model",
                    .pages = 2,
                    .load = 3ms,
                    .batches = {{1, 2ms}, {4, 5ms}},
                    .cost = profile::PaddedCost{.c0 = 1ms, .c1 = 0.7},
                    .solos = {1ms, 2ms}};
    Said said;
    TimePoint now{};
    const auto decide = [&](const Event& event) {
      Actions out;
      said.wakes.push_back(s.decide(event, now, out));
      for (const auto& action : out) said.lines.push_back(to_line(action));
      return out;
    };
    model.sizes = {{.row = {.operations = 1000, .bytes = 50}, .batch = 1, .exec = 1ms}};
    decide(model_comes(model));
    auto loads = decide(DeviceChanged{DeviceId{0}, true, 10});
    Random random(5);
    std::vector<std::pair<ActionId, bool>> flying;
    const auto fly = [&](const Actions& actions) {
      for (const auto& action : actions) {
        if (const auto* infer = std::get_if<Infer>(&action)) flying.emplace_back(infer->id, true);
        if (const auto* load = std::get_if<Load>(&action)) flying.emplace_back(load->id, false);
      }
    };
    fly(loads);
    for (std::uint64_t i = 0; i < 300; ++i) {
      now += Duration{static_cast<std::int64_t>(random.below(2'000'000))};
      Request request{.id = RequestId{i}, .arrival = now, .deadline = now + 20ms};
      if (i % 3 > 0) request.effort = {.operations = std::uint64_t{1000} << i % 4, .bytes = 50};
      fly(decide(RequestArrived{request}));
      if (random.below(10) == 0) fly(decide(RequestCancelled{RequestId{i}, ModelId{0}}));
      if (!flying.empty() && random.below(2) == 0) {
        const auto [id, infer] = flying.front();
        flying.erase(flying.begin());
        fly(decide(ActionDone{id, ActionStatus::success, now - 1us, now, 1us}));
      }
      if (random.below(5) == 0) fly(decide(Wake{}));
      if (i % 100 == 99) fly(decide(TimesChanged{ModelId{0}, {{1, 2ms}, {4, i == 199 ? 5ms : 8ms}}}));
    }
    return said;
  }
  std::string text() const {
    std::ifstream in(file, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  void write(const std::string& what) const { std::ofstream(file, std::ios::binary) << what; }
  // Reads to the end or to an error; how many decisions came.
  Result<int> read_all() const {
    auto reader = LogReader::open(file);
    if (!reader) return std::unexpected(reader.error());
    for (int n = 0;; ++n) {
      auto decision = reader->next();
      if (!decision) return std::unexpected(decision.error());
      if (!*decision) return n;
    }
  }

  std::filesystem::path file;
};

TEST_F(DecisionLog, AReplayDecidesTheSame) {
  for (const std::string scheduler : {"clockwork", "symphony", "shepherd", "timeout:0.3", "orloj"}) {
    std::filesystem::remove(file);
    const Said decided = record(scheduler);
    ASSERT_GT(decided.lines.size(), 50U);
    auto reader = LogReader::open(file);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->scheduler(), scheduler);
    const auto again = *make_scheduler(reader->scheduler(), reader->environment());
    Said recorded, replayed;
    while (true) {
      auto decision = reader->next();
      ASSERT_TRUE(decision) << decision.error().message;
      if (!*decision) break;
      if (const auto* model = std::get_if<ModelChanged>(&(*decision)->event)) {
        EXPECT_EQ(model->info->name, "a model");
        EXPECT_EQ(model->info->solos, (std::vector<Duration>{1ms, 2ms}));
        EXPECT_EQ(model->info->cost->c1, 0.7);
        ASSERT_EQ(model->info->sizes.size(), 1U);
        EXPECT_EQ(model->info->sizes[0].row, (Effort{.operations = 1000, .bytes = 50}));
        EXPECT_EQ(model->info->sizes[0].exec, 1ms);
      }
      Actions out;
      replayed.wakes.push_back(again->decide((*decision)->event, (*decision)->now, out));
      EXPECT_EQ(out, (*decision)->actions);
      recorded.wakes.push_back((*decision)->wake.value());
      for (const auto& action : (*decision)->actions) recorded.lines.push_back(to_line(action));
      for (const auto& action : out) replayed.lines.push_back(to_line(action));
    }
    EXPECT_TRUE(reader->complete());
    EXPECT_EQ(recorded, decided);
    EXPECT_EQ(replayed, decided);
  }
}

TEST_F(DecisionLog, EveryActionAndEventIsReadAsItWasWritten) {
  const Window window{TimePoint{1ms}, TimePoint::max()};
  const Action actions[] = {Load{{1}, {2}, {3}, window, 4ms},
                            Unload{{1}, {2}, {3}},
                            Infer{{1}, {2}, {3}, {{4}, {5}}, window, 6ms},
                            Infer{{1}, {2}, {3}, {{4}}, window, 6ms, Class::real_time},
                            Refuse{{7}, Reason::no_model, TimePoint{8ms}},
                            Stop{{9}, {10}},
                            Preempt{{1}, {2}, TimePoint{3ms}},
                            Keep{{4}},
                            Keep{{5}, false},
                            Profile{{1}, {2}, {3}, {4}, window, 6ms},
                            GiveUp{{7}}};
  std::set<std::size_t> kinds;
  for (const Action& action : actions) {
    const std::string line = to_line(action);
    kinds.insert(action.index());
    Words words(line);
    EXPECT_EQ(read_action(words, version), action) << line;
    EXPECT_TRUE(words.good() && words.done()) << line;
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<Action>);
  Words older("preempt 9 10 0 0");  // as one that drops was written once
  EXPECT_EQ(read_action(older, version), Action{(Stop{{9}, {10}})});
  const Event events[] = {RequestArrived{{.id = {1}, .model = {0}}},
                          RequestCancelled{{1}, {0}},
                          ActionDone{{1}, ActionStatus::stopped, TimePoint{1ms}, TimePoint{2ms}, 1ms},
                          ActionDone{{1}, ActionStatus::success, TimePoint{1ms}, TimePoint{2ms}, 1ms, 3},
                          DeviceChanged{{1}, false, 3},
                          DeviceChanged{{1}, true, 3, 7},
                          DeviceChanged{{1}, true, 3, 7, {{0}}},
                          Wake{},
                          Wake{{{{1}, Lane::load, 2ms, false}, {{3}, Lane::best_effort, 0ms, true}}},
                          RequestProfiled{{0}, {1}, 2ms},
                          ModelChanged{{0}, nullptr}};
  for (const Event& event : events) {
    std::string line, again;
    append(line, event);
    Words words(line);
    const auto kind = words.word();
    append(again, read_event(kind, words, 1));
    EXPECT_TRUE(words.good() && words.done()) << line;
    EXPECT_EQ(again, line);
  }
}

// Models stood in front of the events, and wakes among the actions.
TEST_F(DecisionLog, VersionOneIsRead) {
  write(
      "carillon-log 1\nscheduler fcfs\nenvironment 0 0 0.05\nmodel 0 0 0 1 1 5000 a model\n"
      "e 7 device 0 1 10\na wake_at 9\n"
      "e 8 arrived 0 0 0 1 0 8 100\na infer 0 0 0 8 9223372036854775807 5000 0\nend 2\n");
  auto reader = LogReader::open(file);
  ASSERT_TRUE(reader) << reader.error().message;
  const auto model = **reader->next();
  EXPECT_EQ(std::get<ModelChanged>(model.event).info->name, "a model");
  EXPECT_EQ(model.now, TimePoint{7ns});
  const auto device = **reader->next();
  EXPECT_TRUE(std::holds_alternative<DeviceChanged>(device.event));
  EXPECT_TRUE(device.actions.empty());
  EXPECT_FALSE(device.wake.has_value());
  const auto arrival = **reader->next();
  EXPECT_EQ(std::get<Infer>(arrival.actions.at(0)).requests, std::vector<RequestId>{{0}});
  EXPECT_FALSE(*reader->next());
  EXPECT_TRUE(reader->complete());
}

TEST_F(DecisionLog, WhatAPolicyWasToldOfSilenceProfilesPreemptionAndClassesIsRead) {
  const Environment told{.shortest = 5ms,
                         .hangs_after = 300ms,
                         .profile_share = 0.25,
                         .preemption = Preemption::deadline,
                         .classes = true,
                         .admission = true,
                         .miss_rate = 0.02};
  ModelInfo model{.id = {0},
                  .name = "1 m",
                  .batches = {{1, 2ms}},
                  .time_varies = true,
                  .cls = Class::best_effort,
                  .miss_rate = 0.1};
  {
    auto recording = RecordingScheduler::open(file, *make_scheduler("fcfs", told), "fcfs", told);
    ASSERT_TRUE(recording) << recording.error().message;
    Actions out;
    (*recording)->decide(model_comes(model), {}, out);
  }
  auto reader = LogReader::open(file);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader->environment().shortest, 5ms);
  EXPECT_EQ(reader->environment().hangs_after, 300ms);
  EXPECT_EQ(reader->environment().profile_share, 0.25);
  EXPECT_EQ(reader->environment().preemption, Preemption::deadline);
  EXPECT_TRUE(reader->environment().classes);
  EXPECT_TRUE(reader->environment().admission);
  EXPECT_EQ(reader->environment().miss_rate, 0.02);
  const auto read = **reader->next();
  EXPECT_EQ(std::get<ModelChanged>(read.event).info->name, "1 m");
  EXPECT_EQ(std::get<ModelChanged>(read.event).info->miss_rate, 0.1);
  EXPECT_TRUE(std::get<ModelChanged>(read.event).info->time_varies);
  EXPECT_EQ(std::get<ModelChanged>(read.event).info->cls, Class::best_effort);
  EXPECT_EQ(std::get<ModelChanged>(read.event).info->name, "1 m");
}

// It knew of no classes but the requests'.
TEST_F(DecisionLog, VersionThreeIsRead) {
  write(
      "carillon-log 3\nscheduler fcfs\nenvironment 0 0 0.05 1 0 1000 0.5\n"
      "e 7 model 0 0 0 1 1 5000 0 0 1 2 m\ne 8 device 0 1 10\n"
      "e 9 arrived 0 0 0 2 0 9 100\na infer 0 0 0 9 9223372036854775807 5000 0\nend 3\n");
  auto reader = LogReader::open(file);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader->environment().profile_share, 0.5);
  EXPECT_FALSE(reader->environment().classes);
  EXPECT_EQ(reader->environment().preemption, Preemption::none);
  const auto model = **reader->next();
  EXPECT_EQ(std::get<ModelChanged>(model.event).info->name, "2 m");
  EXPECT_EQ(std::get<ModelChanged>(model.event).info->cls, Class::normal);
  EXPECT_EQ(std::get<DeviceChanged>((**reader->next()).event).best_effort, 1);
  const auto decision = **reader->next();
  EXPECT_EQ(std::get<RequestArrived>(decision.event).request.cls, Class::best_effort);
  EXPECT_EQ(std::get<Infer>(decision.actions.front()).requests, std::vector<RequestId>{{0}});
}

// It knew neither of whose time varies nor of when a device hangs.
TEST_F(DecisionLog, VersionTwoIsRead) {
  write(
      "carillon-log 2\nscheduler fcfs\nenvironment 0 0 0.05 1 0\n"
      "e 7 model 0 0 0 1 1 5000 1 3000 0 1 m\nw 9\nend 1\n");
  auto reader = LogReader::open(file);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_TRUE(reader->environment().measured);
  EXPECT_EQ(reader->environment().hangs_after, Duration{0});
  const auto read = **reader->next();
  EXPECT_EQ(std::get<ModelChanged>(read.event).info->name, "1 m");
  EXPECT_EQ(std::get<ModelChanged>(read.event).info->solos, std::vector<Duration>{3us});
  EXPECT_EQ(read.wake, TimePoint{9ns});
}

TEST_F(DecisionLog, ALogThatWasCutOffIsReadToItsLastWholeLine) {
  record("symphony");
  const std::string whole = text();
  const int all = *read_all();
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    write(whole.substr(0, random.below(whole.size())));
    const auto read = read_all();
    if (read)
      EXPECT_LE(*read, all);
    else
      EXPECT_THAT(read.error().message, HasSubstr(file.string()));
  }
}

TEST_F(DecisionLog, MangledLogsAreErrorsWithTheirLine) {
  record("symphony");
  const std::string whole = text();
  Random random(2);
  int errors = 0;
  for (int i = 0; i < 500; ++i) {
    std::string mangled = whole;
    for (std::uint64_t k = random.below(5) + 1; k > 0; --k)
      mangled[random.below(mangled.size())] = static_cast<char>(random.below(256));
    write(mangled);
    const auto read = read_all();
    if (read) continue;
    ++errors;
    EXPECT_THAT(read.error().message, HasSubstr(file.string() + ":"));
  }
  EXPECT_GT(errors, 20);
  write("carillon-log 2\nscheduler symphony\ne 0 model 0 1 1 99999999999999 1 1 m\n");
  EXPECT_THAT(read_all().error().message, HasSubstr(":3: a model needs"));
  write("something else\n");
  EXPECT_THAT(read_all().error().message, HasSubstr("is not a log of carillon"));
  write("carillon-log 11\nscheduler symphony\n");
  ASSERT_FALSE(read_all());
  EXPECT_THAT(read_all().error().message, HasSubstr("reads logs of version 1 to 10"));
}

TEST_F(DecisionLog, AFileThatIsThereIsNotOverwritten) {
  write("precious");
  const auto opened = RecordingScheduler::open(file, *make_scheduler("fcfs"), "fcfs", {});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("name a file that is not there yet"));
  EXPECT_EQ(text(), "precious");
}

TEST_F(DecisionLog, TimesThatChangeAreReadAsTheyWereWritten) {
  const TimesChanged change{{1}, {{1, 3ms}, {8, 4ms}}};
  std::string line;
  append(line, change);
  EXPECT_EQ(line, "times 1 2 1 3000000 8 4000000");
  const std::string head =
      "carillon-log 9\nscheduler fcfs\ne 0 model 0 0 0 1 1 5 0 0 0 1 0 a\n"
      "e 0 model 1 0 0 2 1 5 8 40 0 0 0 1 0 b\n";
  write(head + "e 1 " + line + "\nend 3\n");
  auto reader = LogReader::open(file);
  ASSERT_TRUE(reader) << reader.error().message;
  ASSERT_TRUE(reader->next());
  ASSERT_TRUE(reader->next());
  const auto read = reader->next();
  ASSERT_TRUE(read) << read.error().message;
  const auto& times = std::get<TimesChanged>((*read)->event);
  EXPECT_EQ(times.model, ModelId{1});
  EXPECT_EQ(times.batches, change.batches);
  std::string again;
  append(again, (*read)->event);
  EXPECT_EQ(again, line);

  const std::pair<const char*, const char*> wrong[] = {
      {"times 2 1 1 3", "no model 2 has come whose times could change"},
      {"times 1 1 1 3", "times of model 1 are of other batch sizes than it has"},
      {"times 1 2 1 3 4 5", "times of model 1 are of other batch sizes than it has"},
      {"times 0 2 1 3 8 5", "times of model 0 are of other batch sizes than it has"},
      {"times 1 0", "times of model 1 are of other batch sizes than it has"},
      {"times 1 2 1 3", "times of 2 batch sizes need so many, ascending, each with its time"},
      {"times 1 2 1 3 8 5 9", "times of 2 batch sizes need so many"},
      {"times 1 2 8 3 1 5", "times of 2 batch sizes need so many"},
      {"times 1 2 1 -3 8 5", "times of 2 batch sizes need so many"},
      {"times 1 18446744073709551615 1 3", "batch sizes need so many"},
      {"times", "times need a model's id"},
      {"times 1", "times need a model's id"}};
  for (const auto& [what, says] : wrong) {
    write(head + "e 1 " + what + "\nend 3\n");
    const auto all = read_all();
    ASSERT_FALSE(all) << what;
    EXPECT_THAT(all.error().message, HasSubstr(file.string() + ":5: ")) << what;
    EXPECT_THAT(all.error().message, HasSubstr(says)) << what;
  }
}

TEST_F(DecisionLog, ADeviceComesInTurnWithWhatIsServedAndHasRoom) {
  const std::string head =
      "carillon-log 9\nscheduler clockwork\n"
      "e 0 model 0 4 0 1 1 5 0 0 0 1 0 a\ne 0 model 1 0 0 1 1 5 0 0 0 1 0 b\n"
      "e 0 model 2 3 0 1 1 5 0 0 0 1 0 c\ne 0 model_gone 2\n";
  const auto replay = [&](const std::string& device) -> Result<int> {
    write(head + "e 5 " + device + "\nend 5\n");
    auto reader = LogReader::open(file);
    if (!reader) return std::unexpected(reader.error());
    const auto policy = *make_scheduler(reader->scheduler(), reader->environment());
    for (int n = 0;; ++n) {
      const auto decision = reader->next();
      if (!decision) return std::unexpected(decision.error());
      if (!*decision) return n;
      Actions out;
      policy->decide((*decision)->event, (*decision)->now, out);
    }
  };
  EXPECT_EQ(replay("device 0 1 4 1 0"), 5);
  EXPECT_EQ(replay("device 0 0 4 1"), 5);
  const std::pair<const char*, const char*> wrong[] = {
      {"device 0 0 4 1 0", "device 0 is gone, and holds models"},
      {"device 0 1 3 1 0", "device 0 has 3 pages, and the models that it holds need more"},
      {"device 0 1 9 1 0 0", "device 0 holds model 0 twice"},
      {"device 0 1 9 1 1", "device 0 holds model 1, which needs no pages"},
      {"device 0 1 9 1 0 2", "device 0 holds model 2, which is gone"},
      {"device 0 1 9 1 3", "is not an event"},
      {"device 1 1 9 1", "device 1 comes before device 0"}};
  for (const auto& [what, says] : wrong) {
    const auto all = replay(what);
    ASSERT_FALSE(all) << what;
    EXPECT_THAT(all.error().message, HasSubstr(file.string() + ":7: ")) << what;
    EXPECT_THAT(all.error().message, HasSubstr(says)) << what;
  }
}

}  // namespace
}  // namespace carillon::schedule::log
