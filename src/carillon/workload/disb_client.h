#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "carillon/base/random.h"
#include "carillon/base/time.h"
#include "carillon/workload/disb.h"

namespace carillon::workload {

// When a client's requests are planned, one after the other, from TimePoint{} on. `client` outlives it.
class DisbArrivals {
 public:
  DisbArrivals(const DisbClient& client, const Random& random) : client_(&client), random_(random) {}

  // max() where there are no more; of a closed loop none is planned but the first.
  TimePoint next();

 private:
  const DisbClient* client_;
  Random random_;
  std::size_t count_ = 0;
  TimePoint last_;
};

// What a client sends when: it has one request under way. One that is planned meanwhile waits for it, and is
// dropped once the next is planned, too, as the benchmark's clients do silently.
class DisbSender {
 public:
  explicit DisbSender(bool closed_loop) : closed_loop_(closed_loop) {}

  // A request is planned for `at`. Whether it is to be sent now.
  bool planned(TimePoint at);
  // The one under way was answered at `now`; when the request was planned that is to be sent now, if any is.
  std::optional<TimePoint> answered(TimePoint now);

  bool busy() const { return busy_; }
  std::uint64_t requests() const { return requests_; }  // planned
  std::uint64_t dropped() const { return dropped_; }
  std::uint64_t unfinished() const { return (busy_ ? 1U : 0U) + (late_ ? 1U : 0U); }  // sent or waiting

 private:
  bool closed_loop_;
  bool busy_ = false;
  std::optional<TimePoint> late_;  // when the one that waits was planned
  std::uint64_t requests_ = 0, dropped_ = 0;
};

}  // namespace carillon::workload
