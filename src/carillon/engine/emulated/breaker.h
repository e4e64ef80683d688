#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::engine {

// Breaks an emulated device and mends it, by hand or at times that were planned: a device that fails gives
// errors, one that hangs does not come back from a call until the hang is over. Safe from any thread. `clock`
// outlives it.
class Breaker {
 public:
  enum class Fault : std::uint8_t { failure, hang };
  struct Outage {  // at [from, until)
    Fault fault{};
    TimePoint from;
    TimePoint until = TimePoint::max();
  };

  explicit Breaker(const Clock& clock) : clock_(clock) {}

  void plan(const Outage& outage);
  void fail() { plan({Fault::failure, clock_.now()}); }
  void hang() { plan({Fault::hang, clock_.now()}); }
  void mend();  // whatever is broken now is well from now on

  // What the device's work passes through when its time is up: comes back when no hang is under way.
  // `unavailable` where the device failed at some time since `since`, when the work began.
  Result<> pass(TimePoint since);

 private:
  bool broken(Fault fault, TimePoint from, TimePoint until) const;

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outage> outages_;
};

}  // namespace carillon::engine
