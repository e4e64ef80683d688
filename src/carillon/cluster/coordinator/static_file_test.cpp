#include "carillon/cluster/coordinator/static_file.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string box = R"(name = "box"
[[member]]
id = "a"
role = "scheduler"
address = "10.0.0.1:8100"
[[member]]
id = "b"
role = "worker"
address = "10.0.0.2:8100"
)";

TEST(StaticFile, NamesTheMembers) {
  const auto read = parse_static_cluster(box, "box.toml");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->name, "box");
  ASSERT_EQ(read->members.size(), 2U);
  EXPECT_EQ(read->members[0], (Member{.id = "a", .role = Role::scheduler, .address = "10.0.0.1:8100"}));
  EXPECT_EQ(read->members[1], (Member{.id = "b", .role = Role::worker, .address = "10.0.0.2:8100"}));
}

TEST(StaticFile, SaysWhatIsWrongAndWhere) {
  const struct {
    std::string from, to, place, why;
  } rows[] = {
      {"name = \"box\"", "", "box.toml:1", "needs the name"},
      {"\"box\"", "7", "box.toml:1", "text in quotes"},
      {"\"box\"", "\"b x\"", "box.toml:1", "1 to 64 letters"},
      {"name", "port = 1\nname", "box.toml:1", "no key 'port'"},
      {"\"b\"", "\"a\"", "box.toml:7", "member in line 2, too"},
      {"10.0.0.2", "10.0.0.1", "box.toml:9", "member in line 2, too"},
      {"\"worker\"", "\"scheduler\"", "box.toml:8", "no failover"},
      {"\"scheduler\"", "\"worker\"", "box.toml:2", "no member has the role scheduler"},
      {"\"worker\"", "\"king\"", "box.toml:8", "\"frontend\", \"scheduler\" or \"worker\""},
      {"role = \"worker\"\n", "", "box.toml:6", "needs a role"},
      {"10.0.0.2:8100", "10.0.0.2", "box.toml:9", "has no port"},
      {"id = \"b\"", "id = \"b\"\nzone = 1", "box.toml:8", "no key 'zone'"},
      {"\"a\"", "\"a", "box.toml:3", ""},
      {box.substr(box.find("[[")), "", "box.toml:1", "[[member]]"},
      {box.substr(box.find("[[")), "member = []", "box.toml:2", "[[member]]"},
  };
  for (const auto& [from, to, place, why] : rows) {
    std::string text = box;
    text.replace(text.find(from), from.size(), to);
    const auto read = parse_static_cluster(text, "box.toml");
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().message, StartsWith(place + ": ")) << text;
    EXPECT_THAT(read.error().message, HasSubstr(why)) << text;
  }
  EXPECT_FALSE(parse_static_cluster("", "box.toml"));
}

}  // namespace
}  // namespace carillon::cluster
