#pragma once

#include <chrono>

#include "carillon/base/time.h"

namespace carillon::engine::cpu {

// How many threads of a team take part in the next run. A pure state machine: it is told what runs took.
//
// All threads of a team meet at the end of each kernel. Where another process takes one of their cores, the
// system suspends that thread in the middle of a part, for milliseconds, and the others wait: then fewer
// threads are quicker, and much steadier. Nothing is tried while runs take about what they do undisturbed.
// Where they do not, half of the threads are tried for a while, and stay where that was better; all are tried
// again from time to time, less and less often.
//
// Widths are halves: a kernel made for n parts takes as long on n-1 threads as on n/2.
class TeamWidth {
 public:
  // A width is judged by so many runs, and at least so much time of theirs.
  static constexpr int runs_judged = 12;
  static constexpr Duration time_judged = std::chrono::milliseconds{80};
  // Runs that take so many times what they do undisturbed (root mean square) are worth a trial.
  static constexpr double disturbed = 1.3;
  // A narrower team must be better by this share: the wide one is the rule.
  static constexpr double least_gain = 0.05;
  // Between two trials, at first and at most.
  static constexpr Duration first_pause = std::chrono::milliseconds{500};
  static constexpr Duration last_pause = std::chrono::seconds{16};

  // `most` >= 1.
  explicit TeamWidth(int most) : most_(most), width_(most) {}

  // For the next run: 1 to `most`.
  int now() const { return trying_ > 0 ? trying_ : width_; }
  // There are more threads from now on, or fewer. What was learnt is forgotten where that is news.
  void set_most(int most);
  // A run at now() took `took` and ended at `at`; undisturbed, on all threads, it would have taken `usual`, >
  // 0.
  void ran(Duration took, Duration usual, TimePoint at);

 private:
  struct Score {
    double squares = 0;  // of took / usual
    int runs = 0;
    Duration time{0};
    bool judged() const { return runs >= runs_judged && time >= time_judged; }
    double value() const;
  };

  void judge(TimePoint at);
  void try_out(int width);

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
