#include "carillon/base/memory_limit.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace carillon {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;

TEST(NumberIn, TakesWholeNumbersAlone) {
  EXPECT_EQ(number_in("1073741824\n"), 1073741824U);
  EXPECT_EQ(number_in("0"), 0U);
  for (const char* none : {"max\n", "", "-1\n", "12x\n", "99999999999999999999999\n"})
    EXPECT_EQ(number_in(none), std::nullopt) << none;
}

// A made-up /proc and /sys.
class MemoryLimitRoot : public ::testing::Test {
 protected:
  MemoryLimitRoot()
      : root_(fs::path(::testing::TempDir()) /
              ("carillon-limit-" + std::to_string(::getpid()) +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    write("proc/meminfo", "MemTotal:       1048576 kB\nMemFree:          10 kB\n");
  }
  ~MemoryLimitRoot() override { fs::remove_all(root_); }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  MemoryLimit limit() const {
    auto found = memory_limit(root_);
    EXPECT_TRUE(found) << found.error().message;
    return found.value_or(MemoryLimit{});
  }
  const fs::path root_;
};

TEST_F(MemoryLimitRoot, IsTheMachinesMemoryWithoutAGroup) {
  EXPECT_EQ(limit().bytes, gib(1));
  EXPECT_EQ(limit().from, "the machine's memory");
}

TEST_F(MemoryLimitRoot, IsTheSmallestOfNestedGroups) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/memory.max", "536870912\n");
  EXPECT_EQ(limit().bytes, mib(512));
  EXPECT_THAT(limit().from, EndsWith("sys/fs/cgroup/outer/memory.max"));
  write("sys/fs/cgroup/outer/inner/memory.high", "268435456\n");
  EXPECT_EQ(limit().bytes, mib(256));
  write("sys/fs/cgroup/outer/memory.max", "134217728\n");
  EXPECT_EQ(limit().bytes, mib(128));
}

TEST_F(MemoryLimitRoot, OfTheFirstVersion) {
  write("proc/self/cgroup", "5:memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit().bytes, gib(1));
  write("sys/fs/cgroup/memory/job/memory.stat", "cache 1\nhierarchical_memory_limit 805306368\n");
  EXPECT_EQ(limit().bytes, mib(768));
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(limit().bytes, mib(512));
}

TEST_F(MemoryLimitRoot, ALimitAboveTheMachinesIsNone) {
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "2147483648\n");
  EXPECT_EQ(limit().bytes, gib(1));
}

TEST_F(MemoryLimitRoot, SaysWhatIsMissing) {
  write("proc/meminfo", "");
  const auto none = memory_limit(root_);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, EndsWith("proc/meminfo has no line MemTotal"));
}

}  // namespace
}  // namespace carillon
