#include "carillon/share/broker.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/base/random.h"
#include "carillon/share/background.h"
#include "carillon/share/process.h"
#include "carillon/share/testing/child.h"
#include "carillon/share/testing/fake_job.h"

// The broker over real sockets, with processes that speak as jobs do. Jobs that are to be evicted are processes of their
// own: eviction is by signal. Nothing is timed; what does not come at all fails after ten seconds.
namespace carillon::share {
namespace {

using testing::Child;
using testing::FakeJob;
using testing::Gate;
using testing::Packet;

class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/carillon-share-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

BrokerOptions small(const std::string& socket, const std::string& policy = "fair", Bytes capacity = mib(64)) {
  BrokerOptions options;
  options.socket = socket;
  options.policy = policy;
  options.jobs.capacity = capacity;
  options.jobs.quantum = 1ms;
  return options;
}

// A broker on a thread of its own.
class Running {
 public:
  explicit Running(BrokerOptions options) {
    options.log = [this](const Note& note) {
      const std::lock_guard lock(mutex_);
      log_ += std::string(note.event) + ": " + note.text + "\n";
    };
    auto started = Broker::start(std::move(options), clock_);
    if (!started) {
      ADD_FAILURE() << started.error().message;
      std::abort();
    }
    broker_ = std::move(*started);
    thread_ = std::thread([this] { broker_->run(); });
  }
  ~Running() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    broker_->stop();
    thread_.join();
    broker_.reset();
  }
  Overview overview() {
    auto seen = broker_->overview(10s);
    EXPECT_TRUE(seen.has_value());
    return seen.value_or(Overview{});
  }
  // Looks until `holds` does.
  bool comes(const std::function<bool(const Overview&)>& holds) {
    for (const TimePoint until = clock_.now() + 10s; clock_.now() < until;) {
      if (holds(overview())) return true;
      usleep(200);
    }
    return false;
  }
  std::string log() {
    overview();  // what was done is written by now
    const std::lock_guard lock(mutex_);
    return log_;
  }
  Broker& operator*() { return *broker_; }
  Broker* operator->() { return broker_.get(); }

 private:
  SteadyClock clock_;
  std::unique_ptr<Broker> broker_;
  std::thread thread_;
  std::mutex mutex_;
  std::string log_;
};

std::uint64_t evicted(const Overview& seen, device::JobReason reason) {
  return seen.totals.evicted[static_cast<std::size_t>(reason)];
}

// Of more than half of the memory, so that no two have a lane of their own.
FakeJob job(const std::string& socket, const std::string& name, std::uint64_t ephemeral = 40 << 20) {
  FakeJob made(socket);
  made.ephemeral = ephemeral;
  EXPECT_EQ(made.greet(name).kind(), Kind::welcome);
  return made;
}

TEST(Broker, TwoJobsHaveOneLaneInTurns) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  FakeJob a = job(folder.at("s"), "a"), b = job(folder.at("s"), "b");
  a.ready();
  ASSERT_TRUE(a.enter());
  b.ready();
  a.memory()[0] = 'a';
  for (int turn = 0; turn < 20; ++turn) {
    FakeJob& in = turn % 2 == 0 ? a : b;
    FakeJob& next = turn % 2 == 0 ? b : a;
    while (in.lease() == Lease::run) {
      usleep(500);
      in.count(500'000);
    }
    EXPECT_EQ(next.lease(), Lease::hold);
    in.stop();
    ASSERT_TRUE(next.enter());
    EXPECT_EQ(next.memory()[0], in.memory()[0]);  // the same memory
    next.memory()[0] = static_cast<char>('A' + turn);
  }
  const Overview seen = broker.overview();
  EXPECT_EQ(seen.jobs.size(), 2U);
  EXPECT_EQ(seen.lanes.size(), 1U);
  EXPECT_GE(seen.totals.hand_over.count(), 10U);  // on a busy machine not every one is heard of in time
  EXPECT_EQ(evicted(seen, device::JobReason::bad_report), 0U);
}

// While the broker listens a job need send nothing. Where the test is not let run in time it hears by packets.
TEST(Broker, AJobThatIsExpectedIsHeardByItsPage) {
  const Folder folder;
  BrokerOptions options = small(folder.at("s"));
  options.jobs.quantum = 20ms;
  Running broker(options);
  FakeJob a = job(folder.at("s"), "a"), b = job(folder.at("s"), "b");
  a.ready();
  ASSERT_TRUE(a.enter());
  b.ready();
  int by_page = 0;
  for (int turn = 0; turn < 100 && by_page == 0; ++turn) {
    FakeJob& in = turn % 2 == 0 ? a : b;
    FakeJob& next = turn % 2 == 0 ? b : a;
    while (in.lease() == Lease::run) {
      usleep(3000);
      in.count(3'000'000);
    }
    for (int i = 0; i < 100'000 && in.page()->listens == 0; ++i) {}
    in.page()->inside = 0;
    ++in.page()->stops;
    if (in.page()->listens != 0) {
      ++by_page;
    } else {
      auto packet = packet_of<Stopped>(Kind::stopped);
      packet.stops = in.page()->stops;
      packet.iterations = in.iterations;
      packet.busy_ns = in.busy_ns;
      in.send(packet);
    }
    ASSERT_TRUE(next.enter());
  }
  EXPECT_EQ(by_page, 1);
  EXPECT_EQ(evicted(broker.overview(), device::JobReason::bad_report), 0U);
}

// Runs until it is told to stop by a signal; status 7 where it was evicted.
int endless(const std::string& socket, const std::string& name, const Gate& inside, bool heeds_recall) {
  FakeJob made(socket);
  made.ephemeral = 40 << 20;
  if (made.greet(name).kind() != Kind::welcome) return 1;
  made.ready();
  if (!made.enter()) return 2;
  inside.open();
  for (;;) {
    if (heeds_recall && made.lease() == Lease::hold) {
      made.stop();
      if (made.wait_while(Lease::hold) != Lease::run) break;
    }
    if (made.lease() == Lease::look) break;
    usleep(300);
    if (heeds_recall) made.count(300'000);
  }
  return made.receive().kind() == Kind::evicted ? 7 : 3;
}

TEST(Broker, AJobThatIsKilledInAnIterationFreesItsLane) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  Gate inside;
  Child child([&] { return endless(folder.at("s"), "a", inside, true); });
  inside.pass();
  FakeJob b = job(folder.at("s"), "b");
  child.signal(SIGKILL);
  b.ready();
  EXPECT_TRUE(b.enter());
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  EXPECT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.size() == 1; }));
}

