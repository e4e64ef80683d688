// Recorded calls of a driver, and whether the emulated device answers the same.
#include "carillon/engine/cuda/driver/recorded.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/driver/rules.h"

namespace carillon::engine::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class RecordedCalls : public ::testing::Test {
 protected:
  RecordedCalls() { std::filesystem::remove(file_); }
  ~RecordedCalls() override { std::filesystem::remove(file_); }

  // What is written of what `does` asks an emulated device.
  std::string recorded(const std::function<void(const Driver&)>& does, const RecordingOptions& options = {},
                       const EmulatedOptions& device = {}) {
    EmulatedOptions with = device;
    if (with.enqueue == EmulatedOptions{}.enqueue) with.enqueue = std::chrono::nanoseconds{100};
    const Emulated emulated(with);
    {
      auto recording = Recording::make(file_, options);
      EXPECT_TRUE(recording) << recording.error().message;
      const Driver driver = (*recording)->around(Emulated::table());
      does(driver);
    }
    std::ostringstream out;
    out << std::ifstream(file_).rdbuf();
    return out.str();
  }
  static Replayed again(const std::string& text) {
    auto out = replay(text);
    EXPECT_TRUE(out) << out.error().message;
    return out ? *out : Replayed{};
  }
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
  static std::string joined(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& line : lines) out += line + '\n';
    return out;
  }

  const std::string file_ = ::testing::TempDir() + "recorded_calls.txt";
};

// All that the emulated device has rules for, and a stream of another thread.
void ask_everything(const Driver& driver) {
  ASSERT_TRUE(ask_rules(driver, 0));
  std::thread([&] {
    Context context = nullptr;
    Stream stream = nullptr;
    (void)driver.context_retain(&context, 0);
    (void)driver.context_push(context);
    EXPECT_EQ(driver.stream_create(&stream, stream_beside_the_default, 0), done);
    EXPECT_EQ(driver.stream_synchronize(stream), done);
    EXPECT_EQ(driver.stream_destroy(stream), done);
    (void)driver.context_pop(&context);
    (void)driver.context_release(0);
  }).join();
}

TEST_F(RecordedCalls, TheSameDeviceAnswersTheSame) {
  const std::string text = recorded(ask_everything);
  const Replayed replayed = again(text);
  EXPECT_THAT(replayed.differences, IsEmpty());
  EXPECT_GT(replayed.calls, 100U);
  EXPECT_EQ(replayed.calls + replayed.left_out, lines_of(text).size());
}

TEST_F(RecordedCalls, ADeviceOfOtherSizesIsEmulatedWithThese) {
  const std::string text =
      recorded(ask_everything, {},
               {.version = 13010, .major = 10, .processors = 148, .memory = std::uint64_t{6} << 30});
  EXPECT_THAT(again(text).differences, IsEmpty());
}

TEST_F(RecordedCalls, EachStatusThatIsAnotherIsFound) {
  const auto lines = lines_of(recorded(ask_everything));
  std::size_t tried = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t thread = lines[i].find(' '), status = lines[i].find(' ', thread + 1) + 1;
    const std::size_t end = lines[i].find(' ', status);
    if (lines[i].find("Uuid") != std::string::npos) continue;  // which is made up on each
    auto other = lines;
    other[i].replace(status, end == std::string::npos ? end : end - status, "999");
    const Replayed replayed = again(joined(other));
    ASSERT_FALSE(replayed.differences.empty()) << lines[i];
    EXPECT_THAT(replayed.differences.front(), StartsWith("line " + std::to_string(i + 1) + ": "));
    EXPECT_THAT(replayed.differences.front(), HasSubstr("999 is recorded")) << lines[i];
    ++tried;
  }
  EXPECT_GT(tried, 100U);
}

