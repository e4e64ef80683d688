#include "carillon/server/store.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "carillon/base/testing/folder.h"

namespace carillon::server {
namespace {

namespace fs = std::filesystem;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"XDG_CACHE_HOME", "HOME"})
      if (const char* value = std::getenv(name)) before_.emplace_back(name, value);
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Result<std::shared_ptr<engine::WeightFiles>> open(const StoreArguments& arguments) {
    return open_store(arguments, [this](const std::string& text) { warned_ += text; });
  }

  carillon::testing::Folder directory_;
  std::string warned_;

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

TEST_F(StoreTest, LiesWhereTheUsersCachesLie) {
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(usual_store(), "/x/carillon");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(usual_store(), "/h/.cache/carillon");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(usual_store(), "/h/.cache/carillon");
}

TEST_F(StoreTest, IsMadeWhereItIsWanted) {
  const fs::path path = directory_.path() / "store";
  const auto files = open({.directory = path, .limit = "5MiB"});
  ASSERT_TRUE(files.has_value() && *files != nullptr);
  EXPECT_EQ((*files)->directory(), path / "weights");
  EXPECT_EQ((*files)->limit(), mib(5));
  const auto none = open({.directory = path, .none = true});
  EXPECT_TRUE(none.has_value() && *none == nullptr);
  EXPECT_EQ(warned_, "");
}

TEST_F(StoreTest, HasHalfOfTheDiskWhereNobodySaysHowMuch) {
  const fs::path path = directory_.path() / "not" / "yet";
  const std::uint64_t free = fs::space(directory_.path()).available;
  const auto files = open({.directory = path});
  ASSERT_TRUE(files.has_value() && *files != nullptr);
  EXPECT_NEAR(static_cast<double>((*files)->limit().count), static_cast<double>(free) / 2,
              static_cast<double>(free) / 20);
}

TEST_F(StoreTest, ARelativeNameIsOneFromHere) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_.path());
  const auto files = open({.directory = "a/b"});
  fs::current_path(before);
  ASSERT_TRUE(files.has_value() && *files != nullptr);
  EXPECT_EQ((*files)->directory(), directory_.path() / "a" / "b" / "weights");
  EXPECT_GT((*files)->limit().count, 0U);
}

TEST_F(StoreTest, ServesWithoutWhereThereCanBeNone) {
  std::ofstream(directory_.path() / "file") << "x";
  setenv("XDG_CACHE_HOME", (directory_.path() / "file").c_str(), 1);
  const auto files = open({});
  EXPECT_TRUE(files.has_value() && *files == nullptr);
  EXPECT_NE(warned_.find("there is no store for packed weights, which stay in memory"), std::string::npos);
}

TEST_F(StoreTest, RefusesWhatIsWrong) {
  std::ofstream(directory_.path() / "file") << "x";
  fs::create_directories(directory_.path() / "open" / "weights");
  fs::permissions(directory_.path() / "open" / "weights", fs::perms::all);
  const auto others = open({.directory = directory_.path() / "open"});
  ASSERT_FALSE(others.has_value());
  EXPECT_NE(others.error().message.find("--store"), std::string::npos) << others.error().message;
  const auto limit = open({.directory = directory_.path() / "a", .limit = "much"});
  ASSERT_FALSE(limit.has_value());
  EXPECT_NE(limit.error().message.find("--store-limit"), std::string::npos) << limit.error().message;
}

}  // namespace
}  // namespace carillon::server
