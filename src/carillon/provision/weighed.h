#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/provision/autoscale.h"

namespace carillon::provision {

// What is counted of a model; all of it only grows.
struct ModelWork {
  std::string_view name;
  std::int64_t version = 0;
  std::uint64_t requests = 0;  // that had their outcome
  std::uint64_t bad = 0;       // of these, not answered on time
  std::uint64_t ran = 0;       // rows that devices ran
  Duration busy{0};            // device time of these rows
};

// What a request counts for, of a model whose `ran` rows took `busy`, where `all_ran` rows of all models took
// `all_busy`. A model that has not run: 1.
double request_weight(Duration busy, std::uint64_t ran, Duration all_busy, std::uint64_t all_ran);

// Counts requests by the device time that they take: a request counts for one where a row of its model takes
// the mean time of all rows that ran. Models that have not run count for one.
//
// Under overload policies refuse the requests that take longest. Then few requests are bad, and much work is
// missing: on the load of Symphony's figure 15 a bad rate of 16% of the requests is 52% of the work. Not
// thread-safe; a call takes the number of models, times its logarithm.
class WeighedRequests {
 public:
  // For an AutoscaleWindow. `busy`: of all devices. A model that is left out keeps its place.
  AutoscaleWindow::Counters observe(const std::vector<ModelWork>& models, Duration busy);

 private:
  struct Seen {
    std::uint64_t requests = 0, bad = 0;
  };
  std::map<std::pair<std::string, std::int64_t>, Seen> seen_;
  double requests_ = 0, bad_ = 0;
};

}  // namespace carillon::provision
