// What a worker tells of itself to whoever hears nothing of its actions.
#include <memory>

#include <gtest/gtest.h>

#include "carillon/engine/cpu/cpu_engine.h"
#include "carillon/worker/fake_model.h"
#include "carillon/worker/watched_model.h"

namespace carillon::worker {
namespace {

using schedule::ActionStatus;
using schedule::Lane;
using testing::chain;
using testing::Row;

constexpr Window at_any_time{TimePoint::min(), TimePoint::max()};
constexpr Lane all_lanes[] = {Lane::exec, Lane::load, Lane::real_time, Lane::best_effort};

class Slowness : public ::testing::TestWithParam<bool> {};

TEST_P(Slowness, TellsInWhichLaneWorkGotOn) {
  const bool classes = GetParam();
  SteadyClock clock;
  testing::Results results;
  Options options{
      .page_cache = page_size * 4, .io_cache = mib(1), .workspace = mib(1), .exec_threads = 1, .queue = 64};
  if (classes) options.classes = device::ClassStreams{.units = 1, .best_effort = 1};
  auto made = make_worker(options, clock, results);
  ASSERT_TRUE(made) << made.error().message;
  Worker& worker = **made;
  const auto engine = engine::make_cpu_engine({.threads = 1});
  const auto compiled =
      engine->compile(engine::testing::MadeModel([](std::int64_t batch) { return chain(batch, 48, 1); }),
                      {.batch_sizes = {1}});
  ASSERT_TRUE(compiled) << compiled.error().message;
  ASSERT_TRUE(worker.add_model({0}, *compiled));
  const auto moved = [&] {
    std::vector<Lane> out;
    for (const Lane lane : all_lanes)
      if (worker.slowness(lane).moved) out.push_back(lane);
    return out;
  };
  EXPECT_EQ(moved(), std::vector<Lane>{});
  ASSERT_TRUE(worker.submit(LoadCommand{.id = {1}, .model = {0}, .window = at_any_time}));
  ASSERT_EQ(results.wait({1}).status, ActionStatus::success);
  EXPECT_EQ(moved(), std::vector<Lane>{Lane::load});
  std::uint64_t id = 1;
  for (const auto& [cls, lane] :
       {std::pair{Class::normal, Lane::exec}, std::pair{Class::real_time, Lane::real_time},
        std::pair{Class::best_effort, Lane::best_effort}}) {
    Row row(48, id);
    ASSERT_TRUE(worker.submit(row.command(++id, {0}, cls)));
    ASSERT_EQ(results.wait({id}).status, ActionStatus::success);
    // One stream alone is for all.
    EXPECT_EQ(moved(), classes ? std::vector<Lane>{lane}
                               : (std::vector<Lane>{Lane::exec, Lane::real_time, Lane::best_effort}));
    EXPECT_EQ(moved(), std::vector<Lane>{});
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, Slowness, ::testing::Bool(),
                         [](const auto& by) { return by.param ? "by_class" : "one"; });

}  // namespace
}  // namespace carillon::worker
