#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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
  double rate = 0;    // requests a second, in 1e-3..1e5
  Duration phase{0};  // of `periodic`: at least 0
  // Of `periodic`: it is to start apart from others of its rate. stagger() sets its phase anew.
  bool staggered = false;
  std::vector<Duration> trace;  // ascending, from the start, each before the workload's end
};

struct DisbWorkload {
  std::string name;                 // "A", or the file's stem
  Duration length;                  // 1 ms to 24 h
  std::vector<DisbClient> clients;  // 1 to 1,000
};

// One of the program's own (scenarios/disb), in upper or lower case: A, B (real-time requests in a closed
// loop, as the file has it), B220 (220 a second, as the paper has it), C, D, E, REAL. `not_found` names them
// all.
Result<DisbWorkload> disb_workload(std::string_view name);

// A file in the format of github.com/SJTU-IPADS/disb (benchmarks/workloads/*.json): {"time": seconds,
// "tasks":
// [{"id", "load": {"type", ...}, "client": {"model_name", "batch_size"}}]}. A task is real-time or
// best-effort by its id's suffix, `_rt` or `_be`, or by a field "class" of ours ("real_time", "best_effort"),
// which comes first. Periodic clients of priority 0 (what none says has it) are `staggered`: they start
// evenly spread over a period among those of their rate, until stagger() knows better; others at 0. Launch
// times of a trace are milliseconds in any order; those at the workload's end and later are left out. Refused
// (invalid_argument): batch sizes other than 1, `dependent` tasks, ids given twice, and whatever is of the
// wrong type or range, naming the place. Files of at most 64 MiB; not_found where there is none.
Result<DisbWorkload> parse_disb(std::string_view json, std::string_view name);
Result<DisbWorkload> read_disb(const std::filesystem::path& file);

// Phases as the benchmark sets them: of the staggered clients of one rate, each starts when those before it
// would have ended, one after the other, where each takes as long as `alone` says of its model. `alone` >= 0.
void stagger(DisbWorkload& workload, const std::function<Duration(std::string_view model)>& alone);

// Ends the workload there, and leaves out what its traces have at that time and later. Needs 1 ms to 24 h.
void set_length(DisbWorkload& workload, Duration length);

// `rate` of every periodic and Poisson client times `factor`; a trace's times, the phases and the length are
// stretched by 1/factor. Needs factor in 1e-3..1e3. What live runs on another device use.
void scale_rates(DisbWorkload& workload, double factor);

}  // namespace carillon::workload