TEST(Broker, AJobThatHangsIsFrozenAndNamed) {
  const Folder folder;
  auto options = small(folder.at("s"));
  options.jobs.hang_after = 20ms;
  Running broker(options);
  Gate inside;
  Child child([&] { return endless(folder.at("s"), "stuck", inside, false); });
  inside.pass();
  FakeJob b = job(folder.at("s"), "b", 10 << 20);
  b.ready();
  EXPECT_TRUE(broker.comes([](const Overview& seen) {
    return !seen.jobs.empty() && seen.jobs[0].view.hanging && seen.jobs[0].view.frozen;
  }));
  EXPECT_NE(broker.log().find("hangs: job 1 (stuck, pid " + std::to_string(child.pid())), std::string::npos) << broker.log();
  while (process_state(static_cast<std::uint32_t>(child.pid())) != 'T') usleep(100);
  child.signal(SIGKILL);
  EXPECT_TRUE(b.enter());
}

TEST(Broker, AJobThatHangsIsEvictedWhereThatIsWanted) {
  const Folder folder;
  auto options = small(folder.at("s"));
  options.jobs.hang_after = 20ms;
  options.jobs.evict_hanging = true;
  Running broker(options);
  Gate inside, never;
  Child child([&] {
    FakeJob made(folder.at("s"));
    made.ephemeral = 40 << 20;
    made.greet("stuck");
    made.ready();
    made.enter();
    inside.open();
    never.pass();
    return 0;
  });
  inside.pass();
  FakeJob b = job(folder.at("s"), "b");
  b.ready();
  EXPECT_TRUE(b.enter());
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  EXPECT_EQ(evicted(broker.overview(), device::JobReason::hangs), 1U);
}

