#pragma once

#include <cstddef>

#include "carillon/schedule/carillon/view.h"
#include "carillon/schedule/parts/experiments.h"
#include "carillon/schedule/parts/keep_off.h"
#include "carillon/schedule/parts/plan.h"

namespace carillon::schedule {

// Which settings are tried while requests are lost (parts::Experiments): how many devices long runs keep off,
// whether batches are limited for models in a hurry, and whether they are curbed where devices are
// overloaded. Counts what is answered and lost, and tells KeepOff and Plan what is tried. O(requests that an
// event settles). Not thread-safe.
class Settings {
  using Experiments = parts::Experiments;

 public:
  Settings(const View& view, parts::KeepOff& keep_off, parts::Plan& plan);

  // What an event says of answers, and that devices or models are others. True: a trial has ended for that.
  bool hear(const Event& event, const Orders& out);
  // There is a new plan: by its numbers, and by what was answered, settings are tried. True: one changed.
  bool step(TimePoint now);
  // So many requests were refused, or turned away before they came.
  void lost(std::size_t requests) { experiments_.lost(requests); }
  const Experiments& experiments() const { return experiments_; }

 private:
  void count_answers(const ledger::Ledger::Action& run, TimePoint now);
  void set_as_tried();

  const View view_;
  parts::KeepOff& keep_off_;
  parts::Plan& plan_;
  Experiments experiments_;
};

}  // namespace carillon::schedule
