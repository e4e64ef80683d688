#pragma once

#include <nlohmann/json.hpp>

namespace carillon::cli {

// What deciding which kernels run beside which takes (research::Sharing, under reef), with 5 and with 50
// best-effort queues: a real-time run that comes while all have launches in flight, what is chosen to run
// beside real-time kernels as a launch ends, and a launch in normal mode. The calls of a simulated second are
// recorded, and made again on a fresh object, which is timed. Prints a table unless `quiet`; the numbers for
// JSON come back.
nlohmann::ordered_json bench_sharing(bool quiet);

}  // namespace carillon::cli
