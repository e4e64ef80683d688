#include "fuzz.h"

#include "carillon/workload/scenario.h"
#include "carillon/workload/scenario_files.h"

// A scenario, and the same bytes as a profile in CSV and as a trace.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  static const fuzz::InputFile file("input");
  const auto text = fuzz::text_of(data, size);
  file.write(text);
  (void)fuzz::taken(workload::parse_scenario(text, file.path()));
  try {
    (void)workload::read_profile_csv(file.path());
  } catch (const workload::Problem& problem) {
    fuzz::must(!problem.message.empty(), "an error says what is wrong");
  }
  workload::Scenario scenario;
  scenario.trace = file.path();
  scenario.duration = std::chrono::minutes{2};
  scenario.models.resize(3);
  try {
    workload::deal_trace(scenario, 2, 2, 0.5);
  } catch (const workload::Problem& problem) {
    fuzz::must(!problem.message.empty(), "an error says what is wrong");
  }
  return 0;
}
