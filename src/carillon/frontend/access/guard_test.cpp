#include "carillon/frontend/access/guard.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TokenBucket, ABurstAndThenTheRate) {
  TokenBucket bucket(10, 3);
  const TimePoint start{5s};
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(bucket.take(start)) << i;
  const auto wait = bucket.take(start);
  ASSERT_TRUE(wait);
  EXPECT_GE(*wait, 100ms);
  EXPECT_LE(*wait, 101ms);
  EXPECT_TRUE(bucket.take(start + 99ms));
  EXPECT_FALSE(bucket.take(start + *wait));
  EXPECT_TRUE(bucket.take(start + *wait));
  // Rest brings no more than a burst.
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(bucket.take(start + 1h)) << i;
  EXPECT_TRUE(bucket.take(start + 1h));
  // A thread that looked at the clock before another did takes nothing back.
  EXPECT_TRUE(bucket.take(start));
}

TEST(TokenBucket, WithoutARateNothingIsHeldBack) {
  TokenBucket bucket(0, 0);
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(bucket.take(TimePoint{}));
}

const std::string infer_secret = "infer-infer-infer";
const std::string admin_secret = "admin-admin-admin";
const std::string metrics_secret = "metrics-metrics-metrics";

class GuardTest : public ::testing::Test {
 protected:
  GuardTest() { write(); }
  ~GuardTest() override { std::filesystem::remove(file_); }

  void write(const std::string& more = {}, const std::string& infer = infer_secret) {
    std::ofstream(file_) << "[[key]]\nname = \"i\"\nsecret = \"" << infer << "\"\nmodels = [\"mine-*\"]\n"
                         << "rate = 2\nbytes = \"1 KiB\"\n"
                         << "[[key]]\nname = \"a\"\nsecret = \"" << admin_secret
                         << "\"\nroles = [\"admin\"]\n"
                         << "[[key]]\nname = \"m\"\nsecret = \"" << metrics_secret
                         << "\"\nroles = [\"metrics\"]\n"
                         << more;
    chmod(file_.c_str(), 0600);
  }
  std::shared_ptr<Guard> guard(const std::string& admin_at = {}) {
    auto opened = Guard::open(
        {.keys = file_, .admin_at = admin_at, .log = [this](const std::string& text) { told_ += text; }});
    EXPECT_TRUE(opened) << opened.error().message;
    return *opened;
  }
  // What comes of it: the key's name, or the kind and the words of the denial.
  static std::string ask(const Guard& guard, const std::string& secret, Need need,
                         const std::string& model = {}, TimePoint now = TimePoint{1s},
                         bool at_admin_door = false) {
    const std::string bearer = secret.empty() ? "" : "Bearer " + secret;
    return told(guard.admit({.authorization = bearer}, need, model, now, at_admin_door));
  }
  static std::string told(const Guard::Admitted& admitted) {
    if (admitted) return *admitted ? (*admitted)->key.name : "nobody";
    const char* const kinds[] = {"unknown", "forbidden", "too many"};
    return std::string(kinds[static_cast<int>(admitted.error().kind)]) + ": " + admitted.error().message;
  }

