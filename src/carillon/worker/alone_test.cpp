#include "carillon/worker/alone.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace carillon::worker {
namespace {

constexpr TimePoint begin{1s};

// Three rows, the command's 2, 0 and 1, in a part that begins at 256 in the action's piece of the I/O cache:
// inputs of 2 bytes and of 1, an output of 2. The least plan is of two rows.
class Alone : public ::testing::Test {
 protected:
  static PlanLayout layout(int batch) {
    return {.batch = batch,
            .inputs = {{.offset = 0, .row_bytes = 2}, {.offset = 64, .row_bytes = 1}},
            .outputs = {{.offset = 128, .row_bytes = 2}},
            .io_bytes = 192};
  }
  Alone() {
    for (const int batch : {2, 3}) host.layouts.push_back(layout(batch));
    action.host = &host;
    action.batch = 3;
    action.parts[0] = {.layout = &host.layouts[1], .first = 0, .io = 256};
    action.part_count = 1;
    action.order[0] = 2;
    action.order[1] = 0;
    action.order[2] = 1;
    action.io = whole.data();
    action.times.exec_start = begin;
    for (std::size_t i = 0; i < 3; ++i) action.rows[i].deadline = begin + 10s;
    for (std::size_t i = 0; i < 6; ++i) part()[i] = std::byte(10 + i);
    for (std::size_t i = 0; i < 3; ++i) part()[64 + i] = std::byte(20 + i);
  }
  std::byte* part() { return whole.data() + 256; }
  std::vector<int> bad() const {
    std::vector<int> rows;
    for (const BadRow& row : action.bad_rows) rows.push_back(row.row);
    return rows;
  }

  HostModel host;
  InferSlot action;
  std::array<std::byte, 512> whole{};
  std::array<std::byte, 192> io{};
};

TEST_F(Alone, ARowFillsTheLeastBatch) {
  EXPECT_EQ(&alone_layout(action), &host.layouts[0]);
  action.alone.row = 1;
  ASSERT_TRUE(next_alone(action, begin, io.data()));
  EXPECT_EQ(action.alone.row, 1);
  const std::array first{io[0], io[1], io[2], io[3]};
  EXPECT_EQ(first, (std::array{std::byte{12}, std::byte{13}, std::byte{12}, std::byte{13}}));
  const std::array second{io[64], io[65]};
  EXPECT_EQ(second, (std::array{std::byte{21}, std::byte{21}}));
}

TEST_F(Alone, ItsOutputsGoToThePart) {
  action.alone.row = 1;
  ASSERT_TRUE(next_alone(action, begin, io.data()));
  for (std::size_t i = 0; i < 4; ++i) io[128 + i] = std::byte(30 + i);
  end_alone(action, {}, io.data());
  EXPECT_EQ(action.alone.row, 2);
  EXPECT_EQ(bad(), std::vector<int>{});
  const std::array<std::byte, 6> want{std::byte{0}, std::byte{0}, std::byte{30}, std::byte{31}};
  EXPECT_TRUE(std::equal(want.begin(), want.end(), part() + 128));
}

TEST_F(Alone, AFaultCostsTheRowThatHasIt) {
  ASSERT_TRUE(next_alone(action, begin, io.data()));
  action.faults.add(1, {ErrorCode::invalid_argument, "its copy"});
  io[128] = std::byte{1};
  end_alone(action, {}, io.data());
  ASSERT_TRUE(next_alone(action, begin, io.data()));
  EXPECT_TRUE(action.faults.empty());
  end_alone(action, invalid("itself"), io.data());
  ASSERT_TRUE(next_alone(action, begin, io.data()));
  end_alone(action, {}, io.data());
  EXPECT_FALSE(next_alone(action, begin, io.data()));
  ASSERT_EQ(bad(), (std::vector{2, 0}));  // as the command has them
  EXPECT_EQ(action.bad_rows[0].error.message, "its copy");
  EXPECT_EQ(action.bad_rows[1].error.message, "itself");
  EXPECT_EQ(part()[128], std::byte{0});
}

TEST_F(Alone, WhoseDeadlineHasPassedDoesNotRun) {
  action.rows[2].deadline = begin + 1ms;
  action.rows[1].deadline = begin + 1ms + 1ns;
  ASSERT_TRUE(next_alone(action, begin + 1ms, io.data()));
  EXPECT_EQ(action.alone.row, 1);
  end_alone(action, {}, io.data());
  EXPECT_TRUE(next_alone(action, begin + 1ms, io.data()));
  end_alone(action, {}, io.data());
  ASSERT_EQ(bad(), std::vector{2});
  EXPECT_EQ(action.bad_rows[0].error.code, ErrorCode::deadline_exceeded);
}

TEST_F(Alone, NoneBeginsAfterSoLong) {
  ASSERT_TRUE(next_alone(action, begin + alone_at_most, io.data()));
  end_alone(action, {}, io.data());
  EXPECT_FALSE(next_alone(action, begin + alone_at_most + 1ns, io.data()));
  EXPECT_EQ(bad(), (std::vector{0, 1}));
}

}  // namespace
}  // namespace carillon::worker
