#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "carillon/cli/load/run.h"

namespace carillon::cli {
namespace {

TEST(ParseAddress, TakesBothProtocolsAndDefaults) {
  EXPECT_EQ(parse_address("http://127.0.0.1:9000")->port, "9000");
  EXPECT_EQ(parse_address("grpc://host")->port, "8001");
  EXPECT_EQ(parse_address("host:1")->protocol, Protocol::http);
  EXPECT_EQ(parse_address("http://[::1]:8000/")->host, "::1");
  EXPECT_EQ(parse_address("http://[::1]:8000/")->authority(), "[::1]:8000");
  EXPECT_FALSE(parse_address("http://a:1")->tls);
  EXPECT_TRUE(parse_address("https://a:1")->tls);
  EXPECT_TRUE(parse_address("grpcs://a")->tls);
  EXPECT_EQ(parse_address("grpcs://a")->protocol, Protocol::grpc);
  EXPECT_EQ(parse_address("grpcs://a")->port, "8001");
  for (const char* wrong :
       {"", "ftp://a:1", "http://a:0", "http://a:70000", "http://a:b", "http://a/b:80", "http://:80"})
    EXPECT_FALSE(parse_address(wrong).has_value()) << wrong;
}

TEST(MakeData, HasTheSizeOfItsType) {
  EXPECT_EQ(make_data("FP32", 3, 1)->size(), 12U);
  EXPECT_EQ(make_data("INT64", 3, 1)->size(), 24U);
  EXPECT_EQ(make_data("BOOL", 3, 1)->size(), 3U);
  EXPECT_EQ(*make_data("FP32", 8, 5), *make_data("FP32", 8, 5));
  EXPECT_FALSE(make_data("COMPLEX", 1, 1).has_value());
}

// Elements of a length in four bytes and so many bytes, as the protocol has them; the same for the same seed.
TEST(MakeData, MakesWordsForTexts) {
  const auto words = make_data("BYTES", 200, 7);
  ASSERT_TRUE(words);
  std::size_t at = 0, elements = 0;
  std::set<std::string> distinct;
  while (at < words->size()) {
    std::uint32_t length = 0;
    ASSERT_LE(at + 4, words->size());
    std::memcpy(&length, words->data() + at, 4);
    ASSERT_GE(length, 1U);
    ASSERT_LE(length, 12U);
    ASSERT_LE(at + 4 + length, words->size());
    const std::string word(reinterpret_cast<const char*>(words->data()) + at + 4, length);
    EXPECT_EQ(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), std::string::npos);
    distinct.insert(word);
    at += 4 + length;
    ++elements;
  }
  EXPECT_EQ(elements, 200U);
  EXPECT_GT(distinct.size(), 100U);
  EXPECT_EQ(*words, *make_data("BYTES", 200, 7));
  EXPECT_NE(*words, *make_data("BYTES", 200, 8));
  EXPECT_TRUE(make_data("BYTES", 0, 7)->empty());
}

// Answers at once from a thread of its own; every fifth is refused, every seventh fails.
class FakeClient final : public Client {
 public:
  ~FakeClient() override {
    for (auto& thread : threads_) thread.join();
  }
  Result<Metadata> metadata(const std::string&) override { return Metadata{}; }
  void send(const Template&, Duration timeout, std::function<void(Reply)> on_reply) override {
    const std::scoped_lock lock(mutex_);
    timeouts.push_back(timeout);
    const std::size_t n = ++sent_;
    threads_.emplace_back([on_reply = std::move(on_reply), n] {
      if (n % 5 == 0)
        on_reply({Reply::Kind::refused, {}});
      else if (n % 7 == 0)
        on_reply({Reply::Kind::error, "number " + std::to_string(n)});
      else
        on_reply({Reply::Kind::result, {}});
    });
  }
  std::vector<Duration> timeouts;

 private:
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::size_t sent_ = 0;
};

RunOptions short_run() {
  RunOptions options;
  options.duration = 50ms;
  options.drain = 60s;
  options.seed = 4;
  return options;
}

TEST(RunLoad, EveryPlannedRequestIsSentOnceAndAnsweredOnce) {
  std::vector<Stream> streams(2);
  streams[0].whats.resize(1);
  streams[0].arrivals = *workload::parse_arrivals("uniform");
  streams[0].rate = 1000;
  streams[0].deadline = 1h;
  streams[1] = streams[0];
  streams[1].arrivals = *workload::parse_arrivals("poisson");
  streams[1].deadline = 0ms;
  FakeClient client;
  const RunResult run = run_load(client, streams, short_run(), [](const Progress&) { return true; });
  Summary all;
  all.deadline = 1h;
  for (const Answered& answer : run.answers) {
    EXPECT_GE(answer.sent, answer.planned);
    EXPECT_GE(answer.answered, answer.sent);
    EXPECT_LT(answer.planned, 50ms);
    all.add(answer);
  }
  EXPECT_EQ(all.sent, client.timeouts.size());
  EXPECT_GE(all.sent, 50U);
  EXPECT_EQ(all.unanswered + all.late, 0U);
  EXPECT_EQ(all.refused, all.sent / 5);
  EXPECT_EQ(all.refused_in_time, all.refused);
  EXPECT_EQ(all.failed, all.sent / 7 - all.sent / 35);
  EXPECT_EQ(all.on_time, all.sent - all.refused - all.failed);
  EXPECT_EQ(run.first_errors[0].empty() && run.first_errors[1].empty(), false);
}

TEST(RunLoad, ClosedLoopsKeepTheirNumberInFlight) {
  std::vector<Stream> streams(1);
  streams[0].whats.resize(1);
  streams[0].arrivals = *workload::parse_arrivals("closed:3");
  FakeClient client;
  const RunResult run = run_load(client, streams, short_run(), [](const Progress&) { return true; });
  EXPECT_GE(run.answers.size(), 3U);
  for (const Answered& answer : run.answers) EXPECT_NE(answer.outcome, Outcome::unanswered);
}

TEST(RunLoad, StopsWhenToldTo) {
  std::vector<Stream> streams(1);
  streams[0].whats.resize(1);
  streams[0].arrivals = *workload::parse_arrivals("uniform");
  streams[0].rate = 10;
  RunOptions options = short_run();
  options.duration = 1h;
  FakeClient client;
  EXPECT_TRUE(run_load(client, streams, options, [](const Progress&) { return false; }).interrupted);
}

}  // namespace
}  // namespace carillon::cli
