// A program of its own: it counts every operator new of the process.

#include <cstdint>

#include <gtest/gtest.h>

#include "carillon/base/testing/counted_new.h"
#include "carillon/research/sharing/sharing.h"

namespace carillon::research {
namespace {

// Runs of both classes under every policy: launches, evictions, resumptions, ends.
TEST(SharingAllocation, NothingIsAllocatedOnThePathOfALaunch) {
  for (const auto name : sharing_names()) {
    SCOPED_TRACE(name);
    SharingOptions options;
    options.units = 8;
    options.best_effort_share = 0.1;
    auto sharing = std::move(*make_sharing(name, options));
    const auto wide =
        sharing->add_plan(KernelPlan(std::vector<KernelShape>(20, {.blocks = 30, .rounds = {9us, 12us}}), 8));
    const auto narrow =
        sharing->add_plan(KernelPlan(std::vector<KernelShape>(20, {.blocks = 3, .rounds = {9us}}), 8));
    std::vector<Queue> queues;
    for (int q = 0; q < 6; ++q)
      queues.push_back(sharing->add_queue(q < 2 ? Class::real_time : Class::best_effort, 4));
    ShareCommands out;
    out.reserve(1024);
    std::vector<int> flight(queues.size());
    std::vector<Queue> evictions;
    evictions.reserve(16);
    TimePoint now{};
    std::uint64_t runs = 0, finished = 0, evicted = 0;
    const auto note = [&] {
      for (const ShareCommand& command : out) {
        if (command.kind == ShareCommand::Kind::launch) ++flight[command.queue];
        if (command.kind == ShareCommand::Kind::evict) evictions.push_back(command.queue);
        finished += command.kind == ShareCommand::Kind::finished ? 1U : 0U;
      }
      out.clear();
    };
    counting = true;
    allocations = 0;
    for (int step = 0; step < 20'000; ++step) {
      now += 3us;
      const auto queue = static_cast<Queue>((step * 7 + step / 5) % 6);
      if (!evictions.empty()) {
        const Queue leaves = evictions.back();
        evictions.pop_back();
        flight[leaves] = 0;
        ++evicted;
        sharing->evicted(leaves, now, out);
      } else if (flight[queue] > 0) {
        --flight[queue];
        sharing->ended(queue, now, out);
      } else if (!sharing->full(queue) && (queue < 2 ? step % 700 < 6 : step % 50 < 20)) {
        sharing->submit(queue, {.run = runs++, .plan = queue % 2 == 0 ? wide : narrow, .deadline = now}, now,
                        out);
      } else {
        sharing->tick(now, out);
      }
      note();
    }
    counting = false;
    EXPECT_EQ(allocations, 0U);
    EXPECT_GT(finished, 50U);
    if (name == "reef" || name == "wait") {
      EXPECT_GT(evicted, 10U);
    }
  }
}

}  // namespace
}  // namespace carillon::research
