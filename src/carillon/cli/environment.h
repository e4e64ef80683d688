#pragma once

namespace carillon::cli {

// Tells malloc which blocks go back to the system. Before other threads start.
void prepare_environment();

}  // namespace carillon::cli
