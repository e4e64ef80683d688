#include <deque>
#include <set>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/controller/core.h"
#include "carillon/controller/testing/fakes.h"

// Random calls, cancellations, refusals, failures, full workers and stops, against what must always hold: one
// answer a call, buffers given away only when nobody uses them, right data, and nothing left at the end.
namespace carillon::controller {
namespace {

using schedule::Actions;
using schedule::ActionStatus;
using schedule::Event;
using testing::HeldWorker;

// Keeps the contract of a scheduler, and is as whimsical as it allows.
class WhimsicalScheduler final : public schedule::Scheduler {
 public:
  explicit WhimsicalScheduler(Random random) : random_(random) {}
  std::string_view name() const override { return "whimsical"; }
  void add_model(const schedule::ModelInfo&) override {}
  Duration predicted_exec(DeviceId, ModelId, int) const override { return 1ms; }

  void decide(const Event& event, TimePoint now, Actions& out) override {
    if (const auto* arrived = std::get_if<schedule::RequestArrived>(&event)) {
      EXPECT_TRUE(seen_.insert(arrived->request.id).second) << "an id comes once";
      EXPECT_LE(arrived->request.arrival, now);
      waiting_.push_back(arrived->request);
    } else if (const auto* cancelled = std::get_if<schedule::RequestCancelled>(&event)) {
      EXPECT_TRUE(seen_.contains(cancelled->request));
      std::erase_if(waiting_, [&](const Request& r) { return r.id == cancelled->request; });
      cancelled_.insert(cancelled->request);
    } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
      const auto found = flying_.find(done->id);
      ASSERT_NE(found, flying_.end()) << "an action ends once";
      if (done->status != ActionStatus::success)
        for (const Request& request : found->second)
          if (!cancelled_.contains(request.id)) waiting_.push_back(request);
      flying_.erase(found);
    }
    whim(now, out);
  }

 private:
  void whim(TimePoint now, Actions& out) {
    while (random_.below(3) == 0) {
      switch (random_.below(4)) {
        case 0:
          out.push_back(
              schedule::WakeAt{now + Duration{static_cast<std::int64_t>(random_.below(2'000'000))}});
          break;
        case 1:
          flying_[{next_}];
          out.push_back(schedule::Load{{next_++}, {0}, {0}, {now, now}, 1ms});
          break;
        case 2:
          if (waiting_.empty()) break;
          {
            const std::size_t which = random_.below(waiting_.size());
            out.push_back(schedule::Refuse{waiting_[which].id, schedule::Reason::deadline_passed, now + 5ms});
            waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(which));
          }
          break;
        case 3: {
          schedule::Infer infer{.id = {next_},
                                .device = {0},
                                .model = {},
                                .requests = {},
                                .window = {now, now},
                                .expected = 1ms};
          auto& batch = flying_[infer.id];
          const std::size_t size = 1 + random_.below(4);
          while (batch.size() < size && !waiting_.empty()) {
            const std::size_t which = random_.below(waiting_.size());
            if (!batch.empty() && waiting_[which].model != infer.model) break;
            infer.model = waiting_[which].model;
            infer.requests.push_back(waiting_[which].id);
            batch.push_back(waiting_[which]);
            waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(which));
          }
          if (batch.empty()) {
            flying_.erase(infer.id);
            break;
          }
          ++next_;
          out.push_back(std::move(infer));
          break;
        }
      }
    }
  }

  Random random_;
  std::deque<Request> waiting_;
  std::map<ActionId, std::vector<Request>> flying_;
  std::set<RequestId> seen_, cancelled_;
  std::uint64_t next_ = 0;
};

struct Tally {
  int on_time = 0, refused = 0, cancelled = 0, failed = 0, without_buffers = 0;
};

Tally run(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  HeldWorker worker;
  Core core(std::make_unique<WhimsicalScheduler>(random.split()), {.max_open = 64});
  core.add_device(worker);
  core.add_model(testing::served(0));
  core.add_model(testing::served(1));
  TimePoint now{};
  core.start(now);
  Tally tally;
  std::map<std::uint64_t, int> answers;
  std::uint64_t tickets = 0;
  const auto submit = [&] {
    const std::uint64_t ticket = ++tickets;
    answers[ticket] = 0;
    auto call =
        testing::call_of({static_cast<std::uint32_t>(random.below(2))}, 1 + static_cast<int>(random.below(6)),
                         now, now + 1h, static_cast<unsigned>(random.below(200)));
    core.submit(
        ticket, std::move(call),
        [&, ticket](InferAnswer answer) {
          EXPECT_EQ(++answers[ticket], 1) << "ticket " << ticket;
          EXPECT_FALSE(answer.call != nullptr && worker.uses(*answer.call));
          if (answer.call == nullptr) ++tally.without_buffers;
          if (answer.status) {
            ++tally.on_time;
            ASSERT_NE(answer.call, nullptr);
            EXPECT_TRUE(testing::is_right(*answer.call));
            return;
          }
          switch (answer.status.error().code) {
            case ErrorCode::deadline_exceeded:
              ++tally.refused;
              return;
            case ErrorCode::cancelled:
              ++tally.cancelled;
              return;
            case ErrorCode::unavailable:
              ++tally.failed;
              return;
            default:
              ADD_FAILURE() << answer.status.error().message;
          }
        },
        now);
  };
  const auto end_one = [&] {
    if (worker.held.empty()) return;
    auto at = worker.held.begin();
    std::advance(at, random.below(worker.held.size()));
    const ActionStatus status =
        random.below(3) != 0 ? ActionStatus::success : static_cast<ActionStatus>(random.below(5));
    core.on_result(worker.end(at->first, status, now), now);
  };
  const std::uint64_t steps = 50 + random.below(400);
  for (std::uint64_t step = 0; step < steps; ++step) {
    now += Duration{static_cast<std::int64_t>(random.below(500'000))};
    worker.full = random.below(10) == 0;
    switch (random.below(6)) {
      case 0:
      case 1:
        submit();
        break;
      case 2:
        core.cancel(1 + random.below(tickets + 2), now);
        break;
      case 3:
        if (core.wake_at() <= now) core.wake(now);
        break;
      default:
        end_one();
    }
    EXPECT_LE(core.open_rows(), 64U);
  }
  core.stop(now);
  submit();
  for (const auto& [ticket, count] : answers) EXPECT_EQ(count, 1) << "ticket " << ticket;
  EXPECT_EQ(core.open_calls(), 0U);
  while (!worker.held.empty()) end_one();
  EXPECT_EQ(core.open_rows(), 0U);
  EXPECT_EQ(core.actions_in_flight(), 0U);
  const ServerStatistics book = core.book().snapshot();
  std::uint64_t counted = 0;
  for (const ModelStatistics& of : book.models)
    counted += of.on_time + of.late + of.refused + of.cancelled + of.failed;
  EXPECT_EQ(counted, tickets);
  return tally;
}

TEST(CoreRandom, EveryCallGetsExactlyOneAnswer) {
  Tally all;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    const Tally one = run(seed);
    all.on_time += one.on_time;
    all.refused += one.refused;
    all.cancelled += one.cancelled;
    all.failed += one.failed;
    all.without_buffers += one.without_buffers;
    if (::testing::Test::HasFailure()) return;
  }
  // The runs reach what they are meant to reach.
  EXPECT_GT(all.on_time, 1000);
  EXPECT_GT(all.refused, 1000);
  EXPECT_GT(all.cancelled, 1000);
  EXPECT_GT(all.failed, 1000);
  EXPECT_GT(all.without_buffers, 1000);
}

}  // namespace
}  // namespace carillon::controller
