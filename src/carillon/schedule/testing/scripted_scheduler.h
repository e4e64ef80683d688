#pragma once

#include <functional>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/schedule/scheduler.h"

namespace carillon::schedule::testing {

// Remembers what it hears, and does what `script` says.
class ScriptedScheduler final : public Scheduler {
 public:
  // Appends actions, and may name another wake.
  using Script = std::function<void(const Event&, TimePoint, Actions&, TimePoint& wake)>;

  std::string_view name() const override { return "scripted"; }
  void reads(ledger::Ledger& read) override { ledger = &read; }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override {
    events.push_back(event);
    times.push_back(now);
    if (std::holds_alternative<Wake>(event)) wake = TimePoint::max();
    if (const Script now_script = script) now_script(event, now, out, wake);  // it may replace itself
    return wake;
  }

  template <typename E>
  std::vector<E> heard() const {
    std::vector<E> out;
    for (const Event& event : events)
      if (const auto* e = std::get_if<E>(&event)) out.push_back(*e);
    return out;
  }

  Script script;
  ledger::Ledger* ledger = nullptr;
  TimePoint wake = TimePoint::max();
  std::vector<Event> events;
  std::vector<TimePoint> times;
};

}  // namespace carillon::schedule::testing