  const std::string file_ = std::filesystem::path(::testing::TempDir()) /
                            ("keys-" + std::to_string(getpid()) + "-" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml");
  std::string told_;
};

TEST_F(GuardTest, WhoMayDoWhat) {
  const auto g = guard();
  const struct {
    std::string secret;
    Need need;
    const char* want;
  } rows[] = {
      {"", Need::nothing, "nobody"},
      {"", Need::reading, "unknown"},
      {"", Need::infer, "unknown"},
      {"", Need::admin, "unknown"},
      {"", Need::metrics, "unknown"},
      {"no-such-key-at-all", Need::nothing, "nobody"},
      {"no-such-key-at-all", Need::infer, "unknown"},
      {infer_secret + "x", Need::infer, "unknown"},
      {infer_secret.substr(0, 16), Need::infer, "unknown"},
      {std::string(100'000, 'x'), Need::infer, "unknown"},
      {infer_secret, Need::reading, "i"},
      {infer_secret, Need::infer, "i"},
      {admin_secret, Need::reading, "a"},
      {admin_secret, Need::infer, "forbidden"},
      {admin_secret, Need::admin, "a"},
      {admin_secret, Need::metrics, "forbidden"},
      {metrics_secret, Need::reading, "forbidden"},
      {metrics_secret, Need::infer, "forbidden"},
      {metrics_secret, Need::admin, "forbidden"},
      {metrics_secret, Need::metrics, "m"},
      {infer_secret, Need::admin, "forbidden"},
      {infer_secret, Need::metrics, "forbidden"},
  };
  for (const auto& row : rows) {
    const std::string got = ask(*g, row.secret, row.need);
    EXPECT_EQ(got.substr(0, got.find(':')), row.want) << row.secret.substr(0, 40) << " " << int(row.need);
    if (row.secret.size() > 20) {
      EXPECT_THAT(got, Not(HasSubstr(row.secret)));
    }
  }
}

TEST_F(GuardTest, HowKeysAreSent) {
  const auto g = guard();
  const auto with = [&](Credentials credentials) {
    return told(g->admit(credentials, Need::admin, {}, TimePoint{1s}, false));
  };
  EXPECT_EQ(with({.authorization = "Bearer " + admin_secret}), "a");
  EXPECT_EQ(with({.authorization = "bEARER   " + admin_secret}), "a");
  EXPECT_EQ(with({.api_key = admin_secret}), "a");
  EXPECT_EQ(with({.authorization = "Basic abc", .api_key = admin_secret}), "a");
  EXPECT_THAT(with({.authorization = "Basic " + admin_secret}), HasSubstr("unknown"));
  EXPECT_THAT(with({.authorization = admin_secret}), HasSubstr("unknown"));
  EXPECT_THAT(with({.authorization = "Bearer "}), HasSubstr("wants a key"));
  EXPECT_THAT(with({.authorization = "Bearer    "}), HasSubstr("wants a key"));
  EXPECT_THAT(with({.authorization = "Bearer wrong", .api_key = admin_secret}), HasSubstr("does not know"));
  EXPECT_THAT(with({.authorization = "Bearer " + admin_secret, .ambiguous = true}), HasSubstr("several"));
}

TEST_F(GuardTest, ModelsThatAKeyMayNotUse) {
  const auto g = guard();
  EXPECT_EQ(ask(*g, infer_secret, Need::infer, "mine-1"), "i");
  EXPECT_THAT(ask(*g, infer_secret, Need::infer, "yours"), HasSubstr("forbidden"));
  EXPECT_EQ(ask(*g, admin_secret, Need::admin, "yours"), "a");
  const auto caller = g->admit({.api_key = infer_secret}, Need::infer, {}, TimePoint{100s}, false);
  ASSERT_TRUE(caller);
  EXPECT_FALSE(Guard::check_model(caller->get(), "mine-2"));
  EXPECT_TRUE(Guard::check_model(caller->get(), ""));
  EXPECT_TRUE(Guard::check_model(caller->get(), "yours"));
  EXPECT_FALSE(Guard::check_model(nullptr, "yours"));
}

TEST_F(GuardTest, RatesAreOfAKey) {
  const auto g = guard();
  EXPECT_EQ(ask(*g, infer_secret, Need::infer), "i");
  EXPECT_EQ(ask(*g, infer_secret, Need::infer), "i");
  const auto denied = g->admit({.api_key = infer_secret}, Need::infer, {}, TimePoint{1s}, false);
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().kind, Denial::Kind::too_many);
  EXPECT_GE(denied.error().wait, 500ms);
  EXPECT_EQ(ask(*g, admin_secret, Need::admin), "a");
  EXPECT_EQ(ask(*g, infer_secret, Need::infer, {}, TimePoint{2s}), "i");
}

TEST_F(GuardTest, WhatStaysTheSameKeepsItsStandingWhenKeysAreReadAgain) {
  const auto g = guard();
  const auto before = g->admit({.api_key = infer_secret}, Need::infer, {}, TimePoint{1s}, false);
  ASSERT_TRUE(before);
  write("[[key]]\nname = \"new\"\nsecret = \"new-new-new-new-new\"\n");
  ASSERT_TRUE(g->reload());
  EXPECT_EQ(ask(*g, "new-new-new-new-new", Need::infer), "new");
  EXPECT_EQ(ask(*g, infer_secret, Need::infer), "i");
  EXPECT_THAT(ask(*g, infer_secret, Need::infer), HasSubstr("too many"));
  write("", "another-secret-by-far");
  ASSERT_TRUE(g->reload());
  EXPECT_THAT(ask(*g, infer_secret, Need::infer), HasSubstr("does not know"));
  EXPECT_EQ(ask(*g, "another-secret-by-far", Need::infer), "i");
}

TEST_F(GuardTest, ABadFileLeavesTheKeysAsTheyWere) {
  const auto g = guard();
  write("[[key]]\n");
  const auto reloaded = g->reload();
  ASSERT_FALSE(reloaded);
  EXPECT_THAT(reloaded.error().message, HasSubstr("--keys " + file_));
  EXPECT_EQ(ask(*g, admin_secret, Need::admin), "a");
  std::filesystem::remove(file_);
  EXPECT_THAT(g->reload().error().message, HasSubstr("No such file"));
  EXPECT_EQ(ask(*g, admin_secret, Need::admin), "a");
}

TEST_F(GuardTest, FilesThatEverybodyMayReadAreToldOf) {
  (void)guard();
  EXPECT_EQ(told_, "");
  chmod(file_.c_str(), 0644);
  (void)guard();
  EXPECT_THAT(told_, HasSubstr("everybody on this machine"));
  EXPECT_FALSE(Guard::open({.keys = ::testing::TempDir()}));  // a folder
}

TEST_F(GuardTest, AdministrationAtOneDoor) {
  const auto g = guard("127.0.0.1:9");
  EXPECT_EQ(ask(*g, admin_secret, Need::admin, {}, TimePoint{1s}, true), "a");
  EXPECT_THAT(ask(*g, admin_secret, Need::admin), HasSubstr("admin port, 127.0.0.1:9"));
  EXPECT_THAT(ask(*g, "", Need::admin), HasSubstr("unknown"));
  const auto open = Guard::open({.admin_at = "127.0.0.1:9"});
  ASSERT_TRUE(open);
  EXPECT_FALSE((*open)->idle());
  EXPECT_THAT(ask(**open, "", Need::admin), HasSubstr("forbidden"));
  EXPECT_EQ(ask(**open, "", Need::admin, {}, TimePoint{1s}, true), "nobody");
  EXPECT_EQ(ask(**open, "", Need::infer, "yours"), "nobody");
}

TEST_F(GuardTest, BytesOfAKeyAreItsOwnAndEverybodys) {
  const auto g = guard();
  const auto all = std::make_shared<ByteBudget>(1 << 20, 1 << 20);
  const auto caller = *g->admit({.api_key = infer_secret}, Need::infer, {}, TimePoint{1s}, false);
  Reservation one(all, caller->bytes);
  EXPECT_TRUE(one.grow(1000));
  EXPECT_EQ(all->used(), 1000U);
  Reservation two(all, caller->bytes);
  EXPECT_FALSE(two.grow(100));
  EXPECT_TRUE(two.own_refused());
  EXPECT_EQ(all->used(), 1000U);
  EXPECT_EQ(all->refusals(), 0U);
  one.shrink_to(0);
  EXPECT_TRUE(two.grow(100));
  Reservation everything(all);
  EXPECT_TRUE(everything.grow((1 << 20) - 100));
  EXPECT_FALSE(one.grow(10));
  EXPECT_FALSE(one.own_refused());
  EXPECT_EQ(caller->bytes->used(), 100U);
}

TEST(Guard, WithoutOneEverybodyMayDoEverything) {
  const Guard guard;
  EXPECT_TRUE(guard.idle());
  for (const Need need : {Need::nothing, Need::reading, Need::infer, Need::admin, Need::metrics})
    EXPECT_TRUE(guard.admit({}, need, "m", TimePoint{}, false));
}

}  // namespace
}  // namespace carillon::frontend
