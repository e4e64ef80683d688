#include "carillon/share/process.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <new>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "carillon/share/testing/child.h"

namespace carillon::share {
namespace {

using testing::Child;
using testing::Gate;

bool stands(pid_t pid) {
  return process_state(static_cast<std::uint32_t>(pid)) == 'T';
}

// A signal is there soon, not at once.
bool comes_to(bool wanted, pid_t pid) {
  for (int i = 0; i < 1'000'000 && stands(pid) != wanted; ++i) sched_yield();
  return stands(pid) == wanted;
}

TEST(Process, AProcessStopsWithAllThatDescendFromIt) {
  Gate there;
  int grandchildren[2]{-1, -1};
  ASSERT_EQ(pipe(grandchildren), 0);
  Child child([&] {
    for (int i = 0; i < 3; ++i) {
      const pid_t made = fork();
      if (made == 0) {
        for (;;) pause();
      }
      [[maybe_unused]] const auto written = write(grandchildren[1], &made, sizeof made);
    }
    there.open();
    for (;;) pause();
    return 0;
  });
  there.pass();
  pid_t below[3]{};
  ASSERT_EQ(read(grandchildren[0], below, sizeof below), static_cast<ssize_t>(sizeof below));
  // The user has stopped one of them.
  kill(below[1], SIGSTOP);
  ASSERT_TRUE(comes_to(true, below[1]));

  const auto pid = static_cast<std::uint32_t>(child.pid());
  const Descriptor process = open_process(pid);
  StoppedTree tree;
  tree.stop(pid, process);
  EXPECT_EQ(tree.size(), 3U);
  EXPECT_TRUE(comes_to(true, child.pid()));
  for (const pid_t each : below) EXPECT_TRUE(comes_to(true, each));
  tree.go_on();
  EXPECT_TRUE(comes_to(false, child.pid()));
  EXPECT_TRUE(comes_to(false, below[0]));
  EXPECT_TRUE(comes_to(false, below[2]));
  EXPECT_TRUE(stands(below[1]));
  for (const pid_t each : below) kill(each, SIGKILL);
  close(grandchildren[0]);
  close(grandchildren[1]);
}

// A process that makes others all the time, which count: once the tree is stopped, nothing of it counts.
TEST(Process, WhatIsMadeJustThenIsStoppedToo) {
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& counted = *new (shared) std::atomic<std::uint64_t>{0};
  Child child([&] {
    for (;;) {
      const pid_t made = fork();
      if (made == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < 2000; ++i) ++counted;
        _exit(0);
      }
      ++counted;
      if (counted.load() % 3 == 0) waitpid(made, nullptr, 0);
      while (waitpid(-1, nullptr, WNOHANG) > 0) {}
    }
    return 0;
  });
  const auto pid = static_cast<std::uint32_t>(child.pid());
  const Descriptor process = open_process(pid);
  StoppedTree tree;
  for (int turn = 0; turn < 100; ++turn) {
    const std::uint64_t before = counted;
    while (counted < before + 5000) sched_yield();
    tree.stop(pid, process);
    const auto still = [](std::uint32_t each) {
      const char state = process_state(each);
      return state == 'T' || state == 'Z' || state == '\0';
    };
    for (bool all = false; !all;) {
      all = still(pid);
      for (const std::uint32_t each : children_of(pid)) all = all && still(each);
    }
    const std::uint64_t then = counted;
    usleep(500);
    ASSERT_EQ(counted, then) << "turn " << turn;
    tree.go_on();
  }
  munmap(shared, 4096);
}

TEST(Process, WhoLeavesTheTreeIsStoppedNoMore) {
  int made[2]{-1, -1};
  ASSERT_EQ(pipe(made), 0);
  Gate leave;
  Child child([&] {
    const pid_t between = fork();
    if (between == 0) {
      const pid_t below = fork();
      if (below == 0) {
        for (;;) pause();
      }
      [[maybe_unused]] const auto written = write(made[1], &below, sizeof below);
      leave.pass();
      _exit(0);  // what it made is another's child from then on
    }
    waitpid(between, nullptr, 0);
    for (;;) pause();
    return 0;
  });
  pid_t below = 0;
  ASSERT_EQ(read(made[0], &below, sizeof below), static_cast<ssize_t>(sizeof below));
  const auto pid = static_cast<std::uint32_t>(child.pid());
  const Descriptor process = open_process(pid);
  StoppedTree tree;
  tree.stop(pid, process);
  EXPECT_EQ(tree.size(), 3U);
  EXPECT_TRUE(comes_to(true, below));
  tree.go_on();
  leave.open();
  for (int i = 0; i < 1'000'000 && !children_of(pid).empty(); ++i) sched_yield();
  tree.stop(pid, process);
  EXPECT_EQ(tree.size(), 1U);
  EXPECT_TRUE(comes_to(true, child.pid()));
  EXPECT_TRUE(comes_to(false, below));
  kill(below, SIGKILL);
  close(made[0]);
  close(made[1]);
}

TEST(Process, NobodyIsStoppedInPlaceOfOneThatIsGone) {
  Child child([] { return 0; });
  const auto pid = static_cast<std::uint32_t>(child.pid());
  const Descriptor process = open_process(pid);
  child.wait();
  send_signal(process, SIGKILL);  // to nobody
  EXPECT_EQ(process_state(pid), '\0');
  EXPECT_TRUE(children_of(pid).empty());
  EXPECT_FALSE(shares_file(pid, "/"));
}

TEST(Process, FilesThatAreMappedAndShared) {
  const auto self = static_cast<std::uint32_t>(getpid());
  const auto shares = [&] { return shares_file(self, "/memfd:carillon-process-test"); };
  const Descriptor file(memfd_create("carillon-process-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.number(), 4096), 0);
  const auto map = [&](int flags) { return mmap(nullptr, 4096, PROT_READ | PROT_WRITE, flags, file.number(), 0); };
  EXPECT_FALSE(shares());
  void* const copy = map(MAP_PRIVATE);
  ASSERT_NE(copy, MAP_FAILED);
  EXPECT_FALSE(shares()) << "others do not see what is written into a private mapping";
  void* const common = map(MAP_SHARED);
  ASSERT_NE(common, MAP_FAILED);
  EXPECT_TRUE(shares());
  munmap(common, 4096);
  EXPECT_FALSE(shares());
  munmap(copy, 4096);
}

}  // namespace
}  // namespace carillon::share
