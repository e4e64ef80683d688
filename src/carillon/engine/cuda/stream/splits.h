#pragma once

#include <mutex>
#include <vector>

#include "carillon/engine/cuda/driver/driver.h"

namespace carillon::engine::cuda {

// A part of a device's processors: of pair `pair`, from 1 on, the first part or the rest; of pair 0 all.
struct Part {
  int pair = 0;
  bool rest = false;

  friend auto operator<=>(const Part&, const Part&) = default;
};

// Of a device's processors: from that part of them on, up to that; 0 <= from < to <= 1.
struct Share {
  double from = 0, to = 1;
  bool whole() const { return from <= 0 && to >= 1; }
};

// The processors of a device in two parts, in each way that the driver allows: pair k has the first k groups,
// and the rest. A group is the least that can be parted off: 8 processors of an H100. Each part is a green
// context, made when its pair is prepared: an H100's driver takes 1.5 ms and 5 MiB for one. The two
// parts of a pair run beside each other. All parts share the device's caches and its memory's bandwidth. What
// uses all of the device has no green context: not every kernel that runs on a device runs in one of all its
// processors (clusters of cuDNN's). Used with the device's context current.
//
// Of a share of the device there are no pairs, and context({}) is that: whole groups, the nearest to it, or
// nullptr where these are none. Shares that do not meet have no group in common; the process asks for a
// device's groups once, as groups of two splits may share processors.
class Splits {
 public:
  // None (count() is 0) where the device cannot be divided.
  Splits(const Driver& driver, DeviceNumber device, const Share& share = {});
  ~Splits();
  Splits(const Splits&) = delete;
  Splits& operator=(const Splits&) = delete;

  std::size_t groups() const { return groups_; }                 // of the whole device
  int count() const { return static_cast<int>(pairs_.size()); }  // pairs
  unsigned processors(const Part& part) const;                   // 0: there is no such part
  // Makes the contexts of a pair, from 1 to count(), where they are not there yet. From any thread. False:
  // the driver gives none.
  bool prepare(int pair);
  // nullptr: that part is all of the device, or its pair was not prepared.
  GreenContext context(const Part& part) const;
  // The pair whose first part is nearest to that share of the processors, in (0, 1); 0 where there is none.
  int nearest(double share) const;

 private:
  struct Half {
    GreenContext context = nullptr;
    unsigned processors = 0;
  };
  struct Pair {
    Half first, rest;
  };
  bool make(std::size_t from, std::size_t to, Half& into);
  const Half* half(const Part& part) const;

  const Driver& driver_;
  DeviceNumber device_;
  std::size_t groups_ = 0;
  std::vector<Processors> described_;  // the groups, and behind them what is less than one
  Half all_;
  std::mutex mutex_;  // of who prepares
  std::vector<Pair> pairs_;
};

}  // namespace carillon::engine::cuda
