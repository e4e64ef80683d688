#include "carillon/cluster/coordinator/address.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoordinatorAddress, IsEtcdOrAFile) {
  const auto three = parse_coordinator_address("etcd://a:2379,10.0.0.2:1,[fe80::1%eth0]:65535/my.box_1-x");
  ASSERT_TRUE(three) << three.error().message;
  EXPECT_FALSE(three->tls);
  EXPECT_THAT(three->endpoints, ElementsAre("a:2379", "10.0.0.2:1", "[fe80::1%eth0]:65535"));
  EXPECT_EQ(three->name, "my.box_1-x");
  const auto safe = parse_coordinator_address("etcds://[::1]:2379/box");
  ASSERT_TRUE(safe) << safe.error().message;
  EXPECT_TRUE(safe->tls);
  EXPECT_THAT(safe->endpoints, ElementsAre("[::1]:2379"));
  const auto file = parse_coordinator_address("static:a folder/box.toml");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->file, "a folder/box.toml");
  EXPECT_TRUE(file->endpoints.empty());
}

TEST(CoordinatorAddress, IsKubernetes) {
  const auto pod = parse_coordinator_address("kubernetes://serving/box");
  ASSERT_TRUE(pod) << pod.error().message;
  EXPECT_FALSE(pod->is_static());
  EXPECT_EQ(pod->name, "box");
  EXPECT_EQ(pod->kubernetes->name_space, "serving");
  EXPECT_EQ(pod->kubernetes->server, "");
  const auto outside = parse_coordinator_address(
      "kubernetes://serving/box?token=a folder/token&server=https://[::1]:6443&ca=ca.crt");
  ASSERT_TRUE(outside) << outside.error().message;
  EXPECT_TRUE(outside->kubernetes->tls);
  EXPECT_EQ(outside->kubernetes->server, "[::1]:6443");
  EXPECT_EQ(outside->kubernetes->token, "a folder/token");
  EXPECT_EQ(outside->kubernetes->ca, "ca.crt");
  EXPECT_FALSE(parse_coordinator_address("kubernetes://a/b?server=http://h:1")->kubernetes->tls);
}

TEST(CoordinatorAddress, SaysWhatIsWrong) {
  const std::string long_name(65, 'n');
  std::string many = "etcd://h:1";
  for (int i = 2; i <= 17; ++i) many += ",h:" + std::to_string(i);
  const struct {
    std::string text, why;
  } rows[] = {
      {"", "begins with no kind"},
      {"http://h:1/box", "begins with no kind"},
      {"static:", "names no file"},
      {std::string("static:a\0b", 10), "zero byte"},
      {"etcd://h:1", "has no name"},
      {"etcd://h:1/", "has no name"},
      {"etcd:///box", "has no endpoint"},
      {"etcd://h:1,/box", "empty endpoint"},
      {"etcd://,h:1/box", "empty endpoint"},
      {"etcd://h:1/a/b", "has the name 'a/b'"},
      {"etcd://h:1/b\xc3\xbcro", "1 to 64 letters"},
      {"etcd://h:1/" + long_name, "1 to 64 letters"},
      {"etcd://h/box", "has no port"},
      {"etcd://[::1]/box", "has no port"},
      {"etcd://h:/box", "a port that is not a number from 1 to 65535"},
      {"etcd://h:0/box", "a port that is not a number from 1 to 65535"},
      {"etcd://h:65536/box", "a port that is not a number from 1 to 65535"},
      {"etcd://h:+1/box", "a port that is not a number from 1 to 65535"},
      {"etcd://:1/box", "has no host"},
      {"etcd://[]:1/box", "has no host"},
      {"etcd://::1:2379/box", "an IPv6 host goes into brackets"},
      {"etcd://[::1:2379/box", "unclosed bracket"},
      {"etcd://[h?]:1/box", "no IPv6 address"},
      {"etcd://a b:1/box", "characters that no host has"},
      {"etcd://" + std::string(254, 'h') + ":1/box", "more than 253"},
      {"etcd://h:1,h:1/box", "'h:1' twice"},
      {many + "/box", "more than 16 endpoints"},
      {"kubernetes://", "has no name of the cluster"},
      {"kubernetes://serving", "has no name of the cluster"},
      {"kubernetes:///box", "has the namespace ''"},
      {"kubernetes://Serving/box", "has the namespace 'Serving'"},
      {"kubernetes://serving/b_x", "has the name 'b_x'"},
      {"kubernetes://serving/a.b", "has the name 'a.b'"},
      {"kubernetes://serving/a/b", "has the name 'a/b'"},
      {"kubernetes://serving/box?", "the option '' without a value, or twice"},
      {"kubernetes://serving/box?token=", "the option 'token=' without a value, or twice"},
      {"kubernetes://serving/box?token=a&token=b", "the option 'token=b' without a value, or twice"},
      {"kubernetes://serving/box?user=a", "the option 'user', which is none"},
      {"kubernetes://serving/box?server=h:1", "begins with neither http:// nor https://"},
      {"kubernetes://serving/box?server=http://h", "has no port"},
      {"kubernetes://serving/box?server=http://h:1&ca=f", "no use with http://"},
  };
  for (const auto& [text, why] : rows) {
    const auto parsed = parse_coordinator_address(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(why)) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("must be")) << text;
  }
}

TEST(CoordinatorAddress, GrpcsWordsOfAConnectionSayWhatIsWrong) {
  EXPECT_EQ(
      words_of_connection("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: tcp "
                          "handshaker shutdown"),
      "ipv4:127.0.0.1:1: Failed to connect: nobody listens there, or the host does not answer");
  EXPECT_EQ(words_of_connection("host s1: it has ended the stream"), "host s1: it has ended the stream");
}

}  // namespace
}  // namespace carillon::cluster
