#pragma once

#include <cstdint>

#include "carillon/simulate/simulation.h"
#include "carillon/workload/scenario.h"

namespace carillon::simulate::testing {

// Two seconds in a small world in which all that can go wrong may.
struct FaultCase {
  workload::Scenario scenario;
  Faults faults;
  Duration decision_time{0};
};

// By the seed: one to four devices, one to eight models, memory that may be scarce, any load, and some
// faults.
FaultCase fault_case(std::uint64_t seed);
// The same with requests of all classes.
FaultCase class_case(std::uint64_t seed);

}  // namespace carillon::simulate::testing
