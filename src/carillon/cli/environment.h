#pragma once

#include "carillon/base/result.h"
#include "carillon/cluster/protocols.h"

namespace carillon::cli {

// Tells malloc which blocks go back to the system. Before other threads start.
void prepare_environment();

// The protocols that this process speaks to members of a cluster: those of its build. For tests of upgrades
// the variable CARILLON_PROTOCOLS sets others, such as 1-2. Errors name the variable.
Result<cluster::Protocols> protocols_of_environment();

}  // namespace carillon::cli
