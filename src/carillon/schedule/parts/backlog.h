#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "carillon/base/time.h"

namespace carillon::schedule::parts {

// Whether more work waits than the devices can do in the time that it has. Rates tell of a burst too late.
// O(1). Not thread-safe.
class Backlog {
 public:
  // A line has so many requests, which take `work` seconds of a device in all; `deadline` is the first's. One
  // further away than `horizon` counts for nothing.
  void set(std::size_t line, std::size_t rows, double work, TimePoint deadline, TimePoint now) {
    if (line >= lines_.size()) lines_.resize(line + 1);
    Line& l = lines_[line];
    rows_ -= l.rows;
    if (rows_ > 0) {
      work_ -= l.work;
      due_ -= l.rows * l.due;
    } else {
      rows_ = work_ = due_ = 0;  // nothing waits: no rounding stays
      base_ = now;
    }
    if (rows == 0 || deadline >= saturating_add(now, horizon)) {
      l = {};
      return;
    }
    l = {static_cast<double>(rows), work, to_seconds(deadline - base_)};
    rows_ += l.rows;
    work_ += l.work;
    due_ += l.rows * l.due;
  }
  // load() is above 1.
  bool pressed(std::size_t devices, TimePoint now) const { return rows_ > 0 && work_ > room(devices, now); }
  // The work that waits over what the devices can do in the mean time that it has.
  double load(std::size_t devices, TimePoint now) const {
    if (rows_ <= 0) return 0;
    return work_ / room(devices, now);
  }
  // Device time that waits, seconds.
  double work() const { return work_; }
  // The time that it has left on average, seconds.
  double left(TimePoint now) const { return rows_ > 0 ? due_ / rows_ - to_seconds(now - base_) : 0; }
  // Device time of a request that waits, seconds on average.
  double each() const { return rows_ > 0 ? work_ / rows_ : 0; }

 private:
  // What the devices can do in the mean time that the work has, seconds.
  double room(std::size_t devices, TimePoint now) const {
    return std::max(1e-9, static_cast<double>(devices) * left(now));
  }
  static constexpr Duration horizon = 60s;
  struct Line {
    double rows = 0, work = 0, due = 0;  // seconds after `base_`
  };
  std::vector<Line> lines_;
  TimePoint base_{};
  double rows_ = 0, work_ = 0, due_ = 0;
};

}  // namespace carillon::schedule::parts
