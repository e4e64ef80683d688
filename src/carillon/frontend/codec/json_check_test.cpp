#include "carillon/frontend/codec/json_check.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "carillon/base/random.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

TEST(JsonCheck, FindsThePlace) {
  const struct {
    std::string text;
    std::size_t at;
    std::string what;
  } rows[] = {
      {"", 0, "the end where a value"},
      {"  ", 2, "the end where a value"},
      {"{", 1, "the end where a name in quotes"},
      {"[1,", 3, "the end where a value"},
      {"[1 2]", 3, "'2' where ',' or ']'"},
      {"[1,]", 3, "']' where a value"},
      {"[,1]", 1, "',' where a value"},
      {"{\"a\" 1}", 5, "'1' where ':'"},
      {"{a:1}", 1, "'a' where a name in quotes"},
      {"{\"a\":1,}", 7, "'}' where a name in quotes"},
      {"[1}", 2, "'}' where ',' or ']'"},
      {"[1] x", 4, "'x' behind the end"},
      {"[tru]", 1, "'t' where a value"},
      {"[01]", 1, "begins with 0"},
      {"[-]", 2, "']' where a digit"},
      {"[1.]", 3, "']' where a digit"},
      {"[1e+]", 4, "']' where a digit"},
      {"[\"abc]", 1, "a string that does not end"},
      {"[\"a\nb\"]", 3, "the byte 0x0a in a string"},
      {"[\"\\x\"]", 2, "a broken escape"},
      {"[\"\\u12\"]", 2, "a broken escape"},
      {"[\"\\ud800x\"]", 2, "half of a surrogate pair"},
      {"[\"\\ude00\"]", 2, "half of a surrogate pair"},
      {"[\"\xff\"]", 2, "the byte 0xff in a string, which is not UTF-8"},
      {"[\"\xc0\x80\"]", 2, "not UTF-8"},
      {"[\xff]", 1, "the byte 0xff where a value"},
      {"[Nan]", 1, "'N' where a value"},
      {"[+Inf]", 1, "'+' where a value"},
      {"[Infinite]", 4, "'i' where ',' or ']'"},
      {std::string(1025, '['), 1024, "nested more than 1024 deep"},
  };
  for (const auto& [text, at, what] : rows) {
    const auto checked = check_json(text);
    ASSERT_TRUE(checked.fault) << text;
    EXPECT_EQ(checked.fault->at, at) << text;
    EXPECT_THAT(checked.fault->what, HasSubstr(what)) << text;
  }
}

TEST(JsonCheck, CountsLinesAndColumns) {
  const auto checked = check_json("{\n  \"a\": [1,\n    2 3]\n}");
  ASSERT_TRUE(checked.fault);
  EXPECT_EQ(checked.fault->text(), "'3' where ',' or ']' should be, at byte 19 (line 3, column 7)");
  EXPECT_EQ(json_fault_text("[1 2"),
            "the body is not JSON: '2' where ',' or ']' should be, at byte 3 (line 1, column 4)");
}

TEST(JsonCheck, TakesWhatIsNoNumberElsewhere) {
  const auto checked = check_json(R"({"NaN":"NaN, Inf","x":[NaN,-NaN,Infinity,-Infinity,Inf,-Inf,1]})");
  ASSERT_FALSE(checked.fault) << checked.fault->text();
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  ASSERT_EQ(parser.parse(checked.rewritten).get(root), simdjson::SUCCESS) << checked.rewritten;
  EXPECT_EQ(std::string_view(root["NaN"]), "NaN, Inf");
  std::string kinds;
  for (const simdjson::dom::element each : root["x"].get_array()) {
    std::string_view text;
    const auto number = each.get(text) == simdjson::SUCCESS ? literal_number(text) : std::nullopt;
    kinds += !number ? '1' : std::isnan(*number) ? 'n' : *number > 0 ? '+' : '-';
  }
  EXPECT_EQ(kinds, "nn+-+-1");
  EXPECT_EQ(literal_number("NaN"), std::nullopt);
  EXPECT_TRUE(check_json("[1,2]").rewritten.empty());
}

TEST(JsonCheck, TakesNumbersOfMoreThan64Bits) {
  const std::string digits(400, '1');
  const struct {
    std::string number;
    std::string shown;
    std::optional<double> value;
  } rows[] = {
      {"18446744073709551616", "18446744073709551616", 18446744073709551616.0},
      {"-9223372036854775809", "-9223372036854775809", -9223372036854775808.0},
      {"1e309", "1e309", {}},
      {"-1e309", "-1e309", {}},
      {"1e999999999999", "1e999999999999", {}},
      {"1E+99999999999999999999999", "1E+99999999999999999999999", {}},
      {digits, digits.substr(0, 310) + "...", {}},
  };
  for (const auto& [number, shown, value] : rows) {
    const auto checked = check_json("[0, " + number + "]");
    ASSERT_FALSE(checked.fault) << checked.fault->text();
    ASSERT_TRUE(checked.replaced);
    EXPECT_EQ(checked.replaced->at, 4);
    simdjson::dom::parser parser;
    std::string_view text;
    ASSERT_EQ(parser.parse(checked.rewritten).at(1).get(text), simdjson::SUCCESS) << checked.rewritten;
    EXPECT_EQ(wide_number(text), shown);
    EXPECT_EQ(literal_number(text), value) << number;
  }
  EXPECT_EQ(json_fault_text("[0,1e400]"),
            "the body is not JSON: a number that is too large for 64 bits, at byte 3 (line 1, column 4)");
  EXPECT_EQ(json_fault_text("[NaN]"),
            "the body is not JSON: a number that JSON does not have, at byte 1 (line 1, column 2)");
  EXPECT_EQ(wide_number("1e400"), std::nullopt);
}

// What the fast parser takes has no fault, and what it refuses has one: over mangled texts the two agree.
TEST(JsonCheck, AgreesWithTheFastParser) {
  const std::string whole =
      R"( {"id":"\u00e9\ud83d\ude00é","p":{"t":5000,"b":true,"n":null,"f":-1.5e-3},"x":[[1,2],[],{}]} )";
  const char* const pieces[] = {"{", "}", "[",  "]",    "\"", ",",    ":",     "-1", "1e999", "null",
                                "0", ".", "\\", "\xff", "e",  "1e-9", "\\u00", " ",  "\n",    "tru"};
  Random random(77);
  simdjson::dom::parser parser;
  int good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (std::uint64_t edit = 1 + random.below(2); edit > 0; --edit) {
      const auto at = random.below(text.size());
      if (random.below(3) == 0)
        text.erase(at, 1 + random.below(4));
      else if (random.below(2) == 0)
        text[at] = static_cast<char>(random.below(256));
      else
        text.insert(at, pieces[random.below(std::size(pieces))]);
      if (text.empty()) text = "1";
    }
    simdjson::dom::element root;
    const bool taken = parser.parse(text).get(root) == simdjson::SUCCESS;
    const auto checked = check_json(text);
    if (!checked.rewritten.empty()) continue;
    EXPECT_EQ(!checked.fault, taken) << "round " << round << ": " << text
                                     << (checked.fault ? "\n" + checked.fault->text() : "");
    good += taken;
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace carillon::frontend
