#pragma once

#include <string>

#include "carillon/simulate/simulation.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate {

// One SVG of a run: the latency CDF of answers (with the models' SLOs), how many requests ran in batches of
// each size, and what each device ran over the first part of the timeline. Reorders the latencies in
// `figures`.
std::string to_svg(const workload::Scenario& scenario, std::string_view scheduler, Figures& figures,
                   Duration interval = Duration{0});

}  // namespace carillon::simulate
