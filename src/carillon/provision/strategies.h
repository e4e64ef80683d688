#pragma once

#include <span>

#include "carillon/provision/plan.h"

// The strategies of the paper: pure functions of their input. With several types of device each plans with
// one type alone, and the cheapest plan of those that leave the fewest workloads out is taken (section 4.1,
// remark). Workloads that have no share on one device are left out and explained.
namespace carillon::provision {

// iGniter's Algorithms 1 and 2 to the letter: shares from Theorem 1 in descending order (equal ones in the
// order of input), each workload on the device where the shares grow least, the first of equal ones. As in
// the authors' program a workload that needs a whole device may enter an empty one, and a device that is
// opened for a workload gives it Theorem 1's share, unchecked: a heavy workload above the power cap is then
// late by the model's own reckoning. O(m^2) for m workloads.
Plan plan_igniter(std::span<const Workload> workloads, std::span<const DeviceType> types);

// First fit, decreasing, of Theorem 1's shares; blind to interference (FFD+, section 5.1).
Plan plan_ffd(std::span<const Workload> workloads, std::span<const DeviceType> types);

// gpu-lets+: at most two workloads a device, shares of 20, 40, 50, 60 or 80%. Each gets the share with the
// most requests a second per percent at its SLO when alone, or what its rate needs where that is more, and
// the smallest batch that keeps up with the rate there; in descending order of rates, on the device that it
// fills best. The pair's interference is looked at for the newcomer's latency only. Rates that no choice
// serves get the largest.
Plan plan_gpulets(std::span<const Workload> workloads, std::span<const DeviceType> types);

// GSLICE+: iGniter's devices, evenly divided at first; then five times each workload by itself sets its share
// by the ratio of its latency to half its SLO, where it is late, too slow, or below nine tenths. Shares on a
// device may sum to more than it has.
Plan plan_gslice(std::span<const Workload> workloads, std::span<const DeviceType> types);

}  // namespace carillon::provision
