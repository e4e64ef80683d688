#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "carillon/base/time.h"

namespace carillon::engine::cpu {

// How many threads of a team take part in the next run. A pure state machine: it is told what runs took.
//
// All threads of a team meet at the end of each kernel. Where another process takes one of their cores, the
// system suspends that thread in the middle of a part, for milliseconds, and the others wait: then fewer
// threads are quicker, and much steadier. Nothing is tried while runs take about what they do undisturbed.
// Where they do not, half of the threads are tried for a while, and stay where that was better. All are tried
// again from time to time, less and less often, where there is room for them.
//
// Widths are halves: a kernel made for n parts takes as long on n-1 threads as on n/2.
class TeamWidth {
 public:
  // A width is judged by so many runs and so much time of theirs, in which the system has switched between
  // threads some sixty times. Few runs suffice where each is long: a disturbed server runs few, as it
  // refuses requests. Of less than twelve the longest does not count: something else may have gone wrong.
  static constexpr int runs_judged = 4;
  static constexpr Duration time_judged = std::chrono::milliseconds{250};
  // Runs that take so many times what they do undisturbed (root mean square) are worth a trial.
  static constexpr double disturbed = 1.3;
  // A narrower team must be better by this share: the wide one is the rule.
  static constexpr double least_gain = 0.05;
  // Between two trials, at first and at most.
  static constexpr Duration first_pause = std::chrono::milliseconds{500};
  static constexpr Duration last_pause = std::chrono::seconds{16};

  // `most` >= 1. `room(n)`: whether there are processors for n threads, so that more than now are worth a
  // trial.
  explicit TeamWidth(
      int most, std::function<bool(int)> room = [](int) { return true; })
      : room_(std::move(room)), most_(most), width_(most) {}

  // For the next run: 1 to `most`.
  int now() const { return trying_ > 0 ? trying_ : width_; }
  // There are more threads from now on, or fewer. What was learnt is forgotten where that is news.
  void set_most(int most);
  // A run at now() took `took` and ended at `at`; undisturbed, on all threads, it would have taken `usual`, >
  // 0.
  void ran(Duration took, Duration usual, TimePoint at);

 private:
  struct Score {
    double squares = 0, largest = 0, least = 0;  // of took / usual
    int runs = 0;
    Duration time{0};
    void add(double times, Duration took);
    bool judged() const { return runs >= runs_judged && time >= time_judged; }
    double value() const;
  };

  void judge(TimePoint at);
  void end_trial(bool better, TimePoint at);
  void try_out(int width);

  std::function<bool(int)> room_;
  int most_;
  int width_;
  int trying_ = 0;                     // 0: nothing is tried
  bool wider_next_ = true;             // where both could be tried
  bool to_one_next_ = false;           // the next trial of fewer threads is one of one
  Score score_;                        // of now(), since it is that
  double known_ = 0;                   // of width_, when the trial began
  Duration pause_ = first_pause;       // from one trial to the next
  TimePoint next_ = TimePoint::min();  // when a trial may begin
};

}  // namespace carillon::engine::cpu
