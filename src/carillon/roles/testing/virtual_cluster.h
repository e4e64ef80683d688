#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "carillon/base/time.h"

namespace carillon::roles::testing {

// Mistakes that the world makes on behalf of the code under test.
enum class ClusterPlant : std::uint8_t {
  none,
  no_fence,       // a worker obeys whatever stream an order comes on, of whatever epoch
  no_compare,     // etcd sets the epoch without a look at the one before
  second_output,  // a frontend accepts outputs of a row that has had its outputs
  no_bound,       // times of other hosts are converted as if the clocks' difference were known exactly
  old_clock,      // times of a process are converted by the clock of its member's process before, too
};

struct ClusterOptions {
  std::string policy = "symphony";
  ClusterPlant plant = ClusterPlant::none;
  // False: nothing fails. Clients ask for about two thirds of what the devices can do.
  bool faults = true;
  // All hosts have the same clock, and times cross between them as they are.
  bool one_clock = false;
  Duration rest_patience = std::chrono::milliseconds{120};  // of calls at rest
  bool trace = false;                                       // to stderr: faults, leaders and streams
};

struct ClusterFigures {
  std::optional<std::string> broken;  // the first promise that was, and when
  std::uint64_t events = 0;
  std::uint64_t calls = 0, on_time = 0, orphans = 0;  // orphans: their frontend died
  std::uint64_t epochs = 0, stale = 0;                // stale: frames that the fence refused
  std::uint64_t actions = 0;                          // EXECs and LOADs that began
  std::uint64_t bounds = 0;                           // of clocks that were held against the truth
  std::uint64_t crashes = 0, pauses = 0, steps = 0, cuts = 0, coordinator = 0, devices = 0, breaks = 0,
                handovers = 0;
  std::uint64_t excused = 0;  // calls at rest without an answer in time, after a stall or a clock's step
  std::uint64_t late_wins = 0, second_outputs = 0;  // outputs of earlier orders; outputs that came second
  Duration latest{0};                               // an answer, after its call's deadline
};

// Whole hosts in virtual time, drawn by the seed: two or three schedulers, two frontends, three or four
// workers of two devices, and etcd. Each host has a hosts::MemberCore, a client of etcd, a clock of its own
// (up to 1000 s apart, +-100 ppm) and the core of its role. They are put together as the live hosts are.
// Times cross hosts by transport::to_our_time() alone. Datagrams are lost, doubled and overtake each other.
// Streams are in order, wait while a link is cut, and may break. A link's two ways differ by up to 1 ms.
//
// Faults (ClusterOptions::faults): links cut one way or both, hosts cut off, processes that crash, hosts that
// start anew with another clock, hosts that stand still with or without their clock, clocks that step, etcd
// gone, slow or cut off from a host, devices that are lost, streams that break, handovers.
//
// Held at every event, in true time:
// - each call has one answer, and the right one, unless its frontend dies;
// - one process leads an epoch;
// - nothing of a lower epoch begins on a device once its worker accepted a higher one;
// - nothing begins on a device outside the window that its leader decided, by the leader's clock;
// - two clocks differ by what a PeerClock says, within its bound;
// - a row takes the outputs of one push;
// - a second after the faults: one leader, whom all obey; it has all devices; all requests are on time; then
//   no row is open anywhere.
//
// Where a clock stepped, or the leader of the end stood still or heard nobody for half of `rest_patience` or
// longer, requests may be late: the leader plans with such a stall for a while (ClusterFigures::excused).
//
// For `stepped` after a clock steps, its bounds and the windows that rest on them are not held: nobody can
// know of the step before.
ClusterFigures run_virtual_cluster(std::uint64_t seed, const ClusterOptions& options);

}  // namespace carillon::roles::testing
