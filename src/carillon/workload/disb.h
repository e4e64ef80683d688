#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/workload/request.h"

namespace carillon::workload {

// A client of a DISB workload (REEF, section 7.1): it sends requests of batch one for one model, and has at
// most one under way.
struct DisbClient {
  enum class Arrivals : std::uint8_t {
    periodic,     // every 1/rate, the first at `phase`
    poisson,      // at `rate`
    closed_loop,  // the next as the last is answered
    trace         // at the times given
  };
  std::string name;                // unique in the workload
  std::string model;               // as the file calls it
  Class cls = Class::best_effort;  // or real_time
  Arrivals arrivals = Arrivals::closed_loop;
  double rate = 0;              // requests a second, in 1e-3..1e5
  Duration phase{0};            // of `periodic`
  std::vector<Duration> trace;  // ascending, from the start, each before the workload's end
};

struct DisbWorkload {
  std::string name;                 // "A", or the file's stem
  Duration length;                  // 1 ms to 24 h
  std::vector<DisbClient> clients;  // 1 to 1,000
};

// One of the workloads that the program brings with it: A, B (real-time requests in a closed loop, as the
// file has it), B220 (220 a second, as the paper has it), C, D, E, REAL; upper or lower case. `not_found`
// names them all.
Result<DisbWorkload> disb_workload(std::string_view name, const std::filesystem::path& folder);

// A file in the format of github.com/SJTU-IPADS/disb (benchmarks/workloads/*.json): {"time": seconds,
// "tasks":
// [{"id", "load": {"type", ...}, "client": {"model_name", "batch_size"}}]}. A task is real-time or
// best-effort by its id's suffix, `_rt` or `_be`, or by a field "class" of ours ("real_time", "best_effort").
// Periodic clients of priority 0 start evenly spread over a period among those of their rate, as the
// benchmark does; others at 0. Launch times of a trace are milliseconds; those at the workload's end and
// later are left out. Refused: batch sizes other than 1, `dependent` tasks, and whatever is of the wrong type
// or range, naming the place.
Result<DisbWorkload> parse_disb(std::string_view json, std::string_view name);
Result<DisbWorkload> read_disb(const std::filesystem::path& file);

// `rate` of every periodic and Poisson client times `factor`; a trace's times, the phases and the length are
// stretched by 1/factor. Needs factor in 1e-3..1e3. What live runs on another device use.
void scale_rates(DisbWorkload& workload, double factor);

}  // namespace carillon::workload
