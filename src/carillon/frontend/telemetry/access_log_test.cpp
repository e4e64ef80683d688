#include "carillon/frontend/telemetry/access_log.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace carillon::frontend {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(BoundedRing, TakesAsManyAsFitAndGivesThemInOrder) {
  BoundedRing<int> ring(3);  // 4 fit
  EXPECT_EQ(ring.front(), nullptr);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.push(10 * round + i));
    EXPECT_FALSE(ring.push(99));
    for (int i = 0; i < 4; ++i) {
      ASSERT_NE(ring.front(), nullptr);
      EXPECT_EQ(*ring.front(), 10 * round + i);
      ring.pop();
    }
    EXPECT_EQ(ring.front(), nullptr);
  }
}

// To be run under ThreadSanitizer.
TEST(BoundedRing, LosesNothingThatItTookFromManyThreads) {
  constexpr int threads = 4;
  constexpr int each = 20'000;
  BoundedRing<int> ring(64);
  std::vector<std::jthread> writers;
  for (int t = 0; t < threads; ++t)
    writers.emplace_back([&, t] {
      for (int i = 0; i < each;) i += ring.push(t * each + i) ? 1 : 0;
    });
  std::vector<int> next(threads, 0);  // of each thread in its order
  for (int got = 0; got < threads * each;) {
    const int* value = ring.front();
    if (value == nullptr) continue;
    const auto thread = static_cast<std::size_t>(*value / each);
    ASSERT_EQ(*value % each, next[thread]++);
    ring.pop();
    ++got;
  }
}

AccessRecord inference() {
  AccessRecord record;
  record.peer = "127.0.0.1:4711";
  record.key = "team-a";
  record.method = "POST";
  record.path = "/v2/models/m/infer";
  record.status = 200;
  record.outcome = AccessOutcome::late;
  record.bytes_in = 10;
  record.bytes_out = 20;
  record.began = TimePoint{1s};
  record.ended = TimePoint{1s + 1500us};
  record.inferred = true;
  record.facts.model = "m";
  record.facts.version = 3;
  record.facts.id = "say \"hi\"\n\xff";
  record.facts.arrival = TimePoint{1s};
  record.facts.deadline = TimePoint{1s + 1ms};
  record.facts.answered = TimePoint{1s + 1400us};
  record.trace = *parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  record.trace.span_id = {1, 2, 3, 4, 5, 6, 7, 8};
  return record;
}

