#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/device/action.h"

namespace carillon::simulate {

// What is planned. An action under way is named by its place in Devices.
using FlightIndex = std::uint32_t;

struct DeviceStep {  // of VirtualDevice::event
  std::uint32_t device = 0;
  std::uint32_t life = 0;
  std::uint64_t what = 0;
};
struct ActionArrives {  // at its device
  FlightIndex flight = 0;
};
struct EvictionArrives {
  ActionId id;
  device::After after{};
  TimePoint order;
};
struct ReportArrives {  // at the scheduler
  FlightIndex flight = 0;
  bool doubled = false;
};
struct DeviceDies {
  std::uint32_t device = 0;
  std::optional<Duration> length = std::nullopt;  // until it is back; none: some time. max(): never
};
struct DeviceStalls {
  std::uint32_t device = 0;
  std::optional<Duration> length =
      std::nullopt;  // of all that runs or begins; none: what runs, some time each
};
struct DeviceSlowsDown {
  std::uint32_t device = 0;
};
struct DeviceReturns {
  std::uint32_t device = 0;
};
struct DevicesScale {};  // as many as are wanted are to come, or to go
struct DeviceStarts {
  std::uint32_t device = 0;
  std::uint32_t booking = 0;
};
struct DeviceLeaves {  // once it has nothing to do
  std::uint32_t device = 0;
};
struct DecisionMade {};
struct NothingToProfile {  // it is reported
  ActionId id;
  DeviceId device;
  std::uint32_t life = 0;
};
struct ClientSends {  // of a closed loop
  ModelId model;
};
struct RequestHeard {
  RequestId id;
};
struct ClientGoes {
  RequestId id;
};
struct AllHeard {};  // what clients sent together
struct SchedulerWakes {
  std::uint32_t booking = 0;  // void where another came after it
};
using Step =
    std::variant<DeviceStep, ActionArrives, EvictionArrives, ReportArrives, DeviceDies, DeviceStalls,
                 DeviceSlowsDown, DeviceReturns, DevicesScale, DeviceStarts, DeviceLeaves, DecisionMade,
                 NothingToProfile, ClientSends, RequestHeard, ClientGoes, AllHeard, SchedulerWakes>;

// What is planned, in the order of time. Of one instant: what devices did, then what clients did, then that
// they have sent all, then what the scheduler had planned, each in the order of planning.
class Calendar {
 public:
  void plan(TimePoint at, Step step) {
    queue_.push({at, (static_cast<std::uint64_t>(rank(step)) << 56) | next_++, step});
  }
  bool empty() const { return queue_.empty(); }
  TimePoint next_at() const { return queue_.empty() ? TimePoint::max() : queue_.top().at; }
  // The next is of a device, or of the controller that hears it.
  bool next_is_a_devices() const { return queue_.top().order >> 56 == 0; }
  std::pair<TimePoint, Step> take() {
    std::pair<TimePoint, Step> first(queue_.top().at, queue_.top().step);
    queue_.pop();
    return first;
  }

 private:
  struct Entry {
    TimePoint at;
    std::uint64_t order = 0;
    Step step;
    friend bool operator>(const Entry& a, const Entry& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  static std::uint8_t rank(const Step& step) {
    if (std::holds_alternative<SchedulerWakes>(step)) return 3;
    if (std::holds_alternative<AllHeard>(step)) return 2;
    return std::holds_alternative<ClientSends>(step) || std::holds_alternative<RequestHeard>(step) ||
                   std::holds_alternative<ClientGoes>(step)
               ? 1
               : 0;
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::uint64_t next_ = 0;
};

}  // namespace carillon::simulate
