#include "carillon/research/testing/unit_checker.h"

#include <algorithm>
#include <utility>

namespace carillon::research::testing {

UnitChecker::UnitChecker(const Rules& rules, std::vector<KernelPlan> plans)
    : rules_(rules), plans_(std::move(plans)) {}

void UnitChecker::check(bool holds, TimePoint at, Queue queue, std::string_view promise) {
  if (holds || !broken_.empty()) return;
  broken_ = "queue " + std::to_string(queue) + " at " + std::to_string(at.time_since_epoch().count()) +
            " ns: " + std::string(promise);
}

UnitChecker::Account& UnitChecker::of(Queue queue) {
  if (queue >= accounts_.size()) accounts_.resize(queue + 1U);
  return accounts_[queue];
}

void UnitChecker::run_asked(Queue queue, const RunSpec& spec, Class cls, TimePoint at) {
  Account& account = of(queue);
  check(!account.asked, at, queue, "a client asks for one run at a time");
  account.asked = true;
  account.cls = cls;
  account.spec = spec;
  account.kernel = account.first = 0;
  account.was_evicted = false;
}

void UnitChecker::run_finished(Queue queue, std::uint64_t run, TimePoint at) {
  Account& account = of(queue);
  check(account.asked && account.spec.run == run, at, queue, "a run finishes once, and was asked for");
  check(account.kernel == plans_[account.spec.plan].kernels() && account.first == 0 && !account.runs, at,
        queue, "a run finishes after its last block");
  if (account.on_device && account.cls == Class::real_time) --real_time_;
  account.asked = account.on_device = false;
  ++finished_;
}

void UnitChecker::evicting(Queue queue, bool kill, TimePoint at) {
  Account& account = of(queue);
  check(!account.evicting, at, queue, "one eviction at a time");
  account.evicting = true;
  account.killing = kill;
}

void UnitChecker::evicted(Queue queue, TimePoint at) {
  Account& account = of(queue);
  check(account.evicting && !account.runs, at, queue, "an evicted stream is empty");
  account.evicting = account.killing = false;
  account.was_evicted = true;
}

void UnitChecker::round_started(Queue queue, const ShareCommand& command, int units, int blocks, TimePoint at,
                                TimePoint end) {
  Account& account = of(queue);
  const KernelPlan& plan = plans_[command.plan];
  check(account.asked && command.run == account.spec.run && command.plan == account.spec.plan, at, queue,
        "what runs was asked for");
  if (!account.on_device) {
    account.on_device = true;
    if (account.cls == Class::real_time) ++real_time_;
    check(!rules_.one_real_time || real_time_ <= 1, at, queue, "one real-time run at a time");
  }
  if (!account.runs) {
    check(!account.evicting, at, queue, "nothing starts in a stream that is evicted");
    const std::pair place{command.kernel, command.first};
    const std::pair next{account.kernel, account.first};
    if (account.was_evicted && place < next) {
      check(command.first == 0 && command.kernel >= account.kernel + 1 - rules_.back, at, queue,
            "an eviction goes back by a bounded number of kernels: from " + std::to_string(account.kernel) +
                "+" + std::to_string(account.first) + " to " + std::to_string(command.kernel) + "+" +
                std::to_string(command.first));
      account.kernel = command.kernel;
      account.first = command.first;
    }
    check(place == std::pair(account.kernel, account.first), at, queue, "blocks run in order, and once");
    account.runs = true;
    account.was_evicted = false;
    account.launch = command;
    account.units = account.started = account.ended = 0;
  }
  check(command.kernel == account.launch.kernel && command.first == account.launch.first, at, queue,
        "one launch of a stream at a time");
  used_ += units;
  account.units += units;
  account.started += blocks;
  check(used_ <= rules_.units, at, queue, "units are not over-booked");
  check(account.units <= command.spread.units, at, queue, "a launch has no more units than it was given");
  check(units >= 1 && blocks >= 1 && blocks <= units * command.spread.depth &&
            command.spread.depth <= plan.kernel(command.kernel).deepest,
        at, queue, "a unit runs no more blocks at a time than it may");
  check(account.started <= command.blocks &&
            command.first + command.blocks <= plan.kernel(command.kernel).blocks,
        at, queue, "a launch runs the blocks that it has");
  check(end > at, at, queue, "blocks take time");
}

void UnitChecker::round_ended(Queue queue, const ShareCommand&, int units, int blocks, TimePoint started,
                              TimePoint at) {
  Account& account = of(queue);
  check(account.runs && started < at, at, queue, "what ends had started");
  used_ -= units;
  account.units -= units;
  account.ended += blocks;
}

void UnitChecker::round_killed(Queue queue, const ShareCommand&, int units, int, TimePoint, TimePoint at) {
  Account& account = of(queue);
  check(account.runs && account.killing, at, queue, "what is killed is being evicted");
  check(account.cls != Class::real_time, at, queue, "no real-time run is killed");
  used_ -= units;
  account.units -= units;
  ++kills_;
}

void UnitChecker::launch_ended(Queue queue, const ShareCommand& command, TimePoint at) {
  Account& account = of(queue);
  check(account.runs && account.units == 0 && account.ended == command.blocks, at, queue,
        "a launch ends as its last block does");
  account.runs = false;
  const int blocks = plans_[command.plan].kernel(command.kernel).blocks;
  account.first += command.blocks;
  if (account.first == blocks) {
    ++account.kernel;
    account.first = 0;
  }
}

void UnitChecker::launch_killed(Queue queue, const ShareCommand&, TimePoint at) {
  Account& account = of(queue);
  check(account.runs && account.units == 0, at, queue, "what is killed leaves its units");
  account.runs = false;
}

}  // namespace carillon::research::testing
