#pragma once

#include <cstdint>
#include <vector>

#include "carillon/tune/tuning.h"

// Measures how long iterations take, and what packing and scaling add to them, from the reports of trials.
namespace carillon::tune {

// log(t * w * speed) = log tau + (k - 1) log alpha + (w - 1) log beta, for an iteration that took t on w
// devices of that speed, with k trials on the device: tau is the trial's own, alpha and beta those of all
// trials of a tuner. Least squares with one constant a trial ("fixed effects"), so that unlike trials do not
// pass for overhead. Where no trial has run at two widths, alpha (beta) is from the means of unlike trials at
// each width, as equation 3.1 has it, with the larger error that these have.
//
// Reports of iterations in which widths or company changed do not belong here. Not thread-safe.
class Estimator {
 public:
  struct Sample {
    std::uint32_t trial = 0;  // a dense number that the caller chose
    int company = 1;          // trials on its device, where it has one
    int width = 1;            // devices
    double speed = 1;         // of the slowest of them
    double seconds = 0;       // an iteration; above 0
  };
  void add(const Sample& sample);
  // `trial` will be another trial's number. What it said of alpha and beta stays.
  void forget(std::uint32_t trial);
  void add_move(double seconds);

  Measured alpha() const;
  Measured beta() const;
  Measured move() const;
  // An iteration of the trial alone, on a device of speed 1. Of one that has not reported: the mean of all,
  // with their spread as its error. Not known where there is none.
  Measured iteration(std::uint32_t trial) const;

 private:
  // Of x = k - 1, z = w - 1, y = log(t * w * speed).
  struct Sums {
    double n = 0, x = 0, z = 0, y = 0, xx = 0, zz = 0, xz = 0, xy = 0, zy = 0, yy = 0;
    void add(double x_, double z_, double y_, double sign = 1);
  };
  struct Level {
    double n = 0, y = 0, yy = 0;
  };
  struct Slope {
    double value = 0, variance = 0;
    bool known = false;
  };
  struct Fit {
    Slope a, b;
    double noise = 0;  // variance of one sample about its trial's line
  };
  void account(const Sums& trial, double sign);
  static Slope between(const std::vector<Level>& levels);
  const Fit& fit() const;

  std::vector<Sums> trials_;
  Sums within_;                         // of deviations from each trial's means
  Sums means_;                          // of the trials' means
  std::vector<Level> company_, width_;  // by k of those with w = 1, and by w of those with k = 1
  double moves_ = 0, move_sum_ = 0, move_squares_ = 0;
  std::uint64_t packed_ = 0, scaled_ = 0;
  mutable Fit fit_;
  mutable bool stale_ = false;
};

}  // namespace carillon::tune
