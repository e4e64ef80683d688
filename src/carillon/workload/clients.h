#pragma once

#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/workload/scenario.h"

namespace carillon::workload {

// All open-loop requests of a scenario in the order of time, made as they are asked for. Each model draws
// from a generator of its own, so that one model's requests do not depend on the others'.
class Clients {
 public:
  explicit Clients(const Scenario& scenario);

  // When the next request is sent; max() where there is none before the scenario's end.
  TimePoint next_at() const { return next_.empty() ? TimePoint::max() : next_.top().first; }
  // Takes it: the place of its model. taken() is its number among those of its model.
  std::uint32_t take();
  std::size_t taken() const { return taken_; }

 private:
  struct Stream {
    ArrivalSpec spec;
    std::vector<RateStep> steps;  // by time; the last holds to the end
    std::size_t step = 0;
    Random random{0};
    TimePoint at{};   // of the last
    double work = 0;  // of the gap that is under way: in units of mean gaps, still to pass
    const std::vector<PlannedRequest>* planned = nullptr;
    const std::vector<std::uint32_t>* per_minute = nullptr;
    std::vector<TimePoint> minute;  // of the trace's minute under way, descending
    std::size_t place = 0;
    std::size_t taken = 0;
  };
  TimePoint advance(Stream& stream);

  TimePoint end_;
  std::size_t taken_ = 0;
  std::vector<Stream> streams_;
  using Next = std::pair<TimePoint, std::uint32_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next_;
};

}  // namespace carillon::workload