TEST(Broker, WhoTakesTenTimesWhatItSaidIsEvictedAlone) {
  const Folder folder;
  Running broker(small(folder.at("s"), "pack"));
  Gate inside, go;
  Child child([&] {
    FakeJob made(folder.at("s"));
    made.ephemeral = 10 << 20;
    made.greet("greedy");
    made.ready();
    if (!made.enter()) return 1;
    inside.open();
    go.pass();
    auto ask = packet_of<Ask>(Kind::ask);
    ask.persistent = 1 << 20;
    ask.ephemeral = 100 << 20;
    made.send(ask);
    const auto answer = made.receive();
    return answer.kind() == Kind::evicted && answer.as<Refused>().fits_ephemeral > 0 ? 7 : 2;
  });
  inside.pass();
  FakeJob b = job(folder.at("s"), "b", 10 << 20);
  b.ready();
  EXPECT_TRUE(b.enter());
  go.open();
  EXPECT_EQ(child.wait(), 7);
  EXPECT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.size() == 1; }));
  EXPECT_EQ(b.lease(), Lease::run);
}

TEST(Broker, ALaneGrowsUnderWhoAsks) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  FakeJob a = job(folder.at("s"), "a", 1 << 20);
  a.ready();
  ASSERT_TRUE(a.enter());
  a.memory()[77] = 'x';
  const auto number = a.lane.lane;
  auto ask = packet_of<Ask>(Kind::ask);
  ask.persistent = 1 << 20;
  ask.ephemeral = 30 << 20;
  a.send(ask);
  EXPECT_EQ(a.receive().kind(), Kind::lane);
  EXPECT_EQ(a.lane.size, 30U << 20);
  EXPECT_EQ(a.lane.lane, number);
  EXPECT_EQ(a.memory()[77], 'x');
  a.memory()[(30 << 20) - 1] = 'y';  // it is there
}

TEST(Broker, AHeldJobThatIsKilledIsGone) {
  const Folder folder;
  Running broker(small(folder.at("s"), "fifo"));
  FakeJob a = job(folder.at("s"), "a");
  a.ready();
  ASSERT_TRUE(a.enter());
  Gate held;
  Child child([&] {
    FakeJob made(folder.at("s"));
    made.ephemeral = 40 << 20;
    made.greet("held");
    made.ready();
    held.open();
    return made.enter() ? 1 : 2;
  });
  held.pass();
  EXPECT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.size() == 2; }));
  child.signal(SIGKILL);
  EXPECT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.size() == 1; }));
  EXPECT_EQ(a.lease(), Lease::run);
}

TEST(Broker, JobsWaitForAnotherBrokerAndAttachAgain) {
  const Folder folder;
  FakeJob a, b;
  {
    Running broker(small(folder.at("s")));
    ASSERT_TRUE(a.connect(folder.at("s")));
    ASSERT_EQ(a.greet("a").kind(), Kind::welcome);
    a.ready();
    ASSERT_TRUE(a.enter());
    a.count(5'000'000);
    broker.end();
  }
  EXPECT_EQ(a.lease(), Lease::look);
  Packet last = a.receive();
  EXPECT_EQ(last.kind(), Kind::ending);
  EXPECT_EQ(last.as<Ending>().alone, 0U);
  EXPECT_TRUE(a.receive().bytes.empty());
  EXPECT_FALSE(std::filesystem::exists(folder.at("s")));

  Running broker(small(folder.at("s")));
  FakeJob again(folder.at("s"));
  again.iterations = a.iterations;
  again.busy_ns = a.busy_ns;
  auto hello = again.greeting("a");
  hello.again = 1;
  again.send(hello);
  ASSERT_EQ(again.receive().kind(), Kind::welcome);
  EXPECT_EQ(again.page()->iterations, 1U);
  again.ready();
  EXPECT_TRUE(again.enter());
  const Overview seen = broker.overview();
  ASSERT_EQ(seen.jobs.size(), 1U);
  EXPECT_EQ(seen.jobs[0].view.iterations, 1U);
  EXPECT_GE(seen.jobs[0].view.attained, 5ms);
}

TEST(Broker, ABrokerThatIsKilledLeavesASocketThatTheNextReplaces) {
  const Folder folder;
  Gate listens;
  Child broker([&] {
    const SteadyClock clock;
    auto started = Broker::start(small(folder.at("s")), clock);
    listens.open();
    if (started) (*started)->run();
    return 1;
  });
  listens.pass();
  FakeJob a = job(folder.at("s"), "a");
  a.ready();
  ASSERT_TRUE(a.enter());
  broker.signal(SIGKILL);
  broker.wait();
  EXPECT_TRUE(a.receive().bytes.empty());  // hung up, without a word
  EXPECT_TRUE(std::filesystem::exists(folder.at("s")));
  Running next(small(folder.at("s")));
  EXPECT_EQ(FakeJob(folder.at("s")).greet("b").kind(), Kind::welcome);
}

