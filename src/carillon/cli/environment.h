#pragma once

#include "carillon/base/result.h"
#include "carillon/cluster/protocols.h"

namespace carillon::cli {

// Tells malloc which blocks go back to the system. Before other threads start.
void prepare_environment();

// What this process speaks to members of a cluster: what its build does, or for tests of upgrades what the
// variable CARILLON_PROTOCOLS says, such as 1-2. Errors name the variable.
Result<cluster::Protocols> protocols_of_environment();

}  // namespace carillon::cli
