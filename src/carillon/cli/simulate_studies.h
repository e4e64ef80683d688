#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/simulate/study_report.h"
#include "carillon/workload/study.h"

// `carillon simulate` on files of studies.
namespace carillon::cli {

struct StudyRun {
  workload::Study study;
  std::string scheduler;
  simulate::StudyReport report;
  std::string svg;
};

// "fifo, static, ...".
std::string tune_policy_list();

// Every file under every scheduler (the file's own where none is given) with every seed (likewise). Errors: a
// file that cannot be read, an unknown scheduler.
Result<std::vector<StudyRun>> make_study_runs(const std::vector<std::string>& files,
                                              const std::vector<std::string>& schedulers,
                                              const std::vector<std::uint64_t>& seeds);

struct StudyRunning {
  int at_a_time = 1;
  bool plots = false;
  bool (*go_on)() = nullptr;  // asked now and then
};
// Runs them, and says on a terminal how far it is.
Result<> run_study_runs(std::vector<StudyRun>& runs, const StudyRunning& how);

// One object, or {"runs": [...]}.
std::string studies_as_json(const std::vector<StudyRun>& runs, bool each_trial);
std::string studies_as_tables(const std::vector<StudyRun>& runs);

}  // namespace carillon::cli