TEST(Broker, JobsGoOnAloneWhereThatIsWanted) {
  const Folder folder;
  auto options = small(folder.at("s"));
  options.release_at_end = true;
  Running broker(options);
  FakeJob a = job(folder.at("s"), "a");
  broker.end();
  EXPECT_EQ(a.receive().as<Ending>().alone, 1U);
}

TEST(Broker, ClientsOfAnotherVersionAreToldSo) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  FakeJob a(folder.at("s"));
  auto hello = a.greeting("old");
  hello.header.version = 1;
  a.send(hello);
  const Packet answer = a.receive();
  EXPECT_EQ(answer.kind(), Kind::refused);
  EXPECT_NE(std::string(answer.as<Refused>().why).find("version 1"), std::string::npos);
}

TEST(Broker, JobsOfAnotherUserAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Folder folder;
  Running broker(small(folder.at("s")));
  const auto as_nobody = [&] {
    return Child([&] {
      if (setuid(65534) != 0) return 1;
      FakeJob made;
      if (!made.connect(folder.at("s"))) return 2;
      const Packet answer = made.greet("stranger");
      return answer.kind() == Kind::refused ? 3 : 4;
    }).wait();
  };
  EXPECT_EQ(as_nobody(), 2);  // the socket is the user's own
  chmod(folder.path().c_str(), 0755);
  chmod(folder.at("s").c_str(), 0666);
  EXPECT_EQ(as_nobody(), 3);
  broker.end();
  auto options = small(folder.at("s"));
  options.any_user = true;
  Running open(options);
  EXPECT_EQ(as_nobody(), 4);
}

TEST(Broker, AForgedPageCostsItsJobAlone) {
  const Folder folder;
  Running broker(small(folder.at("s"), "pack"));
  FakeJob b = job(folder.at("s"), "b", 10 << 20);
  b.ready();
  ASSERT_TRUE(b.enter());
  Random random(3);
  for (int round = 0; round < 8; ++round) {
    const std::uint64_t forged[] = {random.bits(), random.bits(), random.bits(), random.bits()};
    Child child([&] {
      FakeJob made(folder.at("s"));
      made.ephemeral = 5 << 20;
      if (made.greet("forger").kind() != Kind::welcome) return 1;
      made.ready();
      if (!made.enter()) return 2;
      ControlPage& page = *made.page();
      page.magic = page.version = 0;
      page.persistent = forged[0];
      page.ephemeral = forged[1];
      page.busy_ns = forged[2];
      page.iterations = forged[3] | 1ULL << 60;
      while (made.lease() == Lease::run || made.lease() == Lease::hold) {
        --page.iterations;
        usleep(1000);
      }
      return made.receive().kind() == Kind::evicted ? 7 : 3;
    });
    EXPECT_EQ(child.wait(), 7);
  }
  EXPECT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.size() == 1; }));
  EXPECT_EQ(b.lease(), Lease::run);
}

TEST(Broker, ASecondHelloEvicts) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  Child child([&] {
    FakeJob made(folder.at("s"));
    made.greet("twice");
    return made.greet("twice").kind() == Kind::evicted ? 7 : 1;
  });
  EXPECT_EQ(child.wait(), 7);
}

TEST(Broker, BadPacketsEndTheirConnectionAlone) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  FakeJob b = job(folder.at("s"), "b");
  b.ready();
  ASSERT_TRUE(b.enter());
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    FakeJob noisy(folder.at("s"));
    std::vector<std::byte> packet(1 + random.below(round % 10 == 0 ? 60'000 : 300));
    for (std::byte& byte : packet) byte = static_cast<std::byte>(random.below(256));
    noisy.send_bytes(packet);
    const Packet answer = noisy.receive();
    EXPECT_EQ(answer.kind(), Kind::refused);
  }
  EXPECT_EQ(b.lease(), Lease::run);
  EXPECT_EQ(broker.overview().totals.bad_packets, 300U);
}