TEST(AccessLine, SaysAllThatIsKnown) {
  const std::string line = access_line(inference(), std::chrono::seconds(1'700'000'000) + 1us);
  ASSERT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(json::parse(line), (json{{"time", "2023-11-14T22:13:21.000001Z"},
                                     {"protocol", "http"},
                                     {"peer", "127.0.0.1:4711"},
                                     {"key", "team-a"},
                                     {"method", "POST"},
                                     {"path", "/v2/models/m/infer"},
                                     {"status", 200},
                                     {"outcome", "late"},
                                     {"bytes_in", 10},
                                     {"bytes_out", 20},
                                     {"duration_us", 1500},
                                     {"model", "m"},
                                     {"version", 3},
                                     {"id", "say \"hi\"\n\xEF\xBF\xBD"},
                                     {"service_us", 1400},
                                     {"deadline_us", 1000},
                                     {"trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"},
                                     {"span_id", "0102030405060708"},
                                     {"sampled", true}}));
}

TEST(AccessLine, LeavesOutWhatIsNotKnownAndCutsWhatIsLong) {
  AccessRecord record;
  record.path = std::string(5000, 'x');
  const json line = json::parse(access_line(record, Duration{0}));
  EXPECT_EQ(line["path"].get<std::string>().size(), 512U);
  for (const char* none : {"key", "model", "version", "id", "deadline_us", "trace_id"})
    EXPECT_FALSE(line.contains(none));
}

TEST(AccessOutcome, IsOfTheStatus) {
  const struct {
    int http;
    int grpc;
    AccessOutcome want;
  } rows[] = {
      {200, 0, AccessOutcome::ok},      {400, 3, AccessOutcome::invalid},  {401, 16, AccessOutcome::invalid},
      {404, 5, AccessOutcome::invalid}, {429, 8, AccessOutcome::refused},  {499, 1, AccessOutcome::cancelled},
      {500, 13, AccessOutcome::failed}, {501, 12, AccessOutcome::invalid}, {503, 14, AccessOutcome::refused},
      {504, 4, AccessOutcome::refused},
  };
  for (const auto& [http, grpc, want] : rows) {
    EXPECT_EQ(outcome_of_http(http), want) << http;
    EXPECT_EQ(outcome_of_grpc(grpc), want) << grpc;
  }
}

class AccessLogTest : public ::testing::Test {
 protected:
  AccessLogTest() { fs::create_directories(folder); }
  ~AccessLogTest() override { fs::remove_all(folder); }

  static std::vector<std::string> lines(const fs::path& file) {
    std::ifstream in(file);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
  std::shared_ptr<AccessLog> open(std::size_t queue = 64) {
    auto opened =
        AccessLog::open({.file = file.string(), .queue = queue, .log = [this](const std::string& text) {
                           told.push_back(text);
                         }});
    EXPECT_TRUE(opened);
    return opened ? std::move(*opened) : nullptr;
  }

  const fs::path folder =
      fs::temp_directory_path() / ("carillon_access." + std::to_string(getpid()) + "." +
                                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const fs::path file = folder / "access.log";
  std::vector<std::string> told;  // on the log's thread; to be read when it has ended
};

TEST_F(AccessLogTest, WritesEveryRecordBeforeItEnds) {
  {
    std::ofstream(file) << "{\"there\":true}\n";
    const auto log = open();
    for (int i = 0; i < 50; ++i) log->add(inference());
  }
  EXPECT_EQ(lines(file).size(), 51U);  // behind what was there
  for (const std::string& line : lines(file)) EXPECT_TRUE(json::accept(line)) << line;
}

TEST_F(AccessLogTest, WhatWasMovedAwayIsOpenedAgain) {
  const auto log = open();
  log->add(inference());
  while (log->written() < 1) std::this_thread::yield();
  fs::rename(file, folder / "access.log.1");
  log->add(inference());
  log->reopen();
  while (!fs::exists(file)) std::this_thread::yield();
  log->add(inference());
  while (log->written() < 3) std::this_thread::yield();
  EXPECT_EQ(lines(folder / "access.log.1").size(), 2U);
  EXPECT_EQ(lines(file).size(), 1U);
  EXPECT_EQ(log->dropped(), 0U);
}

TEST_F(AccessLogTest, WhatCannotBeWrittenIsCountedAndToldOnce) {
  std::string said;
  {
    auto opened =
        AccessLog::open({.file = "/dev/full", .log = [&](const std::string& text) { said += text; }});
    ASSERT_TRUE(opened);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      (*opened)->add(inference());
      while ((*opened)->dropped() < i) std::this_thread::yield();
    }
    EXPECT_EQ((*opened)->written(), 0U);
  }
  EXPECT_EQ(said,
            "--access-log: cannot write to /dev/full: No space left on device; lines are dropped until it "
            "goes again");
}

TEST_F(AccessLogTest, AFullQueueDropsAndCounts) {
  std::uint64_t dropped = 0;
  {
    const auto log = open(2);
    for (int i = 0; i < 100'000 && log->dropped() == 0; ++i) log->add(inference());
    dropped = log->dropped();
    EXPECT_GT(dropped, 0U);
  }
  EXPECT_TRUE(told.empty());
}

TEST_F(AccessLogTest, AFileThatCannotBeOpenedIsAnError) {
  const auto opened = AccessLog::open({.file = (folder / "no" / "where").string(), .log = {}});
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("cannot open"), std::string::npos);
}

}  // namespace
}  // namespace carillon::frontend
