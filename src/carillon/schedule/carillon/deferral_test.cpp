#include "carillon/schedule/carillon/deferral.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/schedule/policy.h"

namespace carillon::schedule {
namespace {

// One model on devices that are alike, and all parts that a Deferral asks. Requests come at random, runs take
// random times, and batches wait as Lines has them wait.
class DeferralWorld {
 public:
  explicit DeferralWorld(std::uint64_t seed) : random_(seed) {
    ledger_.planned_by(environment_, true);
    const int largest = 8 + static_cast<int>(random_.below(56));
    const bool dense = random_.below(4) != 0;
    ModelInfo info{.id = model_, .name = "m", .batches = {}};
    for (int rows = 1; rows <= largest; rows = dense ? rows + 1 : 2 * rows) {
      const double ms = (5 + rows) * (0.97 + 0.06 * random_.uniform());  // a larger batch may take less
      info.batches.push_back({rows, from_ms(ms)});
    }
    hear(model_comes(info));
    for (std::uint32_t d = 0; d < devices_; ++d) hear(DeviceChanged{DeviceId{d}, true, 1});
    const BatchProfile& usual = info.batches[info.batches.size() / 3];
    slo_ = from_ns(static_cast<double>(usual.exec.count()) * (2 + random_.uniform()));
    const double each = to_seconds(usual.exec) / usual.batch;
    rate_ = (0.4 + 0.8 * random_.uniform()) * static_cast<double>(devices_) / each;
  }

  // Answers of with_more(), of which each is what a look finds.
  std::size_t run(std::size_t requests) {
    for (std::uint64_t id = 0; id < requests; ++id) {
      const TimePoint arrival = now_ + from_seconds(random_.exponential(1 / rate_));
      while (step_before(arrival)) {
      }
      now_ = arrival;
      const Duration left = from_ns(static_cast<double>(slo_.count()) * (0.9 + 0.2 * random_.uniform()));
      hear(RequestArrived{{.id = RequestId{id}, .model = model_, .arrival = now_, .deadline = now_ + left}});
      look();
    }
    return answers_;
  }

 private:
  struct Run {
    TimePoint start, end;
    ActionId id;
  };

