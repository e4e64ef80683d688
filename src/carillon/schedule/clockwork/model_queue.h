#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/workload/request.h"

namespace carillon::schedule {

// One waiting request. Most urgent first: by due time, then priority, then arrival.
struct Waiting {
  TimePoint due;  // its deadline; in a queue without deadlines its arrival
  std::uint32_t priority = 0;
  std::uint64_t sequence = 0;
  RequestId id;

  friend auto operator<=>(const Waiting&, const Waiting&) = default;
};

// What a batch size costs at one moment: `span` from start to answer, estimates and margins included.
struct BatchCost {
  int batch = 1;
  Duration span{0};
};

// The strategy that a queue offers: the batch size, the first request in it, and the required start (due time
// of the first less the cost; in a queue without deadlines the arrival of the first).
struct Strategy {
  TimePoint start;
  int batch_index = 0;
  Waiting first;
};

// Waiting requests of one model and rank, in order of urgency. A batch is always a run of neighbours: if one
// starts at `first`, its first member is the one with the nearest deadline.
//
// insert, erase and take cost O(log n) and the size of the batch, best O(log n) and the largest batch size.
class ModelQueue {
 public:
  explicit ModelQueue(bool deadlines = true) : deadlines_(deadlines) {}

  bool deadlines() const { return deadlines_; }
  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }
  const Waiting& head() const { return *waiting_.begin(); }
  const Waiting& tail() const { return *waiting_.rbegin(); }

  void insert(const Waiting& w) { waiting_.insert(w); }
  bool erase(const Waiting& w) { return waiting_.erase(w) == 1; }

  // The strategy by the rules of Clockwork's appendix B if the batch starts at `start`, or none: the largest
  // batch size for which there are enough requests that all end in time. The first of them that is in time
  // leads, so requests before it, which are in time only in smaller batches, are passed over.
  std::optional<Strategy> best(std::span<const BatchCost> costs, TimePoint start) const;

  // No strategy of best() can have an earlier required start, whatever its `start`. Not for an empty queue.
  TimePoint bound(std::span<const BatchCost> costs) const;

  // Removes the `count` requests from `first` on, appending their ids.
  void take(const Waiting& first, int count, std::vector<RequestId>& out);

 private:
  using Set = std::set<Waiting>;
  Set waiting_;
  bool deadlines_;
};

}  // namespace carillon::schedule
