#include "carillon/frontend/access/keys.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// printf abc | sha256sum (FIPS 180-2, B.1)
const std::string abc_digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::string with_digest(const std::string& rest = {}) {
  return "[[key]]\nname = \"a\"\nsha256 = \"" + abc_digest + "\"\n" + rest;
}

TEST(Keys, DigestsAreSha256) {
  EXPECT_EQ(to_hex(digest_of("abc")), abc_digest);
}

TEST(Keys, AKeyMayInferWithAllModelsUnlessItSaysOtherwise) {
  const auto keys = parse_keys(with_digest(), "f");
  ASSERT_TRUE(keys) << keys.error().message;
  ASSERT_EQ(keys->size(), 1U);
  const Key& key = keys->front();
  EXPECT_EQ(key.digest, digest_of("abc"));
  EXPECT_TRUE(key.infer);
  EXPECT_FALSE(key.admin || key.metrics);
  EXPECT_TRUE(key.may_use("anything"));
  EXPECT_TRUE(key.may_name("r", "a"));
  EXPECT_FALSE(key.may_name("r", "b"));
  EXPECT_FALSE(key.may_name("r", ""));
  EXPECT_EQ(key.rate, 0);
  EXPECT_EQ(key.bytes, 0U);
}

TEST(Keys, EverythingThatAKeyCanSay) {
  const auto keys = parse_keys(
      "[[key]]\nname = \"b.1\"\nsecret = \"0123456789abcdef\"\nmodels = [\"resnet*\", \"bert\"]\n"
      "roles = [\"admin\", \"metrics\"]\nregions = [\"cam-*\"]\nrate = 2.5\nburst = 7\nbytes = \"1 MiB\"\n",
      "f");
  ASSERT_TRUE(keys) << keys.error().message;
  const Key& key = keys->front();
  EXPECT_EQ(key.digest, digest_of("0123456789abcdef"));
  EXPECT_TRUE(key.may_use("resnet50"));
  EXPECT_TRUE(key.may_use("bert"));
  EXPECT_FALSE(key.may_use("bert2"));
  EXPECT_FALSE(key.infer);
  EXPECT_TRUE(key.admin && key.metrics);
  EXPECT_TRUE(key.may_name("any", "b")) << "it could register the object itself";
  Key lesser = key;
  lesser.admin = false;
  EXPECT_TRUE(lesser.may_name("cam-1", "b"));
  EXPECT_FALSE(lesser.may_name("any", "b"));
  EXPECT_EQ(key.rate, 2.5);
  EXPECT_EQ(key.burst, 7);
  EXPECT_EQ(key.bytes, std::size_t{1} << 20);
}

TEST(Keys, WhatIsWrongIsToldWithItsLine) {
  const std::string digest = "sha256 = \"" + abc_digest + "\"\n";
  const struct {
    std::string text;
    std::string want;
  } rows[] = {
      {"", "f: there is no key"},
      {"x = 1\n" + with_digest(), "f:1: a file of keys has nothing but [[key]]"},
      {"key = 3\n", "there is no key"},
      {"key = [3]\n", "each key is a table"},
      {"[[key]]\n" + digest, "f:1: a key needs a name"},
      {"[[key]]\nname = \"a b\"\n" + digest, "f:2: a key's name must be"},
      {"[[key]]\nname = 4\n" + digest, "f:2: a key's name must be"},
      {"[[key]]\nname = \"a\"\n", "needs either sha256 or secret"},
      {with_digest("secret = \"0123456789abcdef\"\n"), "needs either sha256 or secret"},
      {"[[key]]\nname = \"a\"\nsha256 = \"12\"\n", "f:3: sha256 must be the 64 hexadecimal"},
      {"[[key]]\nname = \"a\"\nsha256 = \"" + std::string(64, 'g') + "\"\n", "64 hexadecimal"},
      {"[[key]]\nname = \"a\"\nsecret = \"short\"\n", "f:3: secret must be text of 16 to 512"},
      {"[[key]]\nname = \"a\"\nsecret = \"0123456789 abcdef\"\n", "without spaces"},
      {with_digest("model = [\"x\"]\n"), "f:4: a key has no such member"},
      {with_digest("models = \"x\"\n"), "f:4: models must be an array"},
      {with_digest("models = []\n"), "could use none"},
      {with_digest("models = [\"\"]\n"), "models must be an array"},
      {with_digest("regions = \"x\"\n"), "f:4: regions must be an array"},
      {with_digest("roles = [\"root\"]\n"), "f:4: roles must be an array of roles, of \"infer\""},
      {with_digest("roles = []\n"), "could do nothing"},
      {with_digest("real_time = \"yes\"\n"), "f:4: real_time must be true or false"},
      {with_digest("rate = 0\n"), "f:4: rate must be a number above 0"},
      {with_digest("rate = -1\n"), "rate must be a number above 0"},
      {with_digest("rate = nan\n"), "rate must be a number above 0"},
      {with_digest("rate = \"3\"\n"), "rate must be a number above 0"},
      {with_digest("burst = 3\n"), "burst needs a rate"},
      {with_digest("rate = 9\nburst = 0.5\n"), "burst must be at least 1"},
      {with_digest("bytes = 64\n"), "bytes must be a size"},
      {with_digest("bytes = \"many\"\n"), "bytes must be a size"},
      {with_digest("bytes = \"0\"\n"), "bytes must be a size"},
      {with_digest() + with_digest(), "f:4: there is a key 'a' before this one"},
      {with_digest() + "[[key]]\nname = \"b\"\n" + digest, "the same secret"},
      {"[[key]]\nname = \"a\n", "this is not TOML"},
  };
  for (const auto& row : rows) {
    const auto keys = parse_keys(row.text, "f");
    ASSERT_FALSE(keys) << row.text;
    EXPECT_THAT(keys.error().message, HasSubstr(row.want)) << row.text;
    EXPECT_EQ(keys.error().code, ErrorCode::invalid_argument);
  }
}

