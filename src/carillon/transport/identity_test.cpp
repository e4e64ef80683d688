#include "carillon/transport/identity.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::transport {
namespace {

using cluster::Role;
using ::testing::HasSubstr;

TEST(IdentityOfACertificate, IsItsOneUri) {
  const struct {
    const char* uri;
    Identity want;
  } rows[] = {
      {"carillon://box/worker/w1", {"box", Role::worker, "w1"}},
      {"carillon://my.box-2/frontend/*", {"my.box-2", Role::frontend, "*"}},
      {"carillon://box/scheduler/s_1", {"box", Role::scheduler, "s_1"}},
      {"carillon://box/admin/anna", {"box", std::nullopt, "anna"}},
  };
  for (const auto& [uri, want] : rows) {
    const std::vector<std::string> uris{"spiffe://else/where", uri};
    const auto got = identity_among(uris);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, want);
    EXPECT_EQ(to_text(*got), uri);
  }
}

TEST(IdentityOfACertificate, ThatIsWrongIsNamed) {
  const struct {
    std::vector<std::string> uris;
    const char* why;
  } rows[] = {
      {{}, "has no URI carillon://CLUSTER/ROLE/ID"},
      {{"https://box/worker/w1"}, "has no URI"},
      {{"carillon://box/worker/w1", "carillon://box/worker/w2"}, "has 2 URIs carillon://"},
      {{"carillon://"}, "too few parts"},
      {{"carillon://box/worker"}, "'carillon://box/worker' has too few parts"},
      {{"carillon:///worker/w1"}, "no name of a cluster"},
      {{"carillon://*/worker/w1"}, "no name of a cluster"},
      {{"carillon://box/worker/"}, "an id that is neither"},
      {{"carillon://box/worker/w1/more"}, "an id that is neither"},
      {{"carillon://box/worker/w*"}, "an id that is neither"},
      {{std::string("carillon://box/worker/w1\0", 25)}, "an id that is neither"},
      {{"carillon://box/king/w1"}, "a role other than"},
      {{"carillon://box//w1"}, "a role other than"},
  };
  for (const auto& [uris, why] : rows) {
    const auto got = identity_among(uris);
    ASSERT_FALSE(got) << why;
    EXPECT_EQ(got.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(got.error().message, HasSubstr(why));
  }
}

TEST(IdentityOfACertificate, IsThatOfItsMemberAlone) {
  const Identity one{"box", Role::worker, "w1"}, any{"box", Role::worker, "*"},
      admin{"box", std::nullopt, "w1"};
  EXPECT_TRUE(check_member(one, "box", Role::worker, "w1"));
  EXPECT_TRUE(check_member(any, "box", Role::worker, "w7"));
  EXPECT_FALSE(check_member(one, "box", Role::worker, "w2"));
  EXPECT_FALSE(check_member(one, "box", Role::worker, "*"));
  EXPECT_FALSE(check_member(any, "box", Role::frontend, "w1"));
  EXPECT_FALSE(check_member(any, "other", Role::worker, "w1"));
  EXPECT_FALSE(check_member(admin, "box", Role::worker, "w1"));
  EXPECT_TRUE(check_role(one, "box", Role::worker));
  EXPECT_FALSE(check_role(one, "box", Role::scheduler));
  EXPECT_FALSE(check_role(one, "other", Role::worker));
  EXPECT_FALSE(check_role(admin, "box", Role::worker));
  EXPECT_EQ(check_member(one, "box", Role::worker, "w2").error().message,
            "the certificate is that of carillon://box/worker/w1, and not of carillon://box/worker/w2");
}

}  // namespace
}  // namespace carillon::transport
