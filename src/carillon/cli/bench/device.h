#pragma once

#include "carillon/base/result.h"

namespace carillon::cli {

struct DeviceLoad {
  int actions = 2'000'000;  // INFERs; the first tenth is not measured
  int waiting = 4;          // INFERs that wait for EXEC at a time
  int models = 16;
  bool json = false;
};

// What the device core takes of its thread, with executors that are done at once: for an INFER from its
// receipt to its report, for an eviction and the resumption that follows it, for a LOAD and an UNLOAD. Prints
// a table, or with `json` one object: nanoseconds, and instructions where the system lets them be counted.
// Returns an exit status.
int bench_device(const DeviceLoad& load);

}  // namespace carillon::cli
