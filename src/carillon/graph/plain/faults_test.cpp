// Bad data: kernels note whose it is, and go on.

#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/plain/plain_test.h"

namespace carillon::graph::plain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> rows_of(const Faults& faults) {
  std::vector<int> rows;
  for (const Fault& fault : faults.all()) rows.push_back(fault.row);
  return rows;
}

// Three rows, of which row 1 is bad; the others' results must be as they are without it.
struct Row {
  const char* op;
  Case bad, good;
  std::string says;
};
std::vector<Row> table() {
  const auto make = [](const char* op, std::int64_t middle) {
    Case made(op);
    const std::string name = op;
    if (name == "Gather")
      made.i64({2, 2}, {10, 11, 20, 21}).i64({3, 1}, {1, middle, -2}).out(DataType::i64, {3, 1, 2});
    if (name == "GatherElements")
      made.i64({3, 2}, {1, 2, 3, 4, 5, 6})
          .i64({3, 1}, {1, middle, 0})
          .out(DataType::i64, {3, 1})
          .with("axis", std::int64_t{1});
    if (name == "GatherND")
      made.i64({3, 2}, {1, 2, 3, 4, 5, 6})
          .i64({3, 1}, {1, middle, 0})
          .out(DataType::i64, {3})
          .with("batch_dims", std::int64_t{1});
    if (name == "ScatterElements")
      made.i64({3, 2}, {1, 2, 3, 4, 5, 6})
          .i64({3, 1}, {1, middle, 0})
          .i64({3, 1}, {7, 8, 9})
          .out(DataType::i64, {3, 2})
          .with("axis", std::int64_t{1});
    if (name == "ScatterND")
      made.i64({6}, {1, 2, 3, 4, 5, 6})
          .i64({3, 1}, {0, middle == 1 ? 2 : middle, 5})
          .i64({3}, {7, 8, 9})
          .out(DataType::i64, {6});
    if (name == "ReverseSequence")
      made.i64({3, 2}, {1, 2, 3, 4, 5, 6})
          .i64({3}, {2, middle, 1})
          .out(DataType::i64, {3, 2})
          .with("time_axis", std::int64_t{1})
          .with("batch_axis", std::int64_t{0});
    if (name == "Div" || name == "Mod")
      made.i64({3, 2}, {1, 20, 3, 40, 5, 60}).i64({3, 1}, {2, middle, 7}).out(DataType::i64, {3, 2});
    return made;
  };
  std::vector<Row> rows;
  for (const char* op : {"Gather", "GatherElements", "GatherND", "ScatterElements"})
    rows.push_back(
        {op, make(op, 9), make(op, 1),
         "index 9, which comes from input 'ids', is outside an axis of 2 elements: it must be -2 to 1"});
  rows.push_back(
      {"ScatterND", make("ScatterND", -7), make("ScatterND", 1),
       "index -7, which comes from input 'ids', is outside an axis of 6 elements: it must be -6 to 5"});
  rows.push_back(
      {"ReverseSequence", make("ReverseSequence", 3), make("ReverseSequence", 1),
       "length 3, which comes from input 'ids', is outside an axis of 2 elements: it must be 0 to 2"});
  for (const char* op : {"Div", "Mod"})
    rows.push_back(
        {op, make(op, 0), make(op, 3),
         "division of integers by zero: no element of the divisor, which comes from input 'ids', may be 0"});
  return rows;
}

TEST(Faults, CostTheRowThatHasThem) {
  for (auto& [op, bad, good, says] : table()) {
    SCOPED_TRACE(op);
    const Faults faults = bad.faults(3);
    EXPECT_THAT(rows_of(faults), ElementsAre(1));
    EXPECT_EQ(faults.all()[0].error.code, ErrorCode::invalid_argument);
    EXPECT_THAT(faults.all()[0].error.message, HasSubstr("node 'n' (" + std::string(op) + ")"));
    EXPECT_THAT(faults.all()[0].error.message, HasSubstr(says));
    EXPECT_TRUE(good.faults(3).empty());
    const auto got = bad.outputs[0].as<std::int64_t>(), want = good.outputs[0].as<std::int64_t>();
    for (std::size_t i = 0; i < want.size(); ++i)
      if (i / (want.size() / 3) != 1) {
        EXPECT_EQ(got[i], want[i]) << "element " << i;
      }
  }
}

