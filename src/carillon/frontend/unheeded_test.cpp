#include "carillon/frontend/unheeded.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::frontend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(UnheededParameters, OnceAName) {
  std::vector<std::string> lines;
  UnheededParameters unheeded([&](const std::string& line) { lines.push_back(line); });
  for (int i = 0; i < 3; ++i)
    for (const char* name : {"sequence_id", "timeout_ms", "else"}) unheeded.tell(name);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("'sequence_id', which is not heeded: models keep no state"),
                                 HasSubstr("'timeout', in microseconds"), HasSubstr("'else'")));
}

TEST(UnheededParameters, NamesAreBounded) {
  std::vector<std::string> lines;
  UnheededParameters unheeded([&](const std::string& line) { lines.push_back(line); });
  unheeded.tell(std::string(1 << 20, 'x'));
  unheeded.tell("new\nline\x1b[31m");
  EXPECT_LT(lines[0].size(), 300U);
  EXPECT_THAT(lines[1], HasSubstr("'new?line?[31m'"));
  for (int i = 0; i < 1000; ++i) unheeded.tell(std::to_string(i));
  ASSERT_EQ(lines.size(), UnheededParameters::names_most);
  EXPECT_THAT(lines.back(), HasSubstr("other names will not be told"));
  UnheededParameters({}).tell("nobody listens");
}

}  // namespace
}  // namespace carillon::frontend
