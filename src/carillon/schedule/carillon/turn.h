#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/order.h"
#include "carillon/schedule/parts/ready.h"

namespace carillon::schedule {

// Which line goes first: the one that has to start first. While devices are short, those come later that take
// more device time for an answer than others. Lines of modest tenants come before all others, where there is
// fairness. Keeps nothing. O(1).
class Turn {
 public:
  explicit Turn(const View& view) : view_(view) {}

  // Of a line that may start that batch.
  parts::Ready::Key key(std::uint32_t line, const parts::Choice& choice, TimePoint now) const {
    const auto [model, cls] = parts::Waiting::of_line(line);
    // There is time for all that goes first, whatever it costs.
    const bool first = view_.fair.on() && view_.fair.first(line, now);
    return {cls, rest(line, now), first ? choice.latest() : put_back(model, choice), line};
  }
  // The line comes after those of modest tenants.
  bool rest(std::uint32_t line, TimePoint now) const {
    return view_.fair.on() && parts::Waiting::of_line(line).second == Class::normal &&
           view_.fair.rest(line, now);
  }

 private:
  // The latest start; while devices are short, later for what costs others more.
  TimePoint put_back(ModelId model, const parts::Choice& choice) const {
    if (!view_.shortage.pressed()) return choice.latest();
    const parts::Plan& plan = view_.plan;
    const double takes = to_seconds(choice.batch.exec), rows = static_cast<double>(choice.batch.rows);
    double back = view_.options.value * (takes - rows * view_.shortage.each());
    if (plan.known(model))
      back += view_.options.waste * std::max(0.0, takes - rows * plan.times(model).each(plan.planned(model)));
    return saturating_add(choice.latest(), from_seconds(back));
  }

  const View view_;
};

}  // namespace carillon::schedule