  static Environment environment(Random& random) {
    const bool measured = random.below(2) == 0;
    return {.dispatch = from_ms(random.uniform()),
            .answer = from_ms(random.uniform()),
            .overrun = 0.1 * random.uniform(),
            .measured = measured};
  }
  // The next end of a run, or the time of the line: false where neither comes before `until`.
  bool step_before(TimePoint until) {
    const auto next = std::ranges::min_element(runs_, {}, &Run::end);
    const TimePoint end = next == runs_.end() ? TimePoint::max() : next->end;
    if (std::min(end, wake_) > until) return false;
    now_ = std::max(now_, std::min(end, wake_));
    if (end <= now_) {
      const Run run = *next;
      runs_.erase(next);
      hear(ActionDone{.id = run.id,
                      .status = ActionStatus::success,
                      .start = run.start,
                      .end = run.end,
                      .duration = run.end - run.start});
    }
    look();
    return true;
  }
  void hear(const Event& event) {
    ledger_.apply(event, now_);
    if (const auto* change = std::get_if<ModelChanged>(&event)) ledger_.plan(*change);
    Orders out = orders();
    life_.hear(event, out);
    if (const auto* arrival = std::get_if<RequestArrived>(&event))
      plan_.arrived(arrival->request, model_, now_);
    else
      plan_.hear(event, out);
    if (std::holds_alternative<ModelChanged>(event))
      for (Deferral* each : {&deferral_, &slow_}) each->renew(model_);
    if (const auto* device = std::get_if<DeviceChanged>(&event)) free_.know(device->device, 0);
  }
  // As Lines does it. But with_more() is held against what the line would be told without it.
  void look() {
    Orders out = orders();
    if (plan_.due(now_) && plan_.step(out))
      for (Deferral* each : {&deferral_, &slow_}) each->planned();
    wake_ = TimePoint::max();
    shortage_.find(devices_, now_);
    while (const auto* head = life_.waiting().head(model_, Class::normal)) {
      const std::size_t rows = life_.waiting().size(model_, Class::normal);
      shortage_.waits(line_, rows, static_cast<double>(rows) * plan_.work(model_), head->deadline, now_);
      if (deferral_.holds(line_, *head, rows, now_)) {
        wake_ = until_;
        return;
      }
      const parts::Times times = in_time_.times(Class::normal, ledger_, now_);
      const auto more = deferral_.with_more(line_, *head, rows, times, out);
      const DeviceId fastest = *free_.fastest();
      const TimePoint start = now_ + times.dispatch(fastest);
      const auto choice = batches_.first_batch(*head, times, fastest, start, ledger_, now_);
      if (!choice) {
        EXPECT_FALSE(more);
        deferral_.forget(line_);
        life_.refuse(head->id, Reason::cannot_finish, TimePoint::max(), out);
        continue;
      }
      Deferral& looks = more ? slow_ : deferral_;
      looks.forget(line_);
      const TimePoint ready = looks.starts(*head, *choice, times, start, out);
      if (more) {
        ++answers_;
        EXPECT_EQ(*more, ready);
      }
      if (ready > now_) {
        wake_ = until_ = ready;
        return;
      }
      const auto idle = std::ranges::find(ledger_.all_devices(), 0U, &ledger::Ledger::Device::runs);
      if (idle == ledger_.all_devices().end()) return;
      const DeviceId device{static_cast<std::uint32_t>(idle - ledger_.all_devices().begin())};
      send(device, *choice, out);
    }
    deferral_.lost(model_, now_);
    deferral_.forget(line_);
    shortage_.waits(line_, 0, 0, TimePoint::max(), now_);
  }
  void send(DeviceId device, const parts::Choice& choice, Orders& out) {
    deferral_.answered(model_, choice.batch.rows, now_);
    life_.refuse_before(model_, Class::normal, choice.deadline, out);
    const ActionId id{next_action_};
    out.infer(device, model_, life_.take(model_, Class::normal, choice.deadline, choice.batch.rows),
              {now_, TimePoint::max()}, choice.batch.exec, Class::normal);
    const TimePoint start = now_ + from_ms(random_.uniform());
    const double takes = static_cast<double>(choice.batch.exec.count()) * (0.9 + 0.2 * random_.uniform());
    runs_.push_back({start, start + from_ns(takes), id});
  }
  Orders orders() {
    actions_.clear();
    return {ledger_, next_action_, now_, actions_};
  }

  Random random_;
  const Environment environment_ = environment(random_);
  const bool by_chance_ = random_.below(4) != 0;
  const std::size_t devices_ = 1 + random_.below(24);
  const ModelId model_{0};
  const std::uint32_t line_ = line_of(model_, Class::normal);
  Duration slo_{0};
  double rate_ = 1;
  TimePoint now_{1s};
  TimePoint wake_ = TimePoint::max(), until_ = TimePoint::max();
  ledger::Ledger ledger_;
  Actions actions_;
  std::uint64_t next_action_ = 0;
  std::vector<Run> runs_;
  std::size_t answers_ = 0;

  const CarillonOptions options_;
  const parts::Kinds kinds_{false, false};
  parts::Life life_{environment_, true, by_chance_};
  const parts::Placing placing_;
  parts::Plan plan_{environment_};
  const parts::KeepOff keep_off_;
  parts::Shortage shortage_{plan_};
  const parts::InTime in_time_{by_chance_, plan_, shortage_};
  const parts::Fair fair_{0, 0};
  parts::Free free_;
  symphony::DeviceWaits waits_{parts::Plan::exceeded, 10s, 4};
  const View view_{.options = options_,
                   .kinds = kinds_,
                   .life = life_,
                   .placing = placing_,
                   .plan = plan_,
                   .keep_off = keep_off_,
                   .shortage = shortage_,
                   .in_time = in_time_,
                   .fair = fair_,
                   .free = free_,
                   .waits = waits_};
  const Batches batches_{view_};
  Deferral deferral_{view_, environment_, batches_, waits_}, slow_{view_, environment_, batches_, waits_};
};

TEST(Deferral, MoreRequestsAreAnsweredAsALookWouldAnswer) {
  std::size_t answers = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    answers += DeferralWorld(seed).run(4000);
  }
  EXPECT_GT(answers, 3000U);
}

}  // namespace
}  // namespace carillon::schedule
