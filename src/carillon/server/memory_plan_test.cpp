#include "carillon/server/memory_plan.h"

#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A CPU of two cores: streams for normal and real-time requests, and two for best effort.
constexpr HostShare cpu{.caches = 1, .tensors = 1, .streams = 4};
constexpr HostShare gpu{.tensors = 1};

MemoryWanted wanted(Bytes bound) {
  return {.bound = bound,
          .named = "--memory " + std::to_string(bound.count >> 20) + "MiB",
          .cores = 2,
          .devices = {cpu}};
}

Bytes sum_of(const MemoryPlan& plan) {
  return plan.libraries + plan.page_caches + plan.io_caches + plan.workspaces + plan.sizes + plan.inflight +
         plan.grpc + plan.models;
}

TEST(DoorSizes, FollowTheRoomThatThereIs) {
  const struct {
    Bytes room, body, inflight;
  } rows[] = {{gib(64), mib(256), gib(1)},
              {mib(364), mib(100), mib(200)},
              {mib(80), mib(16), mib(32)},
              {mib(10), mib(8), mib(16)}};
  for (const auto& [room, body, inflight] : rows) {
    const auto sizes = size_doors(room, {}, {});
    ASSERT_TRUE(sizes) << sizes.error().message;
    EXPECT_EQ(sizes->inflight, inflight) << to_text(room);
    EXPECT_EQ(sizes->body, body) << to_text(room);
    if (inflight > least_inflight) {
      EXPECT_LE(sizes->inflight + grpc_buffers(sizes->inflight, sizes->body), room);
    }
  }
  const auto large_body = size_doors(mib(300), {}, mib(300));
  ASSERT_TRUE(large_body);
  EXPECT_EQ(large_body->inflight, mib(300));
  const auto little = size_doors(gib(8), mib(64), {});
  ASSERT_TRUE(little);
  EXPECT_EQ(little->body, mib(32));
  const auto reversed = size_doors(gib(8), gib(1), gib(2));
  ASSERT_FALSE(reversed);
  EXPECT_THAT(reversed.error().message, HasSubstr("could never be read"));
}

TEST(MemoryPlan, LargeMachinesHaveWhatIsUsual) {
  const auto plan = plan_memory(wanted(gib(64)));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->page_cache, gib(2));
  EXPECT_EQ(plan->io_cache, mib(256));
  EXPECT_EQ(plan->workspace, mib(512));
  EXPECT_EQ(plan->inflight, gib(1));
  EXPECT_EQ(plan->body, mib(256));
  EXPECT_EQ(plan->grpc, mib(512 + 64));
  EXPECT_EQ(sum_of(*plan), gib(64));
  EXPECT_GT(plan->models, gib(50));
}

TEST(MemoryPlan, ASmallBoundServesASmallModel) {
  const auto plan = plan_memory(wanted(mib(256)));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->page_cache, page_size);
  EXPECT_GE(plan->io_cache, mib(2));
  EXPECT_GE(plan->workspace, mib(2));
  EXPECT_GE(plan->inflight, least_inflight);
  EXPECT_GE(plan->models, mib(16));
  EXPECT_EQ(sum_of(*plan), mib(256));
}

TEST(MemoryPlan, WhatIsGivenStays) {
  MemoryWanted given = wanted(gib(1));
  given.page_cache = mib(64);
  given.io_cache = mib(16);
  given.workspace = mib(32);
  given.sizes = mib(10);
  given.inflight = mib(100);
  const auto plan = plan_memory(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->page_cache, mib(64));
  EXPECT_EQ(plan->io_cache, mib(16));
  EXPECT_EQ(plan->workspaces, mib(128));
  EXPECT_EQ(plan->sizes, mib(10));
  EXPECT_EQ(plan->inflight, mib(100));
  EXPECT_EQ(plan->body, mib(50));
  EXPECT_EQ(plan->grpc, mib(50 + 64));
  EXPECT_EQ(plan->models, gib(1) - mib(136 + 64 + 16 + 128 + 10 + 100 + 114));
}

