#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "carillon/base/time.h"

namespace carillon::schedule::parts {

// Measures what a plan can only guess. A setting of the policy has several values, of which one is the
// default. While requests are lost, another value is tried for a short time. The present value is measured
// before and after. The other value is kept if it answers a larger share of requests than both. A trial that
// fails is repeated after ever longer pauses. One setting is tried at a time. Measurements are counted in
// plans, so a replay decides alike. Where requests are lost in bursts, plans differ by more than chance: then
// measurements take longer, and a gain has to be larger. O(1). Not thread-safe.
class Experiments {
 public:
  // Whether long runs keep off devices; whether batches are limited, and curbed (Plan).
  enum Setting : std::uint8_t { keep_off, limit, curb };
  static constexpr std::size_t settings = 3;
  // By setting: its values differ now.
  using Matters = std::array<bool, settings>;

  // `first`: the default value of each setting; `counts`: how many values it has. One value: it stays.
  Experiments(std::array<int, settings> first, std::array<int, settings> counts);

  void answered(std::size_t requests) { now_.answered += static_cast<double>(requests); }
  void lost(std::size_t requests) { now_.lost += static_cast<double>(requests); }
  // A plan was made, as after each `every`. `slo`: how long requests have. True: the value of a setting has
  // changed.
  bool step(TimePoint now, Duration every, Duration slo, const Matters& matters);
  // Devices or models have changed: a trial ends, and what was measured of it tells nothing. Values that were
  // kept before stay.
  void disturb();

  int value(Setting setting) const { return all_[setting].value; }
  // It has another value than at first: for a while, or because that answered more.
  bool differs(Setting setting) const { return all_[setting].value != all_[setting].first; }
  bool trying() const { return phase_ != Phase::idle; }

 private:
  struct Count {
    double answered = 0, lost = 0;
    double all() const { return answered + lost; }
    double share() const { return all() > 0 ? answered / all() : 1; }
  };
  struct One {
    int first = 0, count = 1;            // the default, and how many values there are
    int value = 0, kept = 0;             // in force now; and after a trial that fails
    int last = 0;                        // the value that was tried last
    std::size_t mattered = 0;            // plans in a row in which its values differed
    int pauses = 0;                      // how often the pause was doubled
    TimePoint tried = TimePoint::min();  // when that trial began or ended
    Duration took{0};                    // that trial, until its value was no longer in force
    double share = 0;                    // what was answered when the last trial failed
  };
  enum class Phase : std::uint8_t { idle, trial, after };
  void change(int value);
  bool begin(TimePoint now, std::size_t plans);
  bool reject(TimePoint now);
  bool better(const Count& a, const Count& b, double by) const;
  void remember(const Count& last);

  std::array<One, settings> all_;
  Phase phase_ = Phase::idle;
  std::size_t tried_ = 0;     // the setting that is tried, or was tried last
  Count now_;                 // since the last plan
  std::deque<Count> seen_;    // by plan, since the last change of a value shows
  std::size_t settling_ = 0;  // plans until it shows
  std::deque<Count> usual_;   // by plan: the last ones under the present values
  double spread_ = 1;         // the variance of these over that of requests that are answered independently
  bool uneven_ = false;       // the spread is large; as it was when the trial began
  Count before_, during_;     // the trial
};

}  // namespace carillon::schedule::parts
