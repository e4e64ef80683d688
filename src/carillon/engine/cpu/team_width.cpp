#include "carillon/engine/cpu/team_width.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::engine::cpu {
namespace {

// One run in which something else went wrong is not to decide alone.
constexpr double worst_counted = 6;
// Among so many runs that one, capped, changes little.
constexpr int many_runs = 12;
// A trial of more threads ends early where so many runs, all so far, were worse.
constexpr int worse_in_a_row = 2;

}  // namespace

void TeamWidth::Score::add(double times, Duration took) {
  squares += times * times;
  largest = std::max(largest, times);
  least = runs == 0 ? times : std::min(least, times);
  ++runs;
  time += took;
}

double TeamWidth::Score::value() const {
  if (runs >= many_runs) return std::sqrt(squares / runs);
  return std::sqrt(std::max(0.0, squares - largest * largest) / std::max(1, runs - 1));
}

void TeamWidth::set_most(int most) {
  CARILLON_ASSERT(most >= 1);
  if (most == most_) return;
  *this = TeamWidth(most, std::move(room_));
}

void TeamWidth::ran(Duration took, Duration usual, TimePoint at) {
  CARILLON_ASSERT(usual > Duration{0});
  if (most_ == 1) return;
  score_.add(std::min(worst_counted, static_cast<double>(took.count()) / static_cast<double>(usual.count())),
             took);
  if (trying_ > width_ && score_.runs >= worse_in_a_row && score_.least > known_)
    end_trial(false, at);
  else if (score_.judged())
    judge(at);
}

void TeamWidth::try_out(int width) {
  known_ = score_.value();
  trying_ = width;
  score_ = {};
}

void TeamWidth::end_trial(bool better, TimePoint at) {
  // Where half of them gain nothing, as each still has a neighbour, one alone may.
  if (trying_ < width_) to_one_next_ = !better && trying_ > 1;
  if (better) width_ = trying_;
  // What was found by a trial is asked again sooner than what was found in vain.
  pause_ = better ? first_pause : std::min(2 * pause_, last_pause);
  trying_ = 0;
  next_ = saturating_add(at, pause_);
  score_ = {};
}

void TeamWidth::judge(TimePoint at) {
  const double score = score_.value();
  if (trying_ > 0)
    return end_trial(trying_ < width_ ? score < (1 - least_gain) * known_ : score <= known_, at);
  const int more = std::min(most_, 2 * width_);
  const bool due = at >= next_;
  const bool wider = due && width_ < most_ && room_(more);
  const bool narrower = due && width_ > 1 && score > disturbed;
  if (!wider && !narrower) {
    score_ = {};
  } else if (wider && (wider_next_ || !narrower)) {
    wider_next_ = false;
    try_out(more);
  } else {
    wider_next_ = true;
    try_out(to_one_next_ ? 1 : (width_ + 1) / 2);
  }
}

}  // namespace carillon::engine::cpu
