#pragma once

#include <CLI/CLI.hpp>

namespace carillon::cli {

// Adds `carillon bench cluster`: requests a second through one leader, over the network.
void add_bench_cluster(CLI::App& bench, int& status);

}  // namespace carillon::cli
