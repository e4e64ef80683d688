#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/profile/kernel_table.h"
#include "carillon/research/sharing/sharing.h"
#include "carillon/research/unit_device.h"
#include "carillon/workload/disb.h"

namespace carillon::research {

struct DisbOptions {
  std::string scheduler = "reef";  // of sharing_names()
  std::uint64_t seed = 1;          // of Poisson arrivals and of the device's noise
  UnitDeviceOptions device;
  SharingOptions sharing;
  // Called about once a simulated second with the part that is done; ends the run where it returns false.
  bool (*progress)(double done, void* user) = nullptr;
  void* user = nullptr;
  // Is told of everything besides; nullptr: nobody is. Runs are named by their client's place in the
  // workload.
  UnitObserver* observer = nullptr;
};

// What became of a client's requests. Latency is from the planned arrival to the end of the last kernel. An
// arrival that comes while the client's last request is under way waits for it; one whose turn comes only
// when the next is due already is dropped, as the benchmark's clients do silently.
struct DisbClientFigures {
  std::string name, model;
  Class cls{};
  std::uint64_t requests = 0;  // planned before the end
  std::uint64_t dropped = 0;
  std::uint64_t unfinished = 0;     // sent and not answered at the end
  std::vector<Duration> latencies;  // of those answered before the end
};

// What became of a model's best-effort (or real-time) kernels.
struct DisbModelFigures {
  std::string model;
  Duration real_time{0};     // unit time of its real-time kernels
  Duration best_effort{0};   // of its best-effort kernels that ended, and were not run again later
  Duration padded{0};        // of these, beside real-time runs
  Duration lost{0};          // unit time of what was killed, or run again after an eviction
  std::uint64_t killed = 0;  // launches
};

struct DisbFigures {
  Duration length;  // simulated
  std::vector<DisbClientFigures> clients;
  std::vector<DisbModelFigures> models;
  // From the arrival of a real-time request that found best-effort work on the device, and no real-time work,
  // to the start of its first kernel.
  std::vector<Duration> preemptions;
  Duration busy{0};  // unit time in use
  std::uint64_t launches = 0;
  std::uint64_t events = 0;
};

// Runs a workload on a simulated device of the table's units. Errors: a model that the table does not have,
// an unknown scheduler, options out of range. Deterministic: same arguments, same figures.
Result<DisbFigures> run_disb(const workload::DisbWorkload& workload, const profile::KernelTable& table,
                             const DisbOptions& options);

}  // namespace carillon::research
