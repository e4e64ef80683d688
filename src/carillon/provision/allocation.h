#pragma once

#include <span>
#include <vector>

#include "carillon/provision/workload.h"

namespace carillon::provision {

// The least shares with which all of `demands` meet their limits together on one device of the type:
// Algorithm 2 (alloc_gpus) from the demands' own least shares. Gives them in `units` and says whether they
// fit on the device.
//
// Algorithm 2 raises the share of each workload that is late, a unit at a time, until none is or the device
// is full. As long as more of one workload never helps another (more power and cache use, lower frequency),
// no allocation that would do lies below what it finds: whatever it raises has to be raised. So the order of
// the raises does not matter, several units may be taken at once (as many as the present interference calls
// for), and a set of workloads that it does not fit cannot be fitted at all.
bool least_allocation(const DeviceType& type, std::span<const Demand* const> demands,
                      std::vector<int>& units);

// Workloads on one device, one entry each: what they need, their shares, and what they do alone with them.
struct Sharing {
  std::vector<const Demand*> demands;
  std::vector<int> units;
  std::vector<profile::SoloUse> alone;

  // One more, with its least share.
  void add(const Demand& demand);
  int used() const;
};

// Algorithm 2 from the shares that are given. False where they grow beyond the device; then `sharing` holds
// where it stopped. O(n) a sweep.
bool raise_allocation(const DeviceType& type, Sharing& sharing);

}  // namespace carillon::provision
