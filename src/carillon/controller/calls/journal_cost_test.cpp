// A program of its own: it counts every operator new of the process.

#include <cstdint>

#include <gtest/gtest.h>

#include "carillon/base/testing/counted_new.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/testing/fakes.h"

namespace carillon::controller {
namespace {

constexpr int batch = 4;

// Runs every four requests as one batch, and refuses every fifth four.
class Four final : public schedule::Scheduler {
 public:
  std::string_view name() const override { return "four"; }
  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    const auto* arrived = std::get_if<schedule::RequestArrived>(&event);
    if (arrived == nullptr) return TimePoint::max();
    const std::uint64_t place = arrived->request.id.value;
    if (place / batch % 5 == 4) {
      out.push_back(schedule::Refuse{.request = arrived->request.id,
                                     .reason = schedule::Reason::cannot_finish,
                                     .would_finish = now + 9ms});
    } else if (place % batch == batch - 1) {
      schedule::Infer infer{
          .id = {++last}, .device = {0}, .model = {0}, .window = {now, now + 1ms}, .expected = 2ms};
      for (std::uint64_t i = place + 1 - batch; i <= place; ++i) infer.requests.push_back({i});
      out.push_back(std::move(infer));
    }
    return TimePoint::max();
  }
  std::uint64_t last = 0;
};

// What `requests` requests allocate in the core, beyond what they do without a journal if there is one.
std::uint64_t allocations_of(int requests, std::shared_ptr<Journal> journal) {
  testing::HeldWorker worker;
  auto owned = std::make_unique<Four>();
  const Four& four = *owned;
  Core core(std::move(owned), {.journal = std::move(journal)});
  core.add_device(worker);
  core.add_model(testing::served(0));
  core.start(TimePoint{});
  std::uint64_t out = 0;
  std::uint64_t answers = 0;
  std::uint64_t ended = 0;
  for (int i = 0; i < requests; ++i) {
    const TimePoint now{i * 1ms};
    auto call = testing::call_of({0}, 1, now, now + 8ms, 10, worker.row_bytes);
    call->id = "an id that is longer than a short string is";
    call->key = call->application = "another text that is as long as that one is";
    allocations = 0;
    counting = true;
    core.submit(
        static_cast<std::uint64_t>(i) + 1, std::move(call), [&](InferAnswer) { ++answers; }, now);
    counting = false;
    out += allocations;
    if (four.last == ended) continue;
    const worker::ActionResult result = worker.end({++ended}, schedule::ActionStatus::success, now, 1ms);
    allocations = 0;
    counting = true;
    core.on_result(result, now);
    counting = false;
    out += allocations;
  }
  EXPECT_EQ(answers, static_cast<std::uint64_t>(requests));
  return out;
}

TEST(JournalCost, NothingIsAllocatedForIt) {
  constexpr int requests = 2000;
  const std::uint64_t without = allocations_of(requests, nullptr);
  EXPECT_EQ(allocations_of(requests, std::make_shared<Journal>(100, Duration{0})), without);
}

// For callgrind: the difference of two runs is what the journal costs (docs/benchmarks.md).
TEST(JournalCost, DISABLED_RunWithout) {
  allocations_of(50'000, nullptr);
}
TEST(JournalCost, DISABLED_RunWith) {
  allocations_of(50'000, std::make_shared<Journal>(10'000, Duration{0}));
}

}  // namespace
}  // namespace carillon::controller