TEST(MemoryPlan, NamesEachPartThatIsTooMuch) {
  MemoryWanted given = wanted(mib(512));
  given.page_cache = mib(300);
  given.workspace = mib(100);
  const auto plan = plan_memory(given);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::resource_exhausted);
  EXPECT_THAT(
      plan.error().message,
      AllOf(HasSubstr("--memory 512MiB is too small: at least 888MiB"),
            HasSubstr("libraries and threads 136.0 MiB"), HasSubstr("--page-cache 300.0 MiB"),
            HasSubstr("--io-cache at least 2.0 MiB"), HasSubstr("--workspace 400.0 MiB (4 of 100.0 MiB)"),
            HasSubstr("--inflight-limit"), HasSubstr("models at least 8.0 MiB")));
}

TEST(MemoryPlan, TooLittleIsRefusedWithWhatWouldDo) {
  const auto plan = plan_memory(wanted(mib(64)));
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message, HasSubstr("--memory 64MiB is too small: at least 212MiB"));
  EXPECT_TRUE(plan_memory(wanted(mib(212))));
  EXPECT_FALSE(plan_memory(wanted(mib(211))));
}

TEST(MemoryPlan, ABodyThatIsGivenHasRoom) {
  MemoryWanted given = wanted(gib(2));
  given.body = mib(300);
  const auto plan = plan_memory(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->inflight, mib(300));
  EXPECT_EQ(plan->body, mib(300));
  EXPECT_GE(plan->grpc, mib(300));
  given.inflight = mib(200);
  const auto never = plan_memory(given);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(never.error().message, HasSubstr("could never be read"));
}

TEST(MemoryPlan, GpusHaveAMirrorOfTheirTensorsHere) {
  MemoryWanted given = wanted(gib(4));
  given.devices = {gpu, gpu, gpu};
  given.page_cache = gib(60);  // of each GPU's own memory
  given.workspace = gib(1);
  given.io_cache = mib(512);
  const auto plan = plan_memory(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->io_caches, mib(std::uint64_t{3} * 512));
  EXPECT_EQ(plan->page_caches, Bytes{});
  EXPECT_EQ(plan->workspaces, Bytes{});
}

TEST(MemoryPlan, WithoutRequestsThereIsNoRoomForThem) {
  MemoryWanted given = wanted(gib(1));
  given.serves = false;
  const auto plan = plan_memory(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->inflight + plan->grpc + plan->sizes, Bytes{});
  EXPECT_GT(plan->page_cache, mib(400));
}

TEST(MemoryPlan, ModelsThatAreKnownHaveRoom) {
  MemoryWanted given = wanted(mib(512));
  given.largest_weights = mib(100);
  given.known_models = mib(150);
  given.all_weights = mib(100);
  const auto plan = plan_memory(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->page_cache, mib(112));
  EXPECT_GE(plan->models, mib(150));
  // Where they cannot fit, those that do can still be served.
  given.known_models = given.largest_weights = gib(10);
  given.all_weights = {};
  const auto little = plan_memory(given), plain = plan_memory(wanted(mib(512)));
  ASSERT_TRUE(little && plain);
  EXPECT_GT(little->models, plain->models);
  EXPECT_GE(little->page_cache, mib(32));
}

TEST(MemoryPlan, TellsTheBoundThatWouldDo) {
  // Of models that are known it is little more than they take; of others, they have their share of it.
  MemoryWanted known = wanted(mib(256));
  known.known_models = mib(200);
  known.largest_weights = mib(100);
  const Bytes least = least_bound(known, {.memory = mib(200), .weights = mib(100)});
  EXPECT_GT(least, mib(136 + 200 + 112));
  EXPECT_LE(least, mib(136 + 200 + 112 + 128)) << "beside least sizes, as other parts have shares, too";
  const Bytes unknown = least_bound(wanted(mib(256)), {.memory = mib(200), .weights = mib(100)});
  EXPECT_GT(unknown, least);
  for (MemoryWanted more : {known, wanted({})}) {
    more.bound = more.known_models > Bytes{} ? least : unknown;
    const auto plan = plan_memory(more);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_GE(plan->models, mib(200));
    EXPECT_GE(plan->page_cache, mib(100));
  }
}

