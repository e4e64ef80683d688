#include "carillon/share/client/chooser.h"

#include <algorithm>

namespace carillon::share::client {

bool BoundaryChooser::same(std::size_t a, std::size_t b) const {
  return back(a).signal == back(b).signal && back(a).which == back(b).which;
}

bool BoundaryChooser::steps_within(std::size_t period) const {
  for (std::size_t ago = 0; ago < period; ++ago)
    if (back(ago).signal == Signal::step) return true;
  return false;
}

void BoundaryChooser::heed_step() {
  // A gap in which another period was believed, such as an evaluation, is none of the training's.
  if (stepped_ && !stepless_) {
    gap_before_ = gap_;
    gap_ = since_step_;
  }
  stepped_ = true;
  stepless_ = false;
  since_step_ = 0;
}

// How many signals ago the best boundary of the last period was; 0 is the last signal.
std::size_t BoundaryChooser::trough(std::size_t period) const {
  const auto live = [&](std::size_t ago) { return std::max(back(ago).live, back(ago + period).live); };
  std::uint64_t least = live(0), most = live(0);
  for (std::size_t ago = 1; ago < period; ++ago) {
    least = std::min(least, live(ago));
    most = std::max(most, live(ago));
  }
  const std::uint64_t near = least + (most - least) / 16;
  std::size_t best = period;
  std::uint64_t best_rank = 0, best_live = 0;
  for (std::size_t ago = 0; ago < period; ++ago) {
    if (live(ago) > near) continue;
    // What comes after it, a period ago where it is the last.
    const Signal after = back(ago == 0 ? period - 1 : ago - 1).signal;
    const Signal here = back(ago).signal;
    const std::uint64_t kind = here == Signal::step ? 0 : here == Signal::next ? 1 : 2;
    const std::uint64_t rank = 2 * kind + (here == Signal::step && after == Signal::next ? 0 : 1);
    if (best == period || rank < best_rank || (rank == best_rank && live(ago) < best_live)) {
      best = ago;
      best_rank = rank;
      best_live = live(ago);
    }
  }
  return best;
}

// Sets period_ and to_go_ where the last signals repeat. True: the last signal is the boundary of its period.
bool BoundaryChooser::learn() {
  const std::size_t known = std::min<std::uint64_t>(count_, kept);
  for (std::size_t period = 1; period <= longest_period && 2 * period <= known; ++period) {
    const bool steps = steps_within(period);
    // Batches of an accumulation repeat, too; the step that ends it must have had time to come.
    if (!steps && stepped_ && since_step_ <= 2 * std::max<std::uint64_t>(std::min(gap_, gap_before_), 2)) continue;
    const std::size_t wanted = steps ? std::max<std::size_t>(period, 4) : std::max<std::size_t>(2 * period, 6);
    if (wanted + period > known) continue;
    std::size_t matched = 0;
    while (matched < wanted && same(matched, matched + period)) ++matched;
    if (matched < wanted) continue;
    period_ = period;
    if (!steps) stepless_ = true;
    const std::size_t ago = trough(period);
    to_go_ = period - ago;
    return ago == 0;
  }
  return false;
}

bool BoundaryChooser::on(Signal signal, std::uint64_t which, std::uint64_t live) {
  if (signal == Signal::manual) {
    manual_ = true;
    period_ = 1;
    return true;
  }
  if (manual_) return false;

  seen_[count_ % kept] = {signal, which, live};
  ++count_;
  ++since_step_;
  ++since_boundary_;
  if (signal == Signal::step) heed_step();

  bool boundary = false;
  if (period_ != 0 && same(0, period_)) {
    boundary = --to_go_ == 0;
    if (boundary) to_go_ = period_;
  } else {
    period_ = 0;
    boundary = learn();
    // Without a period, each step; where there are none for long, each batch.
    if (period_ == 0)
      boundary = signal == Signal::step || (since_boundary_ >= 2 * longest_period && signal == Signal::next);
  }
  if (boundary) since_boundary_ = 0;
  return boundary;
}

}  // namespace carillon::share::client
