#include "carillon/base/resident_memory.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace carillon {
namespace {

namespace fs = std::filesystem;

TEST(ResidentMemory, IsOfThisProcess) {
  EXPECT_GT(resident_memory(::getpid()), mib(1));
  EXPECT_GE(resident_of_tree(::getpid()), mib(1));
  EXPECT_EQ(resident_memory(-1), Bytes{});
}

TEST(ResidentMemory, SumsATree) {
  const fs::path root = fs::path(::testing::TempDir()) / ("carillon-tree-" + std::to_string(::getpid()));
  const auto process = [&](int number, const std::string& name, int parent, int pages) {
    const fs::path folder = root / "proc" / std::to_string(number);
    fs::create_directories(folder);
    std::ofstream(folder / "stat") << number << " (" << name << ") S " << parent << " 1 1\n";
    std::ofstream(folder / "statm") << "1000 " << pages << " 1 1 0 1 0\n";
  };
  process(1, "init", 0, 1);
  process(10, "carillon", 1, 2);
  process(11, "a ) S 99 name", 10, 4);
  process(12, "grandchild", 11, 8);
  process(13, "another's", 1, 16);
  fs::create_directories(root / "proc" / "self");
  const Bytes page{static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))};
  EXPECT_EQ(resident_of_tree(10, root), page * 14);
  EXPECT_EQ(resident_of_tree(12, root), page * 8);
  EXPECT_EQ(resident_of_tree(1, root), page * 31);
  EXPECT_EQ(resident_of_tree(77, root), Bytes{});
  fs::remove_all(root);
}

}  // namespace
}  // namespace carillon
