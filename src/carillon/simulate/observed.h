#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "carillon/base/cpu_time.h"
#include "carillon/base/time.h"
#include "carillon/schedule/around.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {

// Decisions take virtual time.
inline bool takes_time(const Options& options) {
  return options.decision_time > Duration{0} || options.measured_decisions;
}

// The scheduler of a run, as it is seen from outside: counts its decisions and what they take, and shows them
// to the observer. Models come before anything is looked at.
class Observed final : public schedule::Around {
 public:
  // All must outlive this.
  Observed(schedule::Scheduler& policy, const Options& options, Figures& figures)
      : Around(policy), options_(options), figures_(figures), charged_(takes_time(options)) {}

  TimePoint decide(const schedule::Event& event, TimePoint now, schedule::Actions& out) override {
    if (std::holds_alternative<schedule::ModelChanged>(event)) return policy_->decide(event, now, out);
    ++figures_.decisions;
    const Duration before = options_.measured_decisions ? thread_cpu_time() : Duration{0};
    const TimePoint wake = policy_->decide(event, now, out);
    Duration took = options_.decision_time;
    if (options_.measured_decisions) {
      took = thread_cpu_time() - before;
      figures_.decision_times.add(took);
    }
    spent_ += took;
    if (options_.observer != nullptr) options_.observer->on_decision(event, now, out, wake);
    if (std::holds_alternative<schedule::Wake>(event)) asked_ = TimePoint::max();
    if (wake != asked_) asks_ = asked_ = wake;
    return charged_ ? TimePoint::min() : wake;
  }

  // A report came that says nothing new: the scheduler does not hear of it, but it takes a decision's time.
  void nothing_new(DeviceId device, TimePoint now) {
    ++figures_.decisions;
    spent_ += options_.decision_time;
    if (options_.observer != nullptr) options_.observer->on_odd_report(device, now);
  }

  // When the scheduler wants to be woken, where it asks for another time than before. Where decisions take
  // time, that counts once one is made, and a Wake that is due meanwhile is heard in its turn: the dispatcher
  // is told that any time will do.
  std::optional<TimePoint> asks() { return std::exchange(asks_, std::nullopt); }
  // What decisions took since the last call.
  Duration spent() { return std::exchange(spent_, Duration{0}); }

 private:
  const Options& options_;
  Figures& figures_;
  const bool charged_;
  TimePoint asked_ = TimePoint::max();
  std::optional<TimePoint> asks_;
  Duration spent_{0};
};

}  // namespace carillon::simulate
