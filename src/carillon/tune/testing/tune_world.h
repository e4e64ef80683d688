#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "carillon/tune/tuning.h"

namespace carillon::tune::testing {

struct TuneWorldFigures {
  std::uint64_t events = 0, trials = 0, changes = 0, ended = 0;
  TimePoint end;
  std::optional<std::string> broken;  // a promise, or a trial that never ended
};

// A world of trials and devices, drawn by its seed, under a policy and the eyes of a TuneChecker. Devices of
// unlike speed and memory come, go, change, lose their supply and get it back; groups come at once and late,
// of trials whose budgets and times are told or not; trials are paused and wanted again, die and are retried,
// report what cannot be, settle late; ids come twice. In the end all devices have supply again, and each
// trial must end within the time that all of them need one after the other, several times over, with a
// bounded number of changes.
TuneWorldFigures run_tune_world(std::uint64_t seed, const std::string& policy);

}  // namespace carillon::tune::testing
