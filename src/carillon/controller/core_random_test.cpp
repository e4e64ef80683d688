#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/controller/core.h"
#include "carillon/controller/testing/audit.h"
#include "carillon/controller/testing/fakes.h"

// Random calls, cancellations, refusals, failures, full workers, devices that go and come back, and stops,
// against what must always hold: one answer a call, buffers given away only when nobody uses them, right
// data, and nothing left at the end.
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
  static constexpr std::uint32_t devices = 3;
  std::string_view name() const override { return "whimsical"; }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override {
    hear(event, now);
    whim(now, out);
    return wake_;
  }

 private:
  void hear(const Event& event, TimePoint now) {
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
      if (done->status != ActionStatus::success) take_back(found->second);
      flying_.erase(found);
    } else if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
      EXPECT_NE(alive_[change->device.index()], change->alive);
      alive_[change->device.index()] = change->alive;
      const bool had_any = ground(change->device);
      EXPECT_FALSE(change->alive && had_any);
    } else if (std::holds_alternative<schedule::Wake>(event)) {
      wake_ = TimePoint::max();
    }
  }
  struct Flight {
    DeviceId device;
    std::vector<Request> batch;
  };
  void take_back(const Flight& flight) {
    for (const Request& request : flight.batch)
      if (!cancelled_.contains(request.id)) waiting_.push_back(request);
  }

  // What was on its way there comes back; whether anything was.
  bool ground(DeviceId device) {
    const std::size_t before = flying_.size();
    for (auto flight = flying_.begin(); flight != flying_.end();) {
      if (flight->second.device != device) {
        ++flight;
        continue;
      }
      take_back(flight->second);
      flight = flying_.erase(flight);
    }
    return flying_.size() < before;
  }

  void whim(TimePoint now, Actions& out) {
    const DeviceId device{static_cast<std::uint32_t>(random_.below(devices))};
    if (!alive_[device.index()]) return;
    while (random_.below(3) == 0) {
      const auto what = random_.below(16);
      switch (what < 13 ? what % 4 : what - 9) {
        case 4:
          if (random_.below(30) != 0) break;
          out.push_back(schedule::GiveUp{device});
          alive_[device.index()] = false;
          ground(device);
          return;
        case 5:
          if (waiting_.empty()) break;
          kept_[waiting_.front().id] = waiting_.front().model;
          out.push_back(schedule::Keep{waiting_.front().id});
          break;
        case 6: {
          if (kept_.empty()) break;
          const auto& [request, model] =
              *std::next(kept_.begin(), static_cast<std::ptrdiff_t>(random_.below(kept_.size())));
          if (random_.below(4) == 0) {
            out.push_back(schedule::Keep{request, false});
            kept_.erase(request);
            break;
          }
          flying_[{next_}].device = device;
          out.push_back(schedule::Profile{.id = {next_++},
                                          .device = device,
                                          .model = model,
                                          .request = request,
                                          .window = {now, now},
                                          .expected = 1ms});
          break;
        }
        case 0:
          wake_ = now + Duration{static_cast<std::int64_t>(random_.below(2'000'000))};
          break;
        case 1:
          flying_[{next_}].device = device;
          out.push_back(schedule::Load{{next_++}, device, {0}, {now, now}, 1ms});
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
                                .device = device,
                                .model = {},
                                .requests = {},
                                .window = {now, now},
                                .expected = 1ms};
          flying_[infer.id].device = device;
          auto& batch = flying_[infer.id].batch;
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
  TimePoint wake_ = TimePoint::max();
  std::deque<Request> waiting_;
  std::map<ActionId, Flight> flying_;
  std::map<RequestId, ModelId> kept_;  // or not: perhaps they were never answered
  bool alive_[devices] = {};
  std::set<RequestId> seen_, cancelled_;
  std::uint64_t next_ = 0;
};

struct Tally {
  int on_time = 0, refused = 0, cancelled = 0, failed = 0, without_buffers = 0, losses = 0, invalid = 0;
};

Tally run(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  constexpr std::uint32_t devices = WhimsicalScheduler::devices;
  std::array<HeldWorker, devices> workers;
  const auto somebody_uses = [&](const InferCall& call) {
    return std::ranges::any_of(workers, [&](const HeldWorker& worker) { return worker.uses(call); });
  };
  schedule::testing::Findings found;
  std::size_t audits = 0;
  decltype(CoreOptions::audit) audit;
  if (seed % 16 == 0)
    audit = [&audits, into = testing::audit_into(found)](const auto&... what) {
      ++audits;
      into(what...);
    };
  Core core(
      std::make_unique<WhimsicalScheduler>(random.split()),
      {.max_open = 64, .timeline = 16, .journal = std::make_shared<Journal>(64, Duration{}), .audit = audit});
  for (std::uint32_t i = 0; i < devices; ++i) {
    workers[i].device = {i};
    core.add_device(workers[i]);
  }
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
          EXPECT_FALSE(answer.call != nullptr && somebody_uses(*answer.call));
          if (answer.call == nullptr) ++tally.without_buffers;
          if (answer.status) {
            ++tally.on_time;
            ASSERT_NE(answer.call, nullptr);
            EXPECT_TRUE(testing::is_right(*answer.call));
            return;
          }
          switch (answer.status.error().code) {
            case ErrorCode::deadline_exceeded:
            case ErrorCode::resource_exhausted:
              ++tally.refused;
              return;
            case ErrorCode::cancelled:
              ++tally.cancelled;
              return;
            case ErrorCode::unavailable:
              ++tally.failed;
              return;
            case ErrorCode::invalid_argument:
              ++tally.invalid;
              return;
            default:
              ADD_FAILURE() << answer.status.error().message;
          }
        },
        now);
  };
  const auto end_one = [&](HeldWorker& worker) {
    if (worker.held.empty()) return;
    auto at = worker.held.begin();
    std::advance(at, random.below(worker.held.size()));
    const ActionStatus status =
        random.below(3) != 0 ? ActionStatus::success : static_cast<ActionStatus>(random.below(5));
    const int batch = at->second.kind == schedule::ActionKind::infer ? at->second.infer.batch : 0;
    worker::ActionResult result = worker.end(at->first, status, now);
    for (int row = 0; row < batch && status == ActionStatus::success; ++row)
      if (random.below(8) == 0) result.bad_rows.push_back({row, {ErrorCode::invalid_argument, "bad"}});
    core.on_result(result, now);
  };
  const auto lose_or_mend = [&](HeldWorker& worker) {
    if (!core.device_alive(worker.device)) {
      Result<> found;
      if (random.below(2) == 0) found = fail(ErrorCode::unavailable, "not yet");
      return core.on_probe({std::move(found), worker.life, worker.device}, now);
    }
    // Some results are on their way when it goes.
    std::vector<worker::ActionResult> late;
    while (!worker.held.empty() && random.below(3) == 0)
      late.push_back(worker.end(worker.held.begin()->first, ActionStatus::success, now));
    worker::ActionResult last{.status = ActionStatus::failed, .error = "broken", .device_lost = true};
    last.life = worker.life;
    last.device = worker.device;
    core.on_result(last, now);
    EXPECT_TRUE(worker.held.empty());
    for (const worker::ActionResult& result : late) core.on_result(result, now);
    ++tally.losses;
  };
  const std::uint64_t steps = 50 + random.below(400);
  for (std::uint64_t step = 0; step < steps; ++step) {
    now += Duration{static_cast<std::int64_t>(random.below(500'000))};
    HeldWorker& worker = workers[random.below(devices)];
    worker.full = random.below(10) == 0;
    if (random.below(20) == 0) lose_or_mend(worker);
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
        end_one(worker);
    }
    EXPECT_LE(core.open_rows(), 64U);
  }
  EXPECT_TRUE(found.all().empty()) << found.text();
  EXPECT_EQ(audits > 0, seed % 16 == 0);
  core.stop(now);
  submit();
  for (const auto& [ticket, count] : answers) EXPECT_EQ(count, 1) << "ticket " << ticket;
  EXPECT_EQ(core.open_calls(), 0U);
  for (HeldWorker& worker : workers)
    while (!worker.held.empty()) end_one(worker);
  EXPECT_EQ(core.open_rows(), 0U);
  EXPECT_EQ(core.actions_in_flight(), 0U);
  const ServerStatistics book = core.book().snapshot();
  std::uint64_t counted = 0;
  for (const ModelStatistics& of : book.models)
    counted += of.on_time + of.late + of.refused + of.cancelled + of.failed;
  EXPECT_EQ(counted, tickets);
  for (const ModelStatistics& of : book.models) EXPECT_EQ(of.waiting, 0U);
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
    all.losses += one.losses;
    all.invalid += one.invalid;
    if (::testing::Test::HasFailure()) return;
  }
  // The runs reach what they are meant to reach.
  EXPECT_GT(all.on_time, 1000);
  EXPECT_GT(all.refused, 1000);
  EXPECT_GT(all.cancelled, 1000);
  EXPECT_GT(all.failed, 1000);
  EXPECT_GT(all.without_buffers, 1000);
  EXPECT_GT(all.losses, 1000);
  EXPECT_GT(all.invalid, 1000);
}

}  // namespace
}  // namespace carillon::controller