TEST_F(RecordedCalls, NumbersThatAreOthersAreFound) {
  const std::string text = recorded(ask_everything);
  const struct {
    const char *was, *is, *found;
  } rows[] = {
      {"cuCtxGetStreamPriorityRange 0 0 -5", "cuCtxGetStreamPriorityRange 0 0 -3",
       "gave -5 where -3 is recorded"},
      {"cuDevSmResourceSplitByCount 0 - 15 ", "cuDevSmResourceSplitByCount 0 - 16 ",
       "gave 15 where 16 is recorded"},
      {"cuMemGetAllocationGranularity 0 2097152", "cuMemGetAllocationGranularity 0 65536",
       "gave 2097152 where 65536 is recorded"},
      {"cuGetErrorName 0 2 CUDA_ERROR_OUT_OF_MEMORY", "cuGetErrorName 0 2 CUDA_ERROR_NO_MEMORY",
       "gave CUDA_ERROR_OUT_OF_MEMORY where CUDA_ERROR_NO_MEMORY is recorded"},
  };
  for (const auto& row : rows) {
    std::string other = text;
    const std::size_t at = other.find(row.was);
    ASSERT_NE(at, std::string::npos) << row.was << "\n" << text;
    other.replace(at, std::string_view(row.was).size(), row.is);
    const Replayed replayed = again(other);
    ASSERT_FALSE(replayed.differences.empty()) << row.is;
    EXPECT_THAT(replayed.differences.front(), HasSubstr(row.found));
  }
}

TEST_F(RecordedCalls, WhatTheEmulatedDeviceFindsWrongIsADifference) {
  // A driver that destroys a stream while work is left in the stream.
  const std::string text = recorded([](const Driver& driver) {
    Context context = nullptr;
    Stream stream = nullptr;
    (void)driver.context_retain(&context, 0);
    (void)driver.context_push(context);
    (void)driver.stream_create(&stream, stream_beside_the_default, 0);
    Address at = 0;
    (void)driver.allocate(&at, 1024);
    (void)driver.fill(at, 0, 1024, stream);
    (void)driver.stream_destroy(stream);
    (void)driver.free(at);
    (void)driver.context_pop(&context);
    (void)driver.context_release(0);
  });
  const Replayed replayed = again(text);
  ASSERT_THAT(replayed.differences, SizeIs(1));
  EXPECT_THAT(replayed.differences.front(), HasSubstr("a stream was destroyed with work in it"));
}

TEST_F(RecordedCalls, WhoAsksAgainAndAgainIsWrittenOnce) {
  int asked = 0;
  const std::string text = recorded([&](const Driver& driver) {
    Context context = nullptr;
    Stream stream = nullptr;
    Address at = 0;
    (void)driver.context_retain(&context, 0);
    (void)driver.context_push(context);
    (void)driver.stream_create(&stream, stream_beside_the_default, 0);
    (void)driver.allocate(&at, 1024);
    (void)driver.fill(at, 0, 1024, stream);
    while (driver.stream_query(stream) == not_ready) ++asked;
    (void)driver.free(at);
    (void)driver.stream_destroy(stream);
    (void)driver.context_pop(&context);
    (void)driver.context_release(0);
  });
  EXPECT_GT(asked, 5);
  EXPECT_THAT(lines_of(text), SizeIs(11)) << text;
  EXPECT_THAT(text, HasSubstr("1 cuStreamQuery 600 h2\n1 cuStreamQuery 0 h2\n"));
  EXPECT_THAT(again(text).differences, IsEmpty());
}

TEST_F(RecordedCalls, AFileHasABound) {
  const std::string text = recorded(ask_everything, {.most = 1000});
  EXPECT_GT(text.size(), 900U);
  EXPECT_LT(text.size(), 1200U);
  EXPECT_THAT(again(text).differences, IsEmpty());
  EXPECT_FALSE(Recording::make("/nowhere/calls.txt"));
}

TEST_F(RecordedCalls, TextsThatAreNoneAreRefused) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"hello\n", "line 1 of recorded calls: it has no thread, function and status"},
           {"1 cuInit 0 0\n1 cuNothing 0\n", "line 2 of recorded calls: there is no function cuNothing"},
           {"1 cuInit 0 0 0\n", "cuInit has 1 arguments"},
           {"x cuInit 0 0\n", "thread and status are numbers"},
           {"0 cuInit 0 0\n", "thread and status are numbers"}}) {
    const auto out = replay(text);
    ASSERT_FALSE(out) << text;
    EXPECT_THAT(out.error().message, HasSubstr(says));
  }
  EXPECT_EQ(again("").calls, 0U);
  EXPECT_EQ(again("1 cuInit 0 0\n1 cuMemMap 0 h1").calls, 1U) << "its last line is cut off";
  EXPECT_THAT(again("1 cuStreamQuery 0 h1\n").differences,
              ::testing::ElementsAre("line 1: cuStreamQuery uses what no recorded call gave"));
}

}  // namespace
}  // namespace carillon::engine::cuda
