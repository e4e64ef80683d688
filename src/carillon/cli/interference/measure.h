#pragma once

#include <functional>
#include <string>

#include "carillon/cli/interference/probe.h"
#include "carillon/profile/interference_measurements.h"

namespace carillon::cli {

struct MeasureOptions {
  int most_together = 3;  // models on the device at once, 1 to 5; 1: only alone
  int max_batch = 32;     // larger ones are not measured; >= 1
  std::function<void(const std::string&)> tell = [](const std::string&) {};  // what goes on, for people
};

// The configurations of one model alone: up to three batch sizes (least, middle, largest) at shares of 25%,
// 50% and 100%, and two between: eleven, as in iGniter's section 3.1.
std::vector<Placed> alone(const ModelFacts& model, int max_batch);

// Models together, each at an equal share: 2 to `most_together` of one kind and of different kinds, for the
// fit; and with the largest batch and uneven shares, for the check of it.
struct Together {
  std::vector<std::vector<Placed>> fit, check;
};
Together together(std::span<const ModelFacts> models, const MeasureOptions& options);

// Runs all of them. Errors are those of the probe, with the configuration.
Result<profile::InterferenceMeasurements> measure_interference(InterferenceProbe& probe,
                                                               const MeasureOptions& options);

}  // namespace carillon::cli
