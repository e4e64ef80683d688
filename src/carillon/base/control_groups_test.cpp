#include "carillon/base/control_groups.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<ControlGroup> memory_groups(std::string_view cgroup, std::string_view mountinfo) {
  return control_groups(cgroup, mountinfo, "memory");
}
std::vector<ControlGroup> quota_groups(std::string_view cgroup, std::string_view mountinfo) {
  return control_groups(cgroup, mountinfo, "cpu");
}

constexpr const char* unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
constexpr const char* v1_mounts =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/mem rw,relatime shared:5 - cgroup cgroup rw,memory\n";

TEST(ControlGroups, AreTheProcessesOwnAndAllAboveIt) {
  EXPECT_THAT(memory_groups("0::/a/b\n", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"),
              ElementsAre(ControlGroup{"/sys/fs/cgroup/a/b", true}, ControlGroup{"/sys/fs/cgroup/a", true},
                          ControlGroup{"/sys/fs/cgroup", true}));
}

TEST(ControlGroups, AreWhereTheyAreMounted) {
  EXPECT_THAT(
      memory_groups("7:cpu,cpuacct:/x\n5:memory:/job\n", v1_mounts),
      ElementsAre(ControlGroup{"/sys/fs/cgroup/mem/job", false}, ControlGroup{"/sys/fs/cgroup/mem", false}));
}

TEST(ControlGroups, OfAContainerThatSeesItsOwnAsTheRoot) {
  const char* const mounts = "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  EXPECT_THAT(memory_groups("5:memory:/docker/1f\n", mounts),
              ElementsAre(ControlGroup{"/sys/fs/cgroup/memory", false}));
  EXPECT_THAT(memory_groups("5:memory:/docker/1f/in\n", mounts),
              ElementsAre(ControlGroup{"/sys/fs/cgroup/memory/in", false},
                          ControlGroup{"/sys/fs/cgroup/memory", false}));
  // Another's group is not to be taken for its own.
  EXPECT_THAT(memory_groups("5:memory:/docker/1f2\n", mounts),
              ElementsAre(ControlGroup{"/sys/fs/cgroup/memory", false}));
}

TEST(ControlGroups, OfANamespaceThatWasLeftStayInTheMount) {
  EXPECT_THAT(memory_groups("0::/../../x\n", ""), ElementsAre(ControlGroup{"/sys/fs/cgroup", true}));
}

TEST(ControlGroups, NoneWhereNothingIsSaid) {
  EXPECT_THAT(memory_groups("", ""), IsEmpty());
  EXPECT_THAT(memory_groups("nonsense\n3:cpu:/a\n::\n", v1_mounts),
              ElementsAre(ControlGroup{"/sys/fs/cgroup", true}));
}

TEST(ControlGroups, AreThoseAboveTheProcessToo) {
  const std::vector<ControlGroup> want{
      {"/sys/fs/cgroup/a/b", true}, {"/sys/fs/cgroup/a", true}, {"/sys/fs/cgroup", true}};
  EXPECT_EQ(quota_groups("0::/a/b\n", unified), want);
  EXPECT_EQ(quota_groups("0::/\n", unified), (std::vector<ControlGroup>{{"/sys/fs/cgroup", true}}));
}

TEST(ControlGroups, OfTheFirstVersionStandWhereTheirControllerIsMounted) {
  const std::string mounts =
      "31 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
      "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  const std::vector<ControlGroup> want{{"/sys/fs/cgroup/cpu,cpuacct/job", false},
                                       {"/sys/fs/cgroup/cpu,cpuacct", false},
                                       {"/sys/fs/cgroup/unified", true}};
  EXPECT_EQ(quota_groups("9:cpuset:/job\n4:cpu,cpuacct:/job\n0::/\n", mounts), want);
}

// A container that shares the host's namespace of groups sees its own group as the top.
TEST(ControlGroups, StandBelowWhatIsShown) {
  const std::string mount = "32 23 0:28 /docker/c1 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
  EXPECT_EQ(quota_groups("4:cpu:/docker/c1/x\n", mount),
            (std::vector<ControlGroup>{{"/sys/fs/cgroup/cpu/x", false}, {"/sys/fs/cgroup/cpu", false}}));
  for (const char* other : {"4:cpu:/docker/c1\n", "4:cpu:/docker/c2/x\n", "4:cpu:/../..\n", "4:cpu:\n"})
    EXPECT_EQ(quota_groups(other, mount), (std::vector<ControlGroup>{{"/sys/fs/cgroup/cpu", false}}))
        << other;
}

TEST(ControlGroups, OddTextsAreNone) {
  for (const char* odd : {"", "\n", "0", "0:", "a:b"})
    EXPECT_TRUE(quota_groups(odd, "garbage\n1 2 3\n- - -\n").empty()) << odd;
  EXPECT_EQ(quota_groups("0::/a", "1 2 3 / /with\\040space rw - cgroup2 c rw").back().folder, "/with space");
}

}  // namespace
}  // namespace carillon
