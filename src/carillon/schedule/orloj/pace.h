#pragma once

#include <array>

namespace carillon::schedule::orloj {

// By how much everything takes longer now than is expected: 1 as a rule, 8 while something makes the device
// eight times slower. What is learned slowly (distributions, costs) is kept in units of the pace, so that a
// slow spell neither spoils it nor has to be unlearned.
//
// A hidden Markov filter over paces from 1/64 to 64, half an octave apart. The pace stays, jumps to any other
// now and then, and is drawn back to 1. What is observed is the logarithm of took over expected; its centre
// and spread are learned too, so that times that vary by themselves are not taken for a change of pace. Two
// observations in a row convince it that all is slower, one that all is as before. Not thread-safe.
class Pace {
 public:
  Pace();
  // Something that is expected to take `expected` > 0 at pace 1, as a rule, took `took` > 0.
  void saw(double expected, double took);
  double value() const { return value_; }
  // How far times are from what is expected by themselves: the mean distance of their logarithms.
  double spread() const { return spread_; }

 private:
  static constexpr int reach = 12;  // of paces on either side of 1

  std::array<double, 2 * reach + 1> share_{};
  double value_ = 1;
  double centre_ = 0;    // of the logarithms
  double spread_ = 0.5;  // likewise, their mean distance from it
  double seen_ = 0;
};

}  // namespace carillon::schedule::orloj
