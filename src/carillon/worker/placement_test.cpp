#include "carillon/worker/placement.h"

#include <gtest/gtest.h>

namespace carillon::worker {
namespace {

TEST(Placement, KeepsACoreForTheNetwork) {
  using Cores = std::vector<int>;
  const struct {
    const char* what;
    Cores cores;
    int exec_threads;
    Placement load, input, exec;
    std::size_t notes;
  } rows[] = {
      {"two cores, kernels on both: only the short copies", {0, 1}, 2, {0, {}}, {20, {}}, {0, {}}, 2},
      {"0 is all cores", {0, 1, 2, 3}, 0, {0, {}}, {20, {}}, {0, {}}, 2},
      {"more threads than cores", {0, 1}, 8, {0, {}}, {20, {}}, {0, {}}, 2},
      {"one core left: not for long copies", {0, 1}, 1, {0, {0}}, {20, {0}}, {10, {1}}, 1},
      {"two left", {0, 2, 4, 6}, 2, {5, {0, 2}}, {20, {0, 2}}, {10, {4, 6}}, 0},
  };
  for (const auto& row : rows) {
    const Placements places = place_executors(row.cores, row.exec_threads, true);
    EXPECT_EQ(places.load, row.load) << row.what;
    EXPECT_EQ(places.input, row.input) << row.what;
    EXPECT_EQ(places.output, row.input) << row.what;
    EXPECT_EQ(places.exec, row.exec) << row.what;
    EXPECT_EQ(places.notes.size(), row.notes) << row.what;
    EXPECT_EQ(place_executors(row.cores, row.exec_threads, false), Placements{}) << row.what;
  }
}

TEST(Placement, TellsWhatIsRefused) {
  ASSERT_FALSE(usable_cores().empty());
  std::vector<std::string> notes;
  apply({}, "test", notes);
  EXPECT_TRUE(notes.empty());
  apply({.priority = 100, .cores = {}}, "test", notes);  // 99 is the highest: refused to everybody
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("test keeps normal priority"), std::string::npos);
}

}  // namespace
}  // namespace carillon::worker
