#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/ledger/order.h"

namespace carillon::wire {

// Times of one action, all on the device's clock. Unused steps are equal to the one before.
struct ActionTimes {
  TimePoint received;
  TimePoint input_start, input_end;    // INPUT
  TimePoint exec_start, exec_end;      // EXEC, or LOAD's copy, or UNLOAD
  TimePoint output_start, output_end;  // OUTPUT
  Duration paused{0};                  // of EXEC, while it was preempted
  int preemptions = 0;                 // how often
  Duration lost{0};                    // of what it ran: of kernels that were stopped inside and start again
  Duration padded{0};                  // of what it ran, best effort: beside real-time runs
  int threads = 0;                     // that EXEC's kernels had, of class normal; 0: not told
  bool preempts = false;               // real-time: what goes later ran as it was received
  Duration ran() const { return exec_end - exec_start - paused; }  // on the device
};

// A row of an INFER that succeeded, and yet has no result: its outputs are not written.
struct BadRow {
  int row = 0;  // in the order
  // invalid_argument: its own data are bad, and what is wrong with them. deadline_exceeded: another's were,
  // and there was no time left to run this one by itself.
  Error error;
};

// What a device says of an action, once.
struct Report {
  ActionId id;
  ledger::ActionStatus status{};
  ActionTimes times;
  std::string error;               // for failed: what went wrong; empty (and unallocated) otherwise
  bool device_lost = false;        // it failed because the device did: see engine::Plan::run
  std::uint32_t life = 0;          // of the device, to which the action was given: see DeviceLink::retire()
  DeviceId device{};               // filled in by whoever passes the report on
  std::vector<BadRow> bad_rows{};  // of a success; empty (and unallocated) otherwise
  bool odd_time = false;  // EXEC's time says nothing of other batches: it ended early, or rows ran again
  bool delivers = false;  // of another host's: its outputs are on their way, and transport::Delivered follows
};

// How many actions a device takes at a time: those that were sent to it and are not reported. Whoever sends
// counts them.
struct Credit {
  std::size_t infers = std::numeric_limits<std::size_t>::max();  // Profiles are among them
  std::size_t loads = std::numeric_limits<std::size_t>::max();   // UNLOADs are among them
};

// What a probe has found.
struct ProbeReport {
  Result<> found;  // an error: the device does not answer as it should
  std::uint32_t life = 0;
  DeviceId device{};  // likewise
};

}  // namespace carillon::wire
