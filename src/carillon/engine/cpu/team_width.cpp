#include "carillon/engine/cpu/team_width.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {
namespace {

// One run in which something else went wrong is not to decide alone.
constexpr double worst_counted = 6;

}  // namespace

double TeamWidth::Score::value() const {
  return std::sqrt(squares / std::max(1, runs));
}

void TeamWidth::set_most(int most) {
  CARILLON_ASSERT(most >= 1);
  if (most == most_) return;
  *this = TeamWidth(most);
}

void TeamWidth::ran(Duration took, Duration usual, TimePoint at) {
  CARILLON_ASSERT(usual > Duration{0});
  if (most_ == 1) return;
  const double times =
      std::min(worst_counted, static_cast<double>(took.count()) / static_cast<double>(usual.count()));
  score_.squares += times * times;
  ++score_.runs;
  score_.time += took;
  if (score_.judged()) judge(at);
}

void TeamWidth::try_out(int width) {
  known_ = score_.value();
  trying_ = width;
  score_ = {};
}

void TeamWidth::judge(TimePoint at) {
  const double score = score_.value();
  if (trying_ > 0) {
    const bool narrower = trying_ < width_;
    const bool better = narrower ? score < (1 - least_gain) * known_ : score <= known_;
    // Where half of them gain nothing, as each still has a neighbour, one alone may.
    if (narrower) to_one_next_ = !better && trying_ > 1;
    if (better) width_ = trying_;
    // What was found by a trial is asked again sooner than what was found in vain.
    pause_ = better ? first_pause : std::min(2 * pause_, last_pause);
    trying_ = 0;
    next_ = saturating_add(at, pause_);
    score_ = {};
    return;
  }
  const bool wider = width_<most_, narrower = width_> 1 && score > disturbed;
  if (at < next_ || (!wider && !narrower)) {
    score_ = {};
  } else if (wider && (wider_next_ || !narrower)) {
    wider_next_ = false;
    try_out(std::min(most_, 2 * width_));
  } else {
    wider_next_ = true;
    try_out(to_one_next_ ? 1 : (width_ + 1) / 2);
  }
}

}  // namespace carillon::engine::cpu
