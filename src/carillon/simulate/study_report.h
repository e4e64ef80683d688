#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "carillon/simulate/study.h"
#include "carillon/workload/study.h"

namespace carillon::simulate {

// What a run of a study came to.
struct StudyReport {
  std::string name, algorithm, scheduler;
  std::uint64_t seed = 0;
  std::size_t devices = 0;
  double makespan_s = 0;  // until the last trial ended, or the target was reached
  std::optional<double> time_to_target_s;
  double device_seconds = 0;  // in which a device ran a trial
  double utilization = 0;     // these, over devices times makespan
  double used_supply = 0;     // these, over what there was for trials
  double work_s = 0;          // of all iterations, as each takes alone on a device of speed 1
  StudyFigures figures;
};

StudyReport make_study_report(const workload::Study& study, std::string_view scheduler, StudyFigures figures);

// With "each", a list of all trials, where asked for.
nlohmann::ordered_json to_json(const StudyReport& report, bool each);
// Runs of one file, a line each.
std::string to_table(std::span<const StudyReport> runs);

// One SVG of a run: how busy each device was (as figures 3.2 and 3.6), which trial ran where, and the best
// metric so far. Needs a run with StudyRunOptions::timeline.
std::string to_svg(const workload::Study& study, std::string_view scheduler, const StudyFigures& figures);

}  // namespace carillon::simulate
