#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "carillon/base/time.h"

namespace carillon::schedule::parts {

// Measures what a plan can only guess. A setting of the policy has several values, of which the first is the
// default. While requests are lost, another value is tried for a short time, between two times of the present
// one. The value is kept if a larger share of requests is answered than in both. A trial that fails is
// repeated after ever longer pauses. One setting is tried at a time. Time is counted in plans, so all is
// exact under replay. O(settings) a plan, O(1) else. Not thread-safe.
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
  // A plan was made; they are made so often. `slo`: how long requests have. True: a value is another.
  bool step(TimePoint now, Duration every, Duration slo, const Matters& matters);
  // Devices or models are others: what was measured tells nothing.
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
    int first = 0, count = 1;
    int value = 0, kept = 0;   // now, and but for a trial
    int last = 0;              // that was tried
    std::size_t mattered = 0;  // plans in a row
    int pauses = 0;            // doublings of the pause
    TimePoint tried = TimePoint::min();
    double share = 0;  // that was answered when the last trial failed
  };
  enum class Phase : std::uint8_t { idle, trial, after };
  void change(int value);
  bool begin(TimePoint now, std::size_t plans);
  bool reject(TimePoint now);
  static bool better(const Count& a, const Count& b, double by);

  std::array<One, settings> all_;
  Phase phase_ = Phase::idle;
  std::size_t tried_ = 0;     // the setting that is tried, or was last
  Count now_;                 // since the last plan
  std::deque<Count> seen_;    // by plan, since a value changed and that showed
  std::size_t settling_ = 0;  // plans until then
  Count before_, during_;     // of the trial
};

}  // namespace carillon::schedule::parts
