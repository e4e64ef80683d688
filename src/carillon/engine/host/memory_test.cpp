#include "carillon/engine/host/memory.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys.
class FakeRoot : public ::testing::Test {
 protected:
  FakeRoot() : root_(fs::path(::testing::TempDir()) / ("carillon-root-" + unique())) {
    fs::create_directories(root_);
  }
  ~FakeRoot() override { fs::remove_all(root_); }
  static std::string unique() {
    return std::to_string(::getpid()) + "-" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void write_meminfo() const {
    write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    800 kB\n");
  }
  Bytes available() const {
    const auto bytes = available_memory(root_);
    EXPECT_TRUE(bytes) << bytes.error().message;
    return bytes.value_or(Bytes{});
  }
  fs::path root_;
};

TEST_F(FakeRoot, TakesWhatTheKernelSays) {
  write_meminfo();
  EXPECT_EQ(available(), kib(800));
  write("proc/self/cgroup", "0::/none/such\n");
  EXPECT_EQ(available(), kib(800));
}

TEST_F(FakeRoot, HeedsTheTightestGroupAboveIt) {
  write_meminfo();
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "1024\n");
  write("sys/fs/cgroup/outer/memory.max", "409600\n");
  write("sys/fs/cgroup/outer/memory.current", "204800\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 102400\ninactive_file 102400\n");
  EXPECT_EQ(available(), kib(300));  // the file pages can be dropped
}

TEST_F(FakeRoot, FilesThatNobodyMapsCanBeDropped) {
  write_meminfo();
  write("proc/self/cgroup", "0::/outer\n");
  write("sys/fs/cgroup/outer/memory.max", "409600\n");
  write("sys/fs/cgroup/outer/memory.current", "307200\n");
  write("sys/fs/cgroup/outer/memory.stat", "inactive_file 51200\nactive_file 153600\nfile_mapped 102400\n");
  EXPECT_EQ(available(), kib(200));
  write("sys/fs/cgroup/outer/memory.stat", "inactive_file 51200\nactive_file 51200\nfile_mapped 102400\n");
  EXPECT_EQ(available(), kib(150)) << "what is on the inactive list can be dropped at any rate";
}

TEST_F(FakeRoot, FilesThatNobodyMapsCanBeDroppedInTheFirstVersionOfGroups) {
  write_meminfo();
  write("proc/self/cgroup", "5:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "409600\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "307200\n");
  write("sys/fs/cgroup/memory/job/memory.stat",
        "active_file 0\ntotal_inactive_file 51200\ntotal_active_file 153600\ntotal_mapped_file 102400\n");
  EXPECT_EQ(available(), kib(200));
}

TEST_F(FakeRoot, KnowsTheFirstVersionOfGroups) {
  write_meminfo();
  write("proc/self/cgroup", "7:cpu,cpuacct:/x\n5:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "204800\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "307200\n");
  EXPECT_EQ(available(), Bytes{0});  // above its limit already
}

TEST_F(FakeRoot, SaysWhatIsMissing) {
  const auto bytes = available_memory(root_);
  ASSERT_FALSE(bytes);
  EXPECT_NE(bytes.error().message.find("MemAvailable"), std::string::npos);
}

TEST_F(FakeRoot, ReadsTheSelectedSetting) {
  write("a", "always [madvise] never\n");
  EXPECT_EQ(selected(root_ / "a"), "madvise");
  EXPECT_EQ(selected(root_ / "b"), "");
}

TEST(Arena, IsThereAndZero) {
  std::vector<std::string> notes;
  auto arena = Arena::take({100}, "test", notes);
  ASSERT_TRUE(arena);
  EXPECT_EQ(arena->size().count % 4096, 0U);
  for (std::uint64_t i = 0; i < arena->size().count; ++i) ASSERT_EQ(arena->data()[i], std::byte{0});
}

TEST(Arena, ThatCannotBeHadIsAnError) {
  std::vector<std::string> notes;
  const auto arena = Arena::take(gib(1ULL << 24), "the workspace", notes);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(arena.error().message.find("the workspace"), std::string::npos);
}

}  // namespace
}  // namespace carillon::engine