TEST(Broker, WhatIsAtThePath) {
  const Folder folder;
  const SteadyClock clock;
  const auto error = [&](const std::string& path) {
    auto started = Broker::start(small(path), clock);
    return started ? std::string() : started.error().message;
  };
  {
    Running broker(small(folder.at("s")));
    EXPECT_NE(error(folder.at("s")).find("another broker"), std::string::npos);
  }
  std::ofstream(folder.at("file")) << "mine";
  EXPECT_NE(error(folder.at("file")).find("no socket"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder.at("file")));
  EXPECT_NE(error("/tmp/" + std::string(200, 'x')).find("107"), std::string::npos);
  EXPECT_NE(error("").find("empty"), std::string::npos);
  EXPECT_NE(error(folder.at("a/b/c")).find("folder"), std::string::npos);
  EXPECT_EQ(error(folder.at("made/s")), "");  // its folder is made
}

TEST(Broker, MemoryThatIsTooSmall) {
  const Folder folder;
  const SteadyClock clock;
  EXPECT_FALSE(Broker::start(small(folder.at("s"), "fair", Bytes{}), clock));
  EXPECT_FALSE(Broker::start(small(folder.at("s"), "none"), clock));
  Running broker(small(folder.at("s")));
  FakeJob large(folder.at("s"));
  large.ephemeral = 100 << 20;
  const Packet answer = large.greet("large");
  ASSERT_EQ(answer.kind(), Kind::welcome);
  const auto refused = large.receive().as<Refused>();
  EXPECT_EQ(refused.header.kind, Kind::refused);
  EXPECT_GT(refused.fits_ephemeral, 0U);
  EXPECT_LE(refused.fits_ephemeral, 64U << 20);
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{}));
}

std::size_t resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::strtoull(line.c_str() + 6, nullptr, 10);
  return 0;
}

TEST(Broker, TenThousandJobsOneAfterTheOtherLeaveNothing) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  const auto some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      FakeJob made(folder.at("s"));
      ASSERT_EQ(made.greet("short").kind(), Kind::welcome);
      made.ready();
      ASSERT_TRUE(made.enter());
      made.count(1000);
      Header bye;
      bye.kind = Kind::bye;
      bye.bytes = sizeof bye;
      made.send(bye);
    }
  };
  some(1000);
  ASSERT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.empty(); }));
  const std::size_t descriptors = open_descriptors();
  [[maybe_unused]] const std::size_t memory = resident_kib();
  some(9000);
  ASSERT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.empty() && seen.lanes.empty(); }));
  EXPECT_EQ(open_descriptors(), descriptors);
#if !defined(CARILLON_SANITIZED)  // which keeps what was freed
  EXPECT_LT(resident_kib(), memory + 4096);  // the log of the test has grown
#endif
  EXPECT_EQ(broker.overview().totals.came, 10'000U);
}

