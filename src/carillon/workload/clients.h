#pragma once

#include <cstdint>
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
  TimePoint next_at() const { return first_.empty() ? TimePoint::max() : first_[1].first; }
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
  void set_next(std::uint32_t model, TimePoint at);

  TimePoint end_;
  std::size_t taken_ = 0;
  std::vector<Stream> streams_;
  // A tournament, as each request that is taken makes way for its model's next: from streams_.size() on each
  // model's next, max() for none; before that each place has the earlier of twice and twice plus one.
  std::vector<std::pair<TimePoint, std::uint32_t>> first_;
};

}  // namespace carillon::workload
