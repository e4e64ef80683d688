#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/device/action.h"
#include "carillon/workload/request.h"

namespace carillon::ledger {

// Why a request gets no result.
enum class Reason : std::uint8_t {
  cannot_finish,    // no schedule could end by its deadline
  deadline_passed,  // it could have been on time, but others went first
  device_failed,    // its action failed or its device went
  no_device,        // no device can ever hold the model
  rejected_late,    // the worker could not start it in its window, too often or with no time for another try
  no_model,         // its model is not served any more
};
inline constexpr Reason last_reason = Reason::no_model;
std::string_view name_of(Reason reason);

using device::ActionKind;
using device::ActionStatus;
using device::name_of;

// What a scheduler wants done. Ids of actions are the scheduler's own, ascending, never used twice. (Those of
// Classed, and of each group of Subclusters, lie apart. Classed may hold back what its policy wants.)
struct Load {
  ActionId id;
  DeviceId device;
  ModelId model;
  Window window;
  Duration expected;
  friend bool operator==(const Load&, const Load&) = default;
};
struct Unload {
  ActionId id;
  DeviceId device;
  ModelId model;
  friend bool operator==(const Unload&, const Unload&) = default;
};
struct Infer {
  ActionId id;
  DeviceId device;
  ModelId model;
  std::vector<RequestId> requests;  // its size is a batch size that the model has a plan for
  Window window;
  Duration expected;          // of EXEC, on that device: for whoever watches it, and for prediction errors
  Class cls = Class::normal;  // whose streams run it (device::ClassStreams)
  // The policy's name for the model, where requests of one size are a model of their own to it (BySize). It
  // says whose times the run tells, is nobody else's business, and stands in no log.
  std::optional<ModelId> planned_as = std::nullopt;
  friend bool operator==(const Infer& a, const Infer& b) {
    return a.id == b.id && a.device == b.device && a.model == b.model && a.requests == b.requests &&
           a.window == b.window && a.expected == b.expected && a.cls == b.cls;
  }
};
struct Refuse {
  RequestId request;
  Reason reason{};
  TimePoint would_finish;  // when it would have ended; max() where never
  friend bool operator==(const Refuse&, const Refuse&) = default;
};
// Ends an INFER early, for policies that preempt. Where it had not ended, it is reported as `stopped` and has
// no effect; where it had, its own report stands.
struct Stop {
  ActionId id;
  DeviceId device;
  friend bool operator==(const Stop&, const Stop&) = default;
};
// Ends an INFER that runs before its next kernel, to go on later from there: it is reported once, when it is
// done. `order` is its place in its stream's order from then on, that of an action whose window opens then.
// What does not run yet keeps its place until it does.
struct Preempt {
  ActionId id;
  DeviceId device;
  TimePoint order;
  friend bool operator==(const Preempt&, const Preempt&) = default;
};
// Once the request is answered with success, what it takes to run it again is to be kept (`keep`), until its
// Profile has ended otherwise than stopped or too late, or it is to be kept no longer.
struct Keep {
  RequestId request;
  bool keep = true;
  friend bool operator==(const Keep&, const Keep&) = default;
};
// Runs a request that was kept again, alone, to learn what it takes. Reported as an INFER; `failed` where
// nothing of it is kept (it took too much room, or was not answered). A Stop ends it.
struct Profile {
  ActionId id;
  DeviceId device;
  ModelId model;
  RequestId request;
  Window window;
  Duration expected;
  friend bool operator==(const Profile&, const Profile&) = default;
};
// A Profile that ended so had to make way: what it takes to run it again stays kept.
inline bool made_way(ActionStatus status) {
  return status == ActionStatus::stopped || status == ActionStatus::too_late;
}
// The device hangs: it is to be taken out, with all that it has under way. The scheduler hears of it again as
// DeviceChanged when it is back, and of nothing that was sent to it before.
struct GiveUp {
  DeviceId device;
  friend bool operator==(const GiveUp&, const GiveUp&) = default;
};
// A scheduler is about to refuse a request of that model and class for want of time, or to pass over a device
// for that. The request had `left`.
// Estimates decide what runs, and only what runs is measured, so what was not measured of late is not
// believed then. A scheduler books its doubts itself while it decides, as it goes on by the new estimates at
// once: no Order, as no device hears of it.
struct Doubt {
  ModelId model;  // the policy's name for it
  Class cls = Class::normal;
  Duration left{0};
};
// What changed by it.
struct Doubted {
  bool times = false;    // the model's estimate for one row, or on some device
  bool margins = false;  // what is allowed for besides, by more than a twentieth
  bool chances = false;  // what Chances expects of the model on some device
  bool any() const { return times || margins; }
};
using Order = std::variant<Load, Unload, Infer, Refuse, Stop, Preempt, Keep, Profile, GiveUp>;
using Orders = std::vector<Order>;

}  // namespace carillon::ledger
