#include "carillon/schedule/carillon/settings.h"

#include <algorithm>
#include <variant>

namespace carillon::schedule {

namespace {

// What may be tried, and what is so at first.
parts::Experiments experiments_of(const CarillonOptions& options) {
  const bool tries = options.experiments > 0 && options.fair <= 0 && options.tenants <= 0;
  const bool keep_off = options.keep_off > 0, limit = options.limit > 0, curb = options.curb > 0;
  return parts::Experiments({keep_off ? 0 : 1, limit ? 0 : 1, curb ? 1 : 0},
                            {tries && keep_off ? 3 : 1, tries && limit ? 2 : 1, tries ? 2 : 1});
}

}  // namespace

Settings::Settings(const View& view, parts::KeepOff& keep_off, parts::Plan& plan)
    : view_(view), keep_off_(keep_off), plan_(plan), experiments_(experiments_of(view.options)) {
  set_as_tried();
}

bool Settings::hear(const Event& event, const Orders& out) {
  if (std::holds_alternative<ModelChanged>(event) || std::holds_alternative<DeviceChanged>(event)) {
    const bool tried = experiments_.trying();
    experiments_.disturb();
    set_as_tried();
    return tried;
  }
  const auto* const done = std::get_if<ActionDone>(&event);
  if (done == nullptr || done->status != ActionStatus::success) return false;
  for (const std::uint32_t place : out.ledger().changes().ended)
    count_answers(out.ledger().at(place), out.time());
  return false;
}

// The answers of a run that ended.
void Settings::count_answers(const ledger::Ledger::Action& run, TimePoint now) {
  if (run.kind != ActionKind::infer || run.cls == Class::best_effort) return;
  const auto late = std::ranges::count_if(run.promises, [&](const auto& p) { return p.deadline < now; });
  experiments_.answered(run.promises.size() - static_cast<std::size_t>(late));
  experiments_.lost(static_cast<std::size_t>(late));
}

bool Settings::step(TimePoint now) {
  const bool free = experiments_.value(Experiments::limit) == 1;
  const bool overload = plan_.contention() >= 1;  // then batches are curbed, but not limited
  const bool changed = experiments_.step(
      now, parts::Plan::every, plan_.mean_slo(),
      {keep_off_.any() && !view_.placing.scarce(), !overload && (free || plan_.limited()), plan_.may_curb()});
  if (changed) set_as_tried();
  return changed;
}

void Settings::set_as_tried() {
  static constexpr double shares[] = {1, 0, 0.5};  // of the devices that long runs are to keep off
  keep_off_.change(shares[experiments_.value(Experiments::keep_off)]);
  plan_.change(experiments_.value(Experiments::limit) == 0, experiments_.value(Experiments::curb) == 1);
}

}  // namespace carillon::schedule
