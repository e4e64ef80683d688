#include "carillon/controller/gates/directory.h"

#include <gtest/gtest.h>

namespace carillon::controller {
namespace {

ModelView view(std::string name, std::int64_t version, bool ready) {
  ModelView out;
  out.name = std::move(name);
  out.version = version;
  out.ready = ready;
  return out;
}

class DirectoryTest : public testing::Test {
 protected:
  DirectoryTest() {
    directory.put(view("vgg", 1, true));
    directory.put(view("bert", 10, false));
    directory.put(view("bert", 9, true));
    directory.put(view("bert", 2, true));
    directory.put(view("broken", 1, false));
  }
  Directory directory;
};

TEST_F(DirectoryTest, ListsInOrderOfNameAndVersion) {
  std::string order;
  for (const ModelView& each : directory.all()) order += each.name + ":" + std::to_string(each.version) + " ";
  EXPECT_EQ(order, "bert:2 bert:9 bert:10 broken:1 vgg:1 ");
}

TEST_F(DirectoryTest, FindsTheNewestReadyVersionWhereNoneIsAskedFor) {
  EXPECT_EQ(directory.find("bert", "").value()->version, 9);
  EXPECT_EQ(directory.find("bert", "10").value()->version, 10);
  EXPECT_FALSE(directory.find("broken", "").value()->ready);
}

TEST_F(DirectoryTest, CountsWhatIsReadyAndWhatIsBroken) {
  EXPECT_EQ(directory.counts().ready, 3U);
  EXPECT_EQ(directory.counts().broken, 2U);
  EXPECT_EQ(directory.counts().a_broken_one, "bert");
  auto elsewhere = view("elsewhere", 1, false);
  elsewhere.left_out = true;
  directory.put(elsewhere);
  EXPECT_EQ(directory.counts().broken, 2U) << "it was left out on purpose";
}

TEST_F(DirectoryTest, NothingIsReadyWhileItIsClosed) {
  directory.close("wait");
  const auto closed = directory.find("bert", "").value();
  EXPECT_EQ(closed->version, 9);
  EXPECT_FALSE(closed->ready);
  EXPECT_EQ(closed->reason, "wait");
  for (const ModelView& each : directory.all()) EXPECT_FALSE(each.ready) << each.name;
  EXPECT_NE(directory.find("broken", "1").value()->reason, "wait") << "it has a reason of its own";
  directory.open();
  EXPECT_TRUE(directory.find("bert", "9").value()->ready);
  EXPECT_FALSE(closed->ready) << "a view that was given out stays as it is";
}

TEST_F(DirectoryTest, WhatIsNotUsableForNowIsGivenOutAsNotReady) {
  Result<> state;
  ModelView passing = view("bert", 9, true);
  passing.usable = [&state] { return state; };
  directory.put(passing);
  EXPECT_TRUE(directory.find("bert", "9").value()->ready);
  state = fail(ErrorCode::unavailable, "it is started again");
  const auto given = directory.find("bert", "9").value();
  EXPECT_FALSE(given->ready);
  EXPECT_EQ(given->reason, "it is started again");
  EXPECT_EQ(directory.state("bert", 9).error().message, "it is started again");
  EXPECT_EQ(directory.find("bert", "").value()->version, 2) << "the newest that is ready";
  for (const ModelView& each : directory.all()) EXPECT_TRUE(each.version != 9 || !each.ready);
  EXPECT_EQ(directory.counts().ready, 3U) << "it passes, and the server is as ready as before";
  state = {};
  EXPECT_TRUE(directory.find("bert", "9").value()->ready);
}

TEST_F(DirectoryTest, PutReplaces) {
  directory.put(view("bert", 10, true));
  EXPECT_EQ(directory.all().size(), 5U);
  EXPECT_EQ(directory.find("bert", "").value()->version, 10);
}

TEST_F(DirectoryTest, ErrorsSayWhatThereIs) {
  const struct {
    const char* model;
    const char* version;
    ErrorCode code;
    const char* text;
  } rows[] = {
      {"resnet", "", ErrorCode::not_found,
       "model 'resnet' is not in the repository; there is: bert, broken, vgg"},
      {"ber", "", ErrorCode::not_found, "model 'ber' is not in the repository; there is: bert, broken, vgg"},
      {"", "", ErrorCode::not_found, "model '' is not in the repository; there is: bert, broken, vgg"},
      {"bert", "3", ErrorCode::not_found, "model 'bert' has no version 3; there is: 2, 9, 10"},
      {"bert", "two", ErrorCode::invalid_argument, "version 'two' of model 'bert' is not a positive integer"},
      {"bert", "-1", ErrorCode::invalid_argument, "version '-1' of model 'bert' is not a positive integer"},
      {"bert", "99999999999999999999", ErrorCode::invalid_argument,
       "version '99999999999999999999' of model 'bert' is not a positive integer"},
  };
  for (const auto& row : rows) {
    const auto found = directory.find(row.model, row.version);
    ASSERT_FALSE(found.has_value()) << row.model << " " << row.version;
    EXPECT_EQ(found.error().code, row.code);
    EXPECT_EQ(found.error().message, row.text);
  }
}

}  // namespace
}  // namespace carillon::controller
