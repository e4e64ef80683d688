#include "carillon/engine/cpu/team.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <dnnl.hpp>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace carillon::engine::cpu {
namespace {

TEST(CpuTeam, WithoutHelpersRunsOnTheCallingThreadAlone) {
  CpuTeam team({.threads = 1});
  EXPECT_EQ(team.width(), 1);
  std::set<std::thread::id> threads;
  team.run(team.arena(8),
           [&] { in_parts(100, [&](std::int64_t) { threads.insert(std::this_thread::get_id()); }); });
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

TEST(CpuTeam, AnArenaSaysHowManyPartsThereAre) {
  CpuTeam team({.threads = 2});
  for (const int parts : {1, 2, 7, 512}) {
    Arena& arena = team.arena(parts);
    EXPECT_EQ(arena.parts(), parts);
    EXPECT_EQ(&team.arena(parts), &arena);
    int told = 0;
    team.run(arena, [&] { told = tbb::this_task_arena::max_concurrency(); });
    EXPECT_EQ(told, parts);
  }
}

// Each of the parts waits for the others, so that each must have a thread of its own.
TEST(CpuTeam, HelpersTakeParts) {
  constexpr int threads = 3;
  CpuTeam team({.threads = threads});
  for (const int parts : {3, 8})
    for (int round = 0; round < 20; ++round) {
      std::latch together(threads);
      team.run(team.arena(parts),
               [&] { in_parts(threads, [&](std::int64_t) { together.arrive_and_wait(); }); });
    }
}

TEST(CpuTeam, NobodyIsInsideAnyMoreWhenARunHasReturned) {
  CpuTeam team({.threads = 3});
  std::atomic<int> inside{0};
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> ran{0};
    team.run(team.arena(round % 2 == 0 ? 4 : 16), [&] {
      in_parts(16, [&](std::int64_t) {
        inside.fetch_add(1);
        ran.fetch_add(1);
        inside.fetch_sub(1);
      });
    });
    ASSERT_EQ(inside.load(), 0);
    ASSERT_EQ(ran.load(), 16);
  }
}

TEST(CpuTeam, PartsThatHaveNotBegunAreLeftOutOnceTheRunIsCancelled) {
  for (const int threads : {1, 2}) {
    CpuTeam team({.threads = threads});
    tbb::task_group_context context(tbb::task_group_context::isolated);
    std::atomic<int> begun{0}, ended{0};
    team.run(team.arena(64), [&] {
      tbb::parallel_for(
          0, 1,
          [&](int) {
            in_parts(64, [&](std::int64_t) {
              if (begun.fetch_add(1) == 9) context.cancel_group_execution();
              ended.fetch_add(1);
            });
          },
          tbb::simple_partitioner{}, context);
    });
    EXPECT_GE(begun.load(), 10);
    EXPECT_LT(begun.load(), 10 + threads) << "a part that has begun ends, no other begins";
    EXPECT_EQ(begun.load(), ended.load());
  }
}

TEST(CpuTeam, FlushesDenormalsInAllParts) {
  CpuTeam team({.threads = 3});
  std::atomic<int> kept{0};
  team.run(team.arena(32), [&] {
    in_parts(32, [&](std::int64_t) {
      volatile float small = 1e-38F;
      small = small * 0.01F;
      if (small != 0) kept.fetch_add(1);
    });
  });
  EXPECT_EQ(kept.load(), 0);
}

// Of an arena with far more slots than threads: what TBB's static partitioner would leave in the mailboxes of
// the others, in oneDNN's calls and in ours, would be 60 MB here.
TEST(CpuTeam, PartsLeaveNoMemoryBehind) {
  constexpr int parts = 64;
  CpuTeam team({.threads = 1});
  Arena& arena = team.arena(parts);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  std::vector<float> values(static_cast<std::size_t>(parts) * 64);
  const dnnl::memory::desc desc({static_cast<std::int64_t>(values.size())}, dnnl::memory::data_type::f32,
                                dnnl::memory::format_tag::a);
  const dnnl::memory memory(desc, engine, values.data());
  dnnl::primitive primitive;
  arena.execute([&] {
    primitive = dnnl::eltwise_forward(dnnl::eltwise_forward::primitive_desc(
        engine, dnnl::prop_kind::forward_inference, dnnl::algorithm::eltwise_abs, desc, desc));
  });
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    std::uint64_t size = 0, pages = 0;
    file >> size >> pages;
    return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  };
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i)
      team.run(arena, [&] {
        in_parts(parts, [](std::int64_t) {});
        primitive.execute(stream, {{DNNL_ARG_SRC, memory}, {DNNL_ARG_DST, memory}});
      });
  };
  run(100);
  const std::uint64_t before = resident();
  run(2000);
  EXPECT_LT(resident(), before + (8U << 20U));
}

// Each part waits until as many threads are in as may be. A helper that the system suspended on its way into
// a wider run may come into this one, too, which a busy machine shows now and then.
TEST(CpuTeam, IsAsWideAsThereAreProcessors) {
  const auto processors =
      std::make_shared<UsableProcessors>(ProcessorLimits{.allowed = 3, .quota = {}, .quota_file = {}});
  CpuTeam team({.threads = 3}, processors);
  ASSERT_TRUE(team.adapts());
  for (const int there : {3, 1, 2, 8, 2, 3, 1}) {
    processors->set({.allowed = there, .quota = {}, .quota_file = {}});
    const int wide = std::min(there, 3);
    constexpr int rounds = 20;
    int beyond = 0;
    for (int round = 0; round < rounds; ++round) {
      ASSERT_EQ(team.adapt(), wide);
      ASSERT_EQ(team.most(), wide);
      std::latch together(wide);
      std::mutex mutex;
      std::set<std::thread::id> threads;
      team.run(team.arena(8), [&] {
        in_parts(8, [&](std::int64_t part) {
          {
            const std::lock_guard lock(mutex);
            threads.insert(std::this_thread::get_id());
          }
          if (part < wide) together.arrive_and_wait();
        });
      });
      ASSERT_GE(threads.size(), static_cast<std::size_t>(wide));
      if (threads.size() > static_cast<std::size_t>(wide)) ++beyond;
    }
    EXPECT_LE(beyond, 2) << "of " << wide;
  }
  EXPECT_EQ(team.width(), 3);
}

TEST(CpuTeam, WithoutProcessorsToFollowAllThreadsTakePart) {
  CpuTeam team({.threads = 2});
  EXPECT_FALSE(team.adapts());
  EXPECT_EQ(team.adapt(), 2);
}

TEST(CpuTeam, RunsOnGivenCores) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mine)) cores.push_back(core);
  CpuTeam team({.threads = 2, .cores = cores});
  const int helpers = cores[1 % cores.size()];
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> wrong{false};
  std::latch together(2);
  team.run(team.arena(2), [&] {
    in_parts(2, [&](std::int64_t) {
      together.arrive_and_wait();
      if (std::this_thread::get_id() != caller && sched_getcpu() != helpers) wrong = true;
    });
  });
  EXPECT_FALSE(wrong.load());
}

}  // namespace
}  // namespace carillon::engine::cpu
