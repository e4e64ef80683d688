#include "carillon/cluster/coordinator/static_file.h"

#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/cluster/coordinator/address.h"

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
  EXPECT_EQ(read->members[0], (Member{"a", Role::scheduler, "10.0.0.1:8100", 1, std::nullopt}));
  EXPECT_EQ(read->members[1], (Member{"b", Role::worker, "10.0.0.2:8100", 1, std::nullopt}));
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
      {"address", "adress", "box.toml:5", "no key 'adress'"},
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

TEST(StaticFile, AProcessMustBeAsTheFileHasIt) {
  const auto read = parse_static_cluster(box, "box.toml");
  ASSERT_TRUE(read);
  const auto check = [&](const std::string& id, Role role, const std::string& address) {
    const auto checked = check_self(*read, {.id = id, .role = role, .address = address}, "box.toml");
    return checked ? "" : checked.error().message;
  };
  EXPECT_EQ(check("b", Role::worker, "10.0.0.2:8100"), "");
  EXPECT_EQ(check("c", Role::worker, "10.0.0.2:8100"), "box.toml has no member 'c'; it has a, b");
  EXPECT_EQ(check("b", Role::scheduler, "10.0.0.2:8100"),
            "box.toml: the role of member \"b\" is \"worker\", and this process has \"scheduler\"");
  EXPECT_EQ(check("b", Role::worker, "10.0.0.2:8101"),
            "box.toml: the address of member \"b\" is \"10.0.0.2:8100\", and this process has "
            "\"10.0.0.2:8101\"");
}

TEST(StaticFile, AFileThatIsNotThereIsNamed) {
  const auto read = read_static_cluster("/no/box.toml");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::not_found);
  EXPECT_THAT(read.error().message, HasSubstr("/no/box.toml"));
}

// Any file is either refused, with its name, or its members make up a cluster.
TEST(StaticFile, AnyTextIsReadOrRefused) {
  const std::string pieces[] = {"\"",
                                "[[member]]",
                                "id = ",
                                "role = \"scheduler\"",
                                "\n",
                                "=",
                                "a",
                                "[",
                                "\xff",
                                "address = \"[::1]:1\"",
                                "#",
                                "name = \"x\"",
                                "10.0.0.1:8100",
                                "{",
                                "0"};
  int taken = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    std::string text = box;
    for (std::uint64_t changes = 1 + random.below(2); changes > 0; --changes) {
      const std::size_t at = random.below(text.size() + 1);
      if (random.below(2) == 0)
        text.insert(at, pieces[random.below(std::size(pieces))]);
      else
        text.erase(at, random.below(12));
    }
    const auto read = parse_static_cluster(text, "box.toml");
    if (!read) {
      ASSERT_THAT(read.error().message, StartsWith("box.toml:")) << "seed " << seed;
      continue;
    }
    ++taken;
    std::set<std::string> ids, addresses;
    for (const Member& member : read->members) {
      ASSERT_TRUE(is_name(member.id) && check_endpoint(member.address)) << "seed " << seed;
      ids.insert(member.id);
      addresses.insert(member.address);
      ASSERT_TRUE(check_self(*read, member, "box.toml")) << "seed " << seed;
    }
    ASSERT_EQ(ids.size(), read->members.size()) << "seed " << seed;
    ASSERT_EQ(addresses.size(), read->members.size()) << "seed " << seed;
    ASSERT_EQ(std::ranges::count(read->members, Role::scheduler, &Member::role), 1) << "seed " << seed;
  }
  EXPECT_GT(taken, 100);
}

}  // namespace
}  // namespace carillon::cluster