// A secret in the wrong place, or cut short by a quotation mark, is not shown.
TEST(Keys, ErrorsShowNoSecrets) {
  for (const std::string text :
       {"[[key]]\nname = \"a\"\nsecret = hunter2hunter2hunter2\n", "[[key]]\nname = \"hunter2 hunter2\"\n",
        "hunter2 = 1\n", "[[key]]\nname = \"a\"\nhunter2 = \"\"\n",
        "[[key]]\nname = \"a\"\nsha256 = \"hunter2\"\n", "[[key]]\nname = \"a\"\nsecret = \"hunter2\"\n"}) {
    const auto keys = parse_keys(text, "f");
    ASSERT_FALSE(keys) << text;
    EXPECT_THAT(keys.error().message, Not(HasSubstr("hunter2"))) << text;
  }
}

TEST(Keys, ThereAreNotTooMany) {
  std::string text;
  for (std::size_t i = 0; i <= keys_most; ++i)
    text += "[[key]]\nname = \"k" + std::to_string(i) + "\"\nsecret = \"0123456789abcdef" +
            std::to_string(i) + "\"\n";
  const auto keys = parse_keys(text, "f");
  ASSERT_FALSE(keys);
  EXPECT_THAT(keys.error().message, HasSubstr("at most 1024"));
}

TEST(Keys, Globs) {
  const struct {
    const char* pattern;
    const char* name;
    bool want;
  } rows[] = {
      {"*", "", true},          {"*", "x", true},        {"a*", "abc", true},  {"a*", "ba", false},
      {"a?c", "abc", true},     {"a?c", "ac", false},    {"*c", "abc", true},  {"*b*", "abc", true},
      {"a*b*c", "axbyc", true}, {"a*b*c", "acb", false}, {"", "", true},       {"", "x", false},
      {"abc", "abc", true},     {"abc", "abcd", false},  {"[a]", "a", false},  {"**", "x", true},
      {"a*a", "a", false},      {"a*a", "aa", true},     {"*ab", "aab", true}, {"?", "", false},
  };
  for (const auto& row : rows)
    EXPECT_EQ(matches_glob(row.pattern, row.name), row.want) << row.pattern << " " << row.name;
}

TEST(Keys, WhatIsMadeIsReadBack) {
  const auto secret = new_secret();
  const auto other = new_secret();
  ASSERT_TRUE(secret && other);
  EXPECT_EQ(secret->size(), 43U);
  EXPECT_NE(*secret, *other);
  const auto entry = key_entry("team-a", *secret);
  ASSERT_TRUE(entry);
  EXPECT_THAT(*entry, Not(HasSubstr(*secret)));
  const auto keys = parse_keys(*entry, "f");
  ASSERT_TRUE(keys) << keys.error().message;
  EXPECT_EQ(keys->front().name, "team-a");
  EXPECT_EQ(keys->front().digest, digest_of(*secret));
  EXPECT_FALSE(keys->front().real_time) << "it has to be asked for";
  EXPECT_TRUE(parse_keys(*key_entry("team-a", *secret, true), "f")->front().real_time);
  EXPECT_FALSE(key_entry("a\"b", *secret));
}

}  // namespace
}  // namespace carillon::frontend
