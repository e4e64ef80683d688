#include "fuzz.h"

#include "carillon/profile/interference.h"
#include "carillon/profile/interference_measurements.h"
#include "carillon/profile/kernel_table.h"
#include "carillon/profile/profile.h"
#include "carillon/provision/observed.h"
#include "carillon/provision/served_plan.h"
#include "carillon/workload/disb.h"

// The JSON files, and metrics as `plan` reads them: every parser sees every input.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  const auto text = fuzz::text_of(data, size);
  if (const auto read = profile::parse_profile(text, "input"); fuzz::taken(read))
    (void)fuzz::taken(profile::parse_profile(profile::to_json(*read), "written"));
  (void)fuzz::taken(profile::parse_kernel_table(text, "input"));
  (void)fuzz::taken(profile::parse_coefficients(text, "input"));
  (void)fuzz::taken(profile::parse_hardware(text, "input"));
  profile::InterferenceMeasurements measurements;
  (void)fuzz::taken(profile::add_measurements(text, "input", measurements));
  (void)fuzz::taken(provision::parse_served_device(text, "input", std::nullopt));
  (void)fuzz::taken(provision::parse_metrics(text, "input"));
  (void)fuzz::taken(workload::parse_disb(text, "input"));
  return 0;
}
