#include "carillon/graph/text.h"

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

}  // namespace
}  // namespace carillon::graph
