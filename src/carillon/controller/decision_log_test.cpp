#include "carillon/controller/decision_log.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/schedule/registry.h"

namespace carillon::controller {
namespace {

using ::testing::HasSubstr;

class DecisionLog : public ::testing::Test {
 protected:
  DecisionLog()
      : file(std::filesystem::path(::testing::TempDir()) / ("carillon_log_" + std::to_string(::getpid()))) {
    std::filesystem::remove(file);
  }
  ~DecisionLog() override { std::filesystem::remove(file); }

  // A run of every kind of event under a real policy; returns what the policy decided.
  std::vector<std::string> record(const std::string& scheduler) {
    const schedule::Environment environment{.dispatch = 100us, .answer = 1ms, .overrun = 0.05};
    auto recording = RecordingScheduler::open(file, *schedule::make_scheduler(scheduler, environment),
                                              scheduler, environment);
    EXPECT_TRUE(recording) << recording.error().message;
    schedule::Scheduler& s = **recording;
    schedule::ModelInfo model{
        .id = ModelId{0}, .name = "a model", .pages = 2, .load = 3ms, .batches = {{1, 2ms}, {4, 5ms}}};
    s.add_model(model);
    std::vector<std::string> lines;
    TimePoint now{};
    const auto decide = [&](const schedule::Event& event) {
      schedule::Actions out;
      s.decide(event, now, out);
      for (const auto& action : out) lines.push_back(to_line(action));
      return out;
    };
    auto loads = decide(schedule::DeviceChanged{DeviceId{0}, true, 10});
    Random random(5);
    std::vector<std::pair<ActionId, bool>> flying;
    const auto fly = [&](const schedule::Actions& actions) {
      for (const auto& action : actions) {
        if (const auto* infer = std::get_if<schedule::Infer>(&action)) flying.emplace_back(infer->id, true);
        if (const auto* load = std::get_if<schedule::Load>(&action)) flying.emplace_back(load->id, false);
      }
    };
    fly(loads);
    for (std::uint64_t i = 0; i < 300; ++i) {
      now += Duration{static_cast<std::int64_t>(random.below(2'000'000))};
      fly(decide(schedule::RequestArrived{{.id = RequestId{i}, .arrival = now, .deadline = now + 20ms}}));
      if (random.below(10) == 0) fly(decide(schedule::RequestCancelled{RequestId{i}, ModelId{0}}));
      if (!flying.empty() && random.below(2) == 0) {
        const auto [id, infer] = flying.front();
        flying.erase(flying.begin());
        fly(decide(schedule::ActionDone{id, schedule::ActionStatus::success, now - 1us, now, 1us}));
      }
      if (random.below(5) == 0) fly(decide(schedule::Wake{}));
    }
    return lines;
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
  for (const std::string scheduler : {"clockwork", "symphony", "shepherd", "timeout:0.3"}) {
    std::filesystem::remove(file);
    const auto decided = record(scheduler);
    ASSERT_GT(decided.size(), 100U);
    auto reader = LogReader::open(file);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader->scheduler(), scheduler);
    ASSERT_EQ(reader->models().size(), 1U);
    EXPECT_EQ(reader->models()[0].name, "a model");
    const auto again = *schedule::make_scheduler(reader->scheduler(), reader->environment());
    for (const auto& model : reader->models()) again->add_model(model);
    std::vector<std::string> recorded, replayed;
    while (true) {
      auto decision = reader->next();
      ASSERT_TRUE(decision) << decision.error().message;
      if (!*decision) break;
      recorded.insert(recorded.end(), (*decision)->actions.begin(), (*decision)->actions.end());
      schedule::Actions out;
      again->decide((*decision)->event, (*decision)->now, out);
      for (const auto& action : out) replayed.push_back(to_line(action));
    }
    EXPECT_TRUE(reader->complete());
    EXPECT_EQ(recorded, decided);
    EXPECT_EQ(replayed, decided);
  }
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
  write("carillon-log 1\nscheduler symphony\nmodel 0 1 1 99999999999999 1 1 m\n");
  EXPECT_THAT(read_all().error().message, HasSubstr(":3: a model needs"));
  write("something else\n");
  EXPECT_THAT(read_all().error().message, HasSubstr("is not a log of carillon"));
}

TEST_F(DecisionLog, AFileThatIsThereIsNotOverwritten) {
  write("precious");
  const auto opened = RecordingScheduler::open(file, *schedule::make_scheduler("fcfs"), "fcfs", {});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("name a file that is not there yet"));
  EXPECT_EQ(text(), "precious");
}

}  // namespace
}  // namespace carillon::controller
