#pragma once

#include <optional>
#include <span>

#include "carillon/base/time.h"
#include "carillon/research/sharing/kernel_plan.h"

namespace carillon::research {

// From `from` on so many units are free, until the next step.
struct Room {
  TimePoint from;
  int free = 0;
};

// What may start now beside what runs.
struct Padding {
  int blocks = 0;
  Spread spread;
};

// Chooses how many of a best-effort kernel's remaining `blocks` start at `now`, and how they are spread, so
// that they have their units for as long as they take. `rooms` ascend by `from`, the first at `now` or
// before; after the last nothing is known. `overhead` is what passes until the blocks start, `margin` what
// they may take longer, relative.
//
// REEF's section 5.2: rule 1 (no longer than the real-time kernel) is that the room is kept until the end;
// rule 2 (occupancy) that a unit is given to one kernel alone, so that neither limits how deep the other
// goes. Greedy over depths: what ends the kernel goes before what does not. Of the spreads that end it the
// one that takes least unit time, but no more than `rivals` (>= 1: streams that want units, this one
// included) times as long as the quickest; of the others the one with most blocks by time. Nothing where no
// block fits. O(depths + rooms).
std::optional<Padding> pad(const KernelPlan& plan, const KernelPlan::Kernel& kernel, int blocks,
                           std::span<const Room> rooms, TimePoint now, Duration overhead, double margin,
                           int rivals);

// The same where there is nothing to make way for: the spread that takes least unit time of those that take
// no longer than `rivals` times what the kernel takes alone.
Spread frugal(const KernelPlan& plan, const KernelPlan::Kernel& kernel, int blocks, int units, int rivals);

}  // namespace carillon::research