TEST(Broker, AThousandAtOnceAndNoMore) {
  const Folder folder;
  auto options = small(folder.at("s"), "fair", gib(4));
  options.most_clients = 1000;
  Running broker(options);
  if (broker->most_clients() < 1000) GTEST_SKIP() << "the system allows too few descriptors";
  std::vector<FakeJob> jobs;
  for (int i = 0; i < 1000; ++i) {
    jobs.emplace_back(folder.at("s"));
    ASSERT_EQ(jobs.back().greet("one of many").kind(), Kind::welcome) << i;
  }
  FakeJob one_more(folder.at("s"));
  EXPECT_NE(std::string(one_more.receive().as<Refused>().why).find("1000 clients"), std::string::npos);
  EXPECT_EQ(broker.overview().jobs.size(), 1000U);
  jobs.pop_back();
  EXPECT_TRUE(broker.comes([](const Overview& seen) { return seen.jobs.size() == 999; }));
  // Longer than what a socket takes at once.
  const auto listed = ask_for_list(folder.at("s"), 10s);
  ASSERT_TRUE(listed) << listed.error().message;
  EXPECT_GT(listed->size(), 250'000U);
  EXPECT_EQ(listed->back(), '}');
}

TEST(Broker, WhoeverGoesBeforeAllJobsStopsThemAndTheirWorkers) {
  const Folder folder;
  Running broker(small(folder.at("s")));
  Gate inside;
  Child child([&] {
    if (fork() == 0) {
      for (;;) pause();
    }
    return endless(folder.at("s"), "a", inside, true);
  });
  inside.pass();
  const auto pid = static_cast<std::uint32_t>(child.pid());
  const auto workers = children_of(pid);
  ASSERT_EQ(workers.size(), 1U);
  broker->want_device();
  ASSERT_TRUE(broker.comes([](const Overview& seen) { return seen.device_wanted; }));
  while (process_state(pid) != 'T' || process_state(workers[0]) != 'T') usleep(100);
  broker->free_device(TimePoint::max());
  while (process_state(pid) == 'T' || process_state(workers[0]) == 'T') usleep(100);
  EXPECT_EQ(broker.overview().totals.freezes, 1U);
  kill(static_cast<pid_t>(workers[0]), SIGKILL);
}

// A device that is another's: jobs come in, at the lowest priority, and run while it is lent.
TEST(Broker, ADeviceThatIsLentIsTakenBackAtOnce) {
  const Folder folder;
  BrokerOptions options = small(folder.at("s"));
  options.lent_after = Duration{0};
  Running broker(options);
  Gate inside;
  Child child([&] { return endless(folder.at("s"), "a", inside, true); });
  const auto pid = static_cast<std::uint32_t>(child.pid());
  ASSERT_TRUE(broker.comes([](const Overview& seen) {
    return seen.jobs.size() == 1 && seen.jobs[0].view.state == device::JobState::waiting;
  }));
  EXPECT_EQ(broker.overview().totals.grants, 0U) << "nobody has said that the device is free";
  EXPECT_TRUE(broker.overview().device_wanted);
  EXPECT_EQ(sched_getscheduler(child.pid()), SCHED_IDLE);
  broker->leisure(TimePoint::max());
  inside.pass();
  for (std::uint64_t turn = 1; turn <= 3; ++turn) {
    broker->leisure(std::nullopt);
    while (process_state(pid) != 'T') usleep(100);
    EXPECT_EQ(broker.overview().totals.freezes, turn);
    broker->leisure(TimePoint::max());
    while (process_state(pid) == 'T') usleep(100);
  }
  EXPECT_EQ(broker.overview().totals.grants, 1U);
  broker->stop();
  broker.end();
  EXPECT_EQ(sched_getscheduler(child.pid()), SCHED_OTHER) << "the device is nobody's before it any more";
}

TEST(Broker, ChangesThePriorityOfAllThreadsAndDescendants) {
  Gate made, over;
  Child child([&] {
    if (fork() == 0) {
      std::thread waits([&] { over.pass(); });
      made.open();
      waits.join();
      _exit(0);
    }
    over.pass();
    return 0;
  });
  made.pass();
  const auto pid = static_cast<std::uint32_t>(child.pid());
  const auto policies = [&] {
    std::vector<int> out{sched_getscheduler(child.pid())};
    for (const std::uint32_t worker : children_of(pid))
      for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(worker) + "/task"))
        out.push_back(sched_getscheduler(std::stoi(thread.path().filename())));
    return out;
  };
  EXPECT_GE(policies().size(), 3U) << "a sanitizer has threads of its own";
  EXPECT_TRUE(set_background(pid, true));
  EXPECT_THAT(policies(), ::testing::Each(SCHED_IDLE));
  EXPECT_TRUE(set_background(pid, false));
  EXPECT_THAT(policies(), ::testing::Each(SCHED_OTHER));
  EXPECT_FALSE(set_background(1U << 30, true)) << "nobody has that number";
  over.open();
  over.open();
}

TEST(Broker, WhoAsksForAListHasIt) {
  const Folder folder;
  EXPECT_NE(ask_for_list(folder.at("s"), 1s).error().message.find("no broker listens"), std::string::npos);
  Running broker(small(folder.at("s")));
  FakeJob a = job(folder.at("s"), "a\"b");
  const auto listed = ask_for_list(folder.at("s"), 10s);
  ASSERT_TRUE(listed);
  EXPECT_NE(listed->find("a\\\"b"), std::string::npos) << *listed;
  const std::string metrics = metrics_text(broker.overview());
  EXPECT_NE(metrics.find("carillon_share_jobs{state=\"starting\"} 1"), std::string::npos) << metrics;
}

TEST(Broker, WhereItIs) {
  const auto path = [](const char* socket, const char* runtime) {
    return default_socket(
        [&](const char* name) { return std::string_view(name) == "CARILLON_SOCKET" ? socket : runtime; }, 42);
  };
  EXPECT_EQ(path("/x/y", "/run/user/42"), "/x/y");
  EXPECT_EQ(path(nullptr, "/run/user/42"), "/run/user/42/carillon/share.sock");
  EXPECT_EQ(path("", nullptr), "/tmp/carillon-42/share.sock");
}

}  // namespace
}  // namespace carillon::share
