#include <algorithm>

#include "fuzz.h"

#include "carillon/cluster/coordinator/lease.h"
#include "carillon/cluster/coordinator/member.h"
#include "carillon/cluster/partition/partition_json.h"
#include "carillon/profile/interference.h"
#include "carillon/profile/interference_measurements.h"
#include "carillon/profile/kernel_table.h"
#include "carillon/profile/profile.h"
#include "carillon/provision/arrivals.h"
#include "carillon/provision/observed.h"
#include "carillon/provision/served_plan.h"
#include "carillon/workload/disb.h"

// The JSON files, and metrics as `plan` reads them. The first byte says which parser gets the rest: were all
// of them to get all, most of the time would go into reading the same JSON again.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  if (size == 0) return 0;
  const auto text = fuzz::text_of(data + 1, size - 1);
  switch (data[0] % 11) {
    case 0:
      if (const auto read = profile::parse_profile(text, "input"); fuzz::taken(read))
        (void)fuzz::taken(profile::parse_profile(profile::to_json(*read), "written"));
      return 0;
    case 1:
      (void)fuzz::taken(profile::parse_kernel_table(text, "input"));
      return 0;
    case 2:
      if (const auto read = profile::parse_coefficients(text, "input"); fuzz::taken(read))
        fuzz::must(profile::parse_coefficients(profile::to_json(*read), "written").has_value(),
                   "what is written can be read");
      return 0;
    case 3:
      if (const auto read = profile::parse_hardware(text, "input"); fuzz::taken(read))
        fuzz::must(profile::parse_hardware(profile::to_json(*read), "written").has_value(),
                   "what is written can be read");
      return 0;
    case 4: {
      profile::InterferenceMeasurements measurements;
      (void)fuzz::taken(profile::add_measurements(text, "input", measurements));
      return 0;
    }
    case 5:
      (void)fuzz::taken(provision::parse_served_device(text, "input", std::nullopt));
      return 0;
    case 6:
      (void)fuzz::taken(provision::parse_metrics(text, "input"));
      return 0;
    case 8: {
      // Models in a line, and the division in force.
      const auto line = std::min(text.find('\n'), text.size());
      auto problem = cluster::parse_problem(text.substr(0, line), "input", 2);
      if (!fuzz::taken(problem)) return 0;
      (void)fuzz::taken(cluster::parse_current(text.substr(line), "input", *problem));
      const auto found = cluster::partition(*problem, {.search = {.effort = 10'000}});
      if (!fuzz::taken(found)) return 0;
      fuzz::must(found->figures.feasible, "a division keeps its bounds");
      fuzz::must(found->bound <= found->figures.objective, "no division is below the bound");
      fuzz::must(
          cluster::parse_current(cluster::to_json(*problem, *found, {}), "written", *problem).has_value(),
          "what is written can be read");
      return 0;
    }
    case 9: {
      // What an API server of Kubernetes says.
      using namespace cluster::kubernetes;
      (void)fuzz::taken(lease_of(text));
      (void)fuzz::taken(lease_list_of(text));
      (void)status_of(text);
      const auto event = lease_event_of(text);
      if (!fuzz::taken(event) || event->kind != LeaseEvent::Kind::put) return 0;
      (void)fuzz::taken(cluster::member_of(event->lease.member));
      (void)fuzz::taken(stored_epoch(event->lease));
      return 0;
    }
    case 10: {
      const auto arrivals = provision::parse_arrival_times(text, "input");
      if (!fuzz::taken(arrivals)) return 0;
      fuzz::must(std::is_sorted(arrivals->times.begin(), arrivals->times.end()), "times ascend");
      fuzz::must(arrivals->times.front() == 0 && arrivals->times.back() > 0, "times begin at 0 and go on");
      return 0;
    }
    default:
      (void)fuzz::taken(workload::parse_disb(text, "input"));
      return 0;
  }
}
