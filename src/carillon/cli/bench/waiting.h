#pragma once

#include <cstdint>
#include <string>

#include "carillon/base/result.h"
#include "carillon/base/statistics.h"

namespace carillon::cli {

struct WaitingOptions {
  std::string scheduler = "orloj";
  int models = 1000;
  int apps = 4096;  // in all, dealt to the models in turn; their ids are the larger the later
  int devices = 64;
  int waiting = 10000;  // requests, always
  std::int64_t decisions = 200'000;
};
struct WaitingFigures {
  LatencyHistogram times;  // of decisions, of this thread's time
  std::uint64_t batches = 0, batched = 0, refused = 0, late = 0;
};

// What single decisions cost while many requests wait: for each that is answered or refused another comes, of
// a random model and application. An application's requests take about a time of their own, from 1 to 16 ms,
// and have SLOs of 0.5 to 3 s; a twentieth of them is sampled, where the policy learns from that. Virtual
// time; before anything is measured as many decisions go by as are measured.
Result<WaitingFigures> measure_waiting(const WaitingOptions& options);

}  // namespace carillon::cli
