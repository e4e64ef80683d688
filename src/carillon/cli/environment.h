#pragma once

namespace carillon::cli {

// Sets what must be in the environment before libraries start (how OpenMP's threads wait), by running the
// program again with it where it was not set. What the user has set is kept.
void prepare_environment(int argc, char** argv);

}  // namespace carillon::cli
