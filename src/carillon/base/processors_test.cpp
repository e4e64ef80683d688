#include "carillon/base/processors.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace carillon {
namespace {

namespace fs = std::filesystem;

TEST(Quota, OfTheSecondVersion) {
  EXPECT_EQ(quota_of("50000 100000\n"), 0.5);
  EXPECT_EQ(quota_of("250000 100000\n"), 2.5);
  for (const char* none : {"max 100000\n", "", "max", "100000", "0 100000", "100000 0", "-1 100000", "1 x",
                           "99999999999999999999 100000", "9000000000000000000 1"})
    EXPECT_EQ(quota_of(none), std::nullopt) << none;
}

TEST(Quota, OfTheFirstVersion) {
  EXPECT_EQ(quota_of("150000\n", "100000\n"), 1.5);
  EXPECT_EQ(quota_of("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(quota_of("", ""), std::nullopt);
}

TEST(Limits, AreTheLesserOfTheSetAndTheQuotaRoundedUp) {
  struct Case {
    int allowed;
    std::optional<double> quota;
    int usable;
  };
  for (const auto& [allowed, quota, usable] :
       {Case{8, std::nullopt, 8}, Case{8, 0.1, 1}, Case{8, 1.0, 1}, Case{8, 1.01, 2}, Case{8, 7.5, 8},
        Case{2, 64.0, 2}, Case{1, std::nullopt, 1}}) {
    const ProcessorLimits limits{.allowed = allowed, .quota = quota, .quota_file = {}};
    EXPECT_EQ(limits.usable(), usable) << allowed << " " << quota.value_or(-1);
  }
}

TEST(Limits, SayWhy) {
  EXPECT_EQ(to_text({.allowed = 1, .quota = {}, .quota_file = {}}),
            "1 processor may be used (the process may run on 1)");
  EXPECT_EQ(to_text({.allowed = 8, .quota = 1.5, .quota_file = "/x/cpu.max"}),
            "2 processors may be used (a quota of 1.5 in /x/cpu.max; the process may run on 8)");
}

constexpr const char* unified_mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

class FakeGroups : public ::testing::Test {
 protected:
  FakeGroups() : root_(fs::path(::testing::TempDir()) / "carillon_processors") { fs::remove_all(root_); }
  ~FakeGroups() override { fs::remove_all(root_); }
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(FakeGroups, TheTightestQuotaCounts) {
  write("proc/self/mountinfo", unified_mount);
  write("proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(processor_limits(root_, 8), (ProcessorLimits{.allowed = 8, .quota = {}, .quota_file = {}}));
  write("sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
  EXPECT_EQ(processor_limits(root_, 8).usable(), 3);
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  const ProcessorLimits limits = processor_limits(root_, 8);
  EXPECT_EQ(limits.quota, 1.5);
  EXPECT_EQ(limits.usable(), 2);
  EXPECT_EQ(limits.quota_file, (root_ / "sys/fs/cgroup/a/cpu.max").string());
  write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(processor_limits(root_, 8).usable(), 3);
}

TEST_F(FakeGroups, BothVersionsAreHeeded) {
  write("proc/self/mountinfo",
        std::string(unified_mount) + "32 23 0:28 / /cg/cpu rw - cgroup cgroup rw,cpu\n");
  write("proc/self/cgroup", "4:cpu:/job\n0::/\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  write("cg/cpu/job/cpu.cfs_quota_us", "50000\n");
  write("cg/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processor_limits(root_, 8).quota, 0.5);
  EXPECT_EQ(processor_limits(root_, 8).usable(), 1);
}

TEST_F(FakeGroups, NoFilesAreNoQuota) {
  EXPECT_EQ(processor_limits(root_, 3).usable(), 3);
}

TEST(Processors, SayWhetherTheNumberIsAnother) {
  UsableProcessors processors({.allowed = 8, .quota = 2.5, .quota_file = {}});
  EXPECT_EQ(processors.now(), 3);
  EXPECT_FALSE(processors.set({.allowed = 8, .quota = 2.9, .quota_file = {}}));
  EXPECT_TRUE(processors.set({.allowed = 2, .quota = 2.9, .quota_file = {}}));
  EXPECT_EQ(processors.now(), 2);
}

TEST(Processors, ThoseThatOthersKeepBusyAreNotFree) {
  UsableProcessors processors({.allowed = 4, .quota = {}, .quota_file = {}});
  EXPECT_EQ(processors.free(), 4);
  processors.set({.allowed = 4, .quota = {}, .quota_file = {}}, 1.5);
  EXPECT_EQ(processors.free(), 2.5);
  processors.set({.allowed = 2, .quota = {}, .quota_file = {}}, 3);
  EXPECT_EQ(processors.free(), 0);
}

TEST(IdleTime, IsThatOfTheProcessorsThatAreAskedFor) {
  const std::string text =
      "cpu  40 0 40 900 60 0 0 0 0 0\ncpu0 10 0 10 300 20 0 0 7 0 0\ncpu1 10 0 10 200 0 0 0 0 0 0\n"
      "cpu12 20 0 20 400 40 0 0 0 0 0\nintr 7 8 9\n";
  const Duration tick = Duration{std::chrono::seconds{1}} / sysconf(_SC_CLK_TCK);
  EXPECT_EQ(idle_time(text, {0, 12}), 760 * tick);
  EXPECT_EQ(idle_time(text, {1}), 200 * tick);
  EXPECT_EQ(idle_time("cpu0 1 0 1 100000000000 0\n", {0}), (100'000'000'000 / sysconf(_SC_CLK_TCK)) * 1s)
      << "128 processors for months";
  EXPECT_FALSE(idle_time(text, {0, 2})) << "there is no processor 2";
  EXPECT_FALSE(idle_time("", {0}));
  EXPECT_FALSE(idle_time("cpu0 10 0 x 300 20\n", {0}));
  EXPECT_FALSE(idle_time("cpu0 10 0 1\n", {0})) << "cut off";
  EXPECT_FALSE(idle_time("cpu0 10 0 1 -5 0\n", {0}));
}

TEST(Processors, OthersTakeWhatIsNeitherIdleNorOurs) {
  using Times = OthersUse::Times;
  const std::vector<int> both{0, 5};
  OthersUse others;
  EXPECT_EQ(others.look(Times{.wall = 10s, .idle = 70s, .own = 3s, .processors = both}), 0)
      << "the first look has nothing to go by";
  // Of two processors' 4 s a quarter was idle, and 1.5 s were ours.
  EXPECT_DOUBLE_EQ(others.look(Times{.wall = 12s, .idle = 71s, .own = 4500ms, .processors = both}), 0.75);
  EXPECT_EQ(others.look(Times{.wall = 13s, .idle = 73s, .own = 4500ms, .processors = both}), 0) << "all idle";
  EXPECT_EQ(others.look(Times{.wall = 14s, .idle = 73s, .own = 4500ms, .processors = both}), 2)
      << "all theirs";
  EXPECT_EQ(others.look(Times{.wall = 15s, .idle = 73s, .own = 6500ms, .processors = both}), 0) << "all ours";
  // Ticks are coarse: it may look like more than there is, or less than nothing.
  EXPECT_EQ(others.look(Times{.wall = 16s, .idle = 75010ms, .own = 6520ms, .processors = both}), 0);
  EXPECT_EQ(others.look(Times{.wall = 17s, .idle = 75s, .own = 6520ms, .processors = both}), 2);
  // Others' idle time, or none at all, is not comparable.
  EXPECT_EQ(others.look(Times{.wall = 18s, .idle = 9s, .own = 6520ms, .processors = {0}}), 0);
  EXPECT_EQ(others.look(Times{.wall = 19s, .idle = 9500ms, .own = 6520ms, .processors = {0}}), 0.5);
  EXPECT_EQ(others.look(Times{.wall = 20s, .idle = {}, .own = 6520ms, .processors = {0}}), 0);
  EXPECT_EQ(others.look(Times{.wall = 21s, .idle = 9500ms, .own = 6520ms, .processors = {0}}), 0);
  EXPECT_EQ(others.look(Times{.wall = 22s, .idle = 9750ms, .own = 6520ms, .processors = {0}}), 0.75);
}

TEST(Processors, OthersOfThisMachineTakeBetweenNoneAndAll) {
  const std::vector<int> allowed = allowed_processors();
  ASSERT_FALSE(allowed.empty());
  EXPECT_TRUE(std::ranges::is_sorted(allowed));
  EXPECT_EQ(static_cast<int>(allowed.size()), processor_limits().allowed);
  OthersUse others;
  EXPECT_EQ(others.look(allowed), 0) << "the first look has nothing to go by";
  const double taken = others.look(allowed);
  EXPECT_GE(taken, 0);
  EXPECT_LE(taken, static_cast<double>(allowed.size()));
}

TEST(Processors, OfThisMachineAreAtLeastOne) {
  EXPECT_GE(usable_processors(), 1);
  UsableProcessors processors;
  EXPECT_EQ(processors.now(), processors.limits().usable());
  processors.look();
  EXPECT_EQ(processors.now(), processors.limits().usable());
}

}  // namespace
}  // namespace carillon
