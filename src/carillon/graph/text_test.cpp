#include "carillon/graph/text.h"

#include <string>

#include <gtest/gtest.h>

namespace carillon::graph {
namespace {

TEST(Text, KnowsUtf8) {
  const struct {
    std::string_view text;
    bool utf8;
  } rows[] = {{"", true},
              {"a", true},
              {"\xc3\xb6", true},
              {"\xe2\x82\xac", true},
              {"\xf0\x9f\x94\x94", true},
              {"\xf4\x8f\xbf\xbf", true},
              {"\xc3", false},  // cut off
              {"\xe2\x82", false},
              {"\x80", false},              // no lead
              {"\xc0\xaf", false},          // not the shortest
              {"\xed\xa0\x80", false},      // a surrogate
              {"\xf4\x90\x80\x80", false},  // above the last
              {"\xff", false}};
  for (const auto& row : rows) EXPECT_EQ(is_utf8(row.text), row.utf8) << row.text;
  EXPECT_FALSE(is_text("a\tb"));
  EXPECT_FALSE(is_text("a\x7f"));
}

TEST(Text, IsMadePrintable) {
  EXPECT_EQ(printable("node 'mean' (\xc3\xb6)\n ^"), "node 'mean' (\xc3\xb6)\n ^");
  EXPECT_EQ(printable(std::string_view("a\0b\x1b[2J\t\x7f", 9)), "a\\x00b\\x1b[2J\\x09\\x7f");
  EXPECT_EQ(printable("\xff\xc3(\xe2\x82"), "\\xff\\xc3(\\xe2\\x82");
  EXPECT_EQ(printable("0123456789", 8), "012345 ... 89");
  EXPECT_EQ(printable("01234\xc3\xb6"
                      "6\xc3\xb6"
                      "9",
                      8),
            "01234 ... 9")
      << "no half of a character";
  EXPECT_LT(printable(std::string(100'000, 'n')).size(), 2100U);
}

}  // namespace
}  // namespace carillon::graph