TEST(Faults, WhoseTheyAreMayBeUnknown) {
  for (auto& [op, bad, good, says] : table())
    EXPECT_THAT(rows_of(bad.faults(0)), ElementsAre(Faults::unknown)) << op;
}

TEST(Faults, AreErrorsWhereNobodyTakesNotes) {
  for (auto& [op, bad, good, says] : table()) {
    EXPECT_FALSE(bad.run().has_value()) << op;
    // What is the model's own is wrong for every request.
    bad.noted.emplace();
    EXPECT_FALSE(bad.run().has_value()) << op << " of a constant";
    EXPECT_TRUE(bad.noted->empty());
  }
}

TEST(Faults, OneARow) {
  Case many("Gather");
  many.i64({2}, {5, 6}).i64({3, 2}, {2, 3, 0, 1, -3, 0}).out(DataType::i64, {3, 2});
  const Faults faults = many.faults(3);
  EXPECT_THAT(rows_of(faults), ElementsAre(0, 2));
  EXPECT_THAT(faults.all()[0].error.message, HasSubstr("index 2,")) << "the first";
}

TEST(Faults, IndicesThatDoNotCountFromTheEnd) {
  Case unpooled("MaxUnpool");
  unpooled.of<float>(DataType::f32, {1, 1, 2}, {5, 6}).i64({1, 1, 2}, {0, -1}).out(DataType::f32, {1, 1, 4});
  unpooled.with("pooled", std::vector<std::int64_t>{1, 1, 4});
  const Faults faults = unpooled.faults(1);
  EXPECT_THAT(rows_of(faults), ElementsAre(0));
  EXPECT_THAT(
      faults.all()[0].error.message,
      HasSubstr(
          "index -1, which comes from input 'ids', is outside an axis of 4 elements: it must be 0 to 3"));
}

TEST(Faults, AnAxisWithoutElementsHasNoHarmlessIndex) {
  Case empty("Gather");
  empty.i64({0}, {}).i64({1}, {0}).out(DataType::i64, {1});
  empty.noted.emplace();
  empty.origin = Origin{.rows = 1, .input = {}};
  EXPECT_FALSE(empty.run().has_value());
}

// What traps on some machines: every divisor that does, in every type of whole numbers.
template <typename T>
void divides(DataType type) {
  constexpr T least = std::numeric_limits<T>::min();
  constexpr T all_ones = static_cast<T>(-1);
  for (const char* op : {"Div", "Mod"})
    for (const std::int64_t fmod : {0, 1}) {
      Case made(op);
      if (std::string(op) == "Mod") made.with("fmod", fmod);
      made.of<T>(type, {4}, {least, least, 1, 7})
          .template of<T>(type, {4}, {all_ones, 0, 0, 7})
          .out(type, {4});
      EXPECT_THAT(rows_of(made.faults(4)), ElementsAre(1, 2)) << op << " of " << onnx_name(type);
      EXPECT_EQ(made.outputs[0].as<T>()[3], std::string(op) == "Div" ? T{1} : T{0});
    }
}
TEST(Faults, DivisionsDoNotTrap) {
  divides<std::int8_t>(DataType::i8);
  divides<std::int16_t>(DataType::i16);
  divides<std::int32_t>(DataType::i32);
  divides<std::int64_t>(DataType::i64);
  divides<std::uint8_t>(DataType::u8);
  divides<std::uint16_t>(DataType::u16);
  divides<std::uint32_t>(DataType::u32);
  divides<std::uint64_t>(DataType::u64);
}

}  // namespace
}  // namespace carillon::graph::plain
