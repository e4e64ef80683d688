#include "carillon/cluster/coordinator/member.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cluster {
namespace {

using ::testing::HasSubstr;

const Member worker{.id = "host-1",
                    .role = Role::worker,
                    .address = "[::1]:8100",
                    .incarnation = std::numeric_limits<std::uint64_t>::max(),
                    .keys = {"0123456789abcdef", "fedcba9876543210"}};

TEST(StoredMember, IsReadAsItWasWritten) {
  for (const Role role : {Role::frontend, Role::scheduler, Role::worker}) {
    Member member = worker;
    member.role = role;
    const auto read = member_of(to_json(member));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, member);
  }
}

TEST(StoredMember, OfAnEarlierVersionHasNoKeys) {
  Member member = worker;
  member.keys.clear();
  EXPECT_EQ(member_of(to_json(member)).value(), member);
}

TEST(StoredMember, TellsWhatItSpeaks) {
  Member member = worker;
  member.protocols = Protocols{3, 4};
  member.build = "0.3.0";
  EXPECT_EQ(member_of(to_json(member)).value(), member);
  EXPECT_THAT(to_json(member), HasSubstr(R"("protocol":4,"oldest_protocol":3)"));
  // Earlier builds tell their one version alone.
  member.protocols = Protocols{1, 1};
  member.build.clear();
  EXPECT_EQ(member_of(to_json(member)).value(), member);
  EXPECT_EQ(to_json(member).find("oldest_protocol"), std::string::npos);
}

TEST(StoredMember, MayHaveFieldsOfLaterVersions) {
  std::string text = to_json(worker);
  text.insert(1, R"("zone":{"rack":4},)");
  const auto read = member_of(text);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, worker);
}

TEST(StoredMember, IsNotTrusted) {
  const struct {
    std::string from, to, why;
  } rows[] = {
      {R"("id":"host-1")", R"("id":"../x")", "id"},
      {R"("id":"host-1")", R"("id":7)", "id"},
      {R"("id":"host-1",)", "", "has no \"id\""},
      {R"("role":"worker")", R"("role":"king")", "frontend, scheduler or worker"},
      {R"([::1]:8100)", "[::1]", "has no port"},
      {R"(18446744073709551615)", "18446744073709551616", "64 bits"},
      {R"(18446744073709551615)", "-1", "64 bits"},
      {R"("protocol":1)", R"("protocol":0)", "protocol"},
      {R"("protocol":1)", R"("protocol":1.5)", "protocol"},
      {R"("protocol":1)", R"("protocol":1,"protocol":1)", "twice"},
      {R"("protocol":1)", R"("protocol":2,"oldest_protocol":3)", "oldest_protocol"},
      {R"("protocol":1)", R"("protocol":2,"oldest_protocol":0)", "oldest_protocol"},
      {R"("protocol":1)", R"("protocol":2,"oldest_protocol":"1")", "oldest_protocol"},
      {R"("protocol":1)", R"("protocol":1,"build":7)", "build"},
      {R"("protocol":1)", R"("protocol":1,"build":"\u001b[1m")", "build"},
      {R"("0123456789abcdef")", R"("0123456789ABCDEF")", "16 hexadecimal digits"},
      {R"("0123456789abcdef")", "7", "16 hexadecimal digits"},
      {R"(["0123456789abcdef",)", R"(["0123456789abcdef","0123456789abcdef",)", "at most 2"},
      {R"("]})", R"("])", "not a JSON document"},
      {R"({)", "[", "not a JSON document"},
      {R"("protocol":1)", R"("protocol":1,"x":")" + std::string(1024, 'x') + "\"", "at most 1024"},
      {R"("protocol":1)", R"("protocol":1,"x":[[[[[]]]]])", "deep"},
  };
  for (const auto& [from, to, why] : rows) {
    std::string text = to_json(worker);
    const auto place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    const auto read = member_of(text);
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().message, HasSubstr(why)) << text;
  }
  EXPECT_FALSE(member_of(""));
  EXPECT_FALSE(member_of("null"));
  EXPECT_FALSE(member_of(std::string("\0\xff", 2)));
}

TEST(StoredEpoch, IsReadAsItWasWritten) {
  const Epoch epoch{.number = 7, .leader = "a", .nonce = std::numeric_limits<std::uint64_t>::max()};
  const auto read = epoch_of(to_json(epoch));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, epoch);
  Epoch keyed = epoch;
  keyed.key = "0123456789abcdef";
  EXPECT_EQ(epoch_of(to_json(keyed)).value(), keyed);
  for (const char* text :
       {"", "7", "{}", R"({"epoch":-1,"leader":"a","nonce":1})", R"({"epoch":1,"leader":"","nonce":1})",
        R"({"epoch":1,"leader":"a"})", R"({"epoch":1,"leader":"a","nonce":1,"key":"x"})"})
    EXPECT_FALSE(epoch_of(text)) << text;
}

}  // namespace
}  // namespace carillon::cluster