// Weights of 300 MiB that stay in memory: measuring takes them once more, and what a run works in.
TEST(MemoryPlan, TheBoundThatWouldDoHasRoomToMeasure) {
  MemoryWanted known = wanted(mib(256));
  known.largest_weights = mib(300);
  known.known_models = known.known_measured = mib(601);
  known.bound = least_bound(known, {.memory = mib(600), .weights = mib(300)});
  const auto plan = plan_memory(known);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->models, mib(601) + plan->workspace + plan->io_cache);
  EXPECT_GE(plan->page_cache, mib(300));
  // Once it is made, that is known, and less will do.
  const Bytes before = std::exchange(known.bound, mib(256));
  const Bytes least =
      least_bound(known, {.memory = mib(600), .weights = mib(300), .workspace = mib(1), .tensors = mib(1)});
  EXPECT_LT(least, before);
  known.bound = least;
  EXPECT_GE(plan_memory(known)->models, mib(603));
}

TEST(MemoryPlan, TheBoundThatWouldDoHasRoomForMoreThanFilesTold) {
  MemoryWanted known = wanted(mib(256));
  known.all_weights = mib(16);
  const Bytes least = least_bound(known, {.memory = mib(20), .weights = mib(100)});
  EXPECT_GT(least, mib(256));
  EXPECT_LT(least, gib(2));
}

TEST(MemoryPlan, WhereAPartHasItsMostNoBoundWouldDo) {
  EXPECT_EQ(least_bound(wanted(mib(256)), {.memory = mib(20), .weights = gib(3)}), Bytes{});
  EXPECT_EQ(least_bound(wanted(mib(256)), {.memory = mib(20), .workspace = gib(1)}), Bytes{});
}

TEST(MemoryPlan, ASmallContainerStartsOnAMachineOfManyCores) {
  MemoryWanted given = wanted(mib(480));  // of 512 MiB, without the kernel's part
  given.cores = 128;
  const auto plan = plan_memory(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->libraries, mib(256));
  EXPECT_GE(plan->models, mib(8));
}

TEST(MemoryPlan, PartsAreNeverMoreThanTheBound) {
  Random random(7);
  const auto maybe = [&](std::uint64_t most) {
    return random.below(2) == 0 ? std::optional<Bytes>() : std::optional(Bytes{random.below(most)});
  };
  int made = 0;
  for (int i = 0; i < 3000; ++i) {
    MemoryWanted given = wanted(Bytes{random.below(gib(4).count)});
    given.cores = 1 + static_cast<unsigned>(random.below(64));
    given.devices = {HostShare{.caches = static_cast<unsigned>(random.below(2)),
                               .tensors = static_cast<unsigned>(random.below(3)),
                               .streams = static_cast<unsigned>(random.below(10))}};
    given.page_cache = maybe(gib(1).count);
    given.io_cache = maybe(gib(1).count);
    given.workspace = maybe(mib(100).count);
    given.sizes = maybe(mib(100).count);
    given.inflight = maybe(gib(1).count);
    given.largest_weights = Bytes{random.below(gib(1).count)};
    given.known_models = Bytes{random.below(gib(1).count)};
    const auto plan = plan_memory(given);
    if (!plan) continue;
    ++made;
    EXPECT_EQ(sum_of(*plan), given.bound);
    if (given.inflight) {
      EXPECT_EQ(plan->inflight, *given.inflight);
    }
    if (given.page_cache) {
      EXPECT_EQ(plan->page_cache, *given.page_cache);
    }
  }
  EXPECT_GT(made, 300);
}

}  // namespace
}  // namespace carillon::server
