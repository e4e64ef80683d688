#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/device/action.h"
#include "carillon/schedule/model_info.h"
#include "carillon/workload/request.h"

namespace carillon::schedule {

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
// Classed itself lie apart, and it may hold back what the policy within it wants.)
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
  friend bool operator==(const Infer&, const Infer&) = default;
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
// Ends an INFER that runs before its next kernel, to go on later from there (`resume`: it is reported once,
// when it is done; `order` is its place in its stream's order from then on, that of an action whose window
// opens then), or not at all (`drop`: as Stop). What does not run yet keeps its place until it does.
struct Preempt {
  ActionId id;
  DeviceId device;
  device::After after = device::After::resume;
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
using Action = std::variant<Load, Unload, Infer, Refuse, Stop, Preempt, Keep, Profile, GiveUp>;
using Actions = std::vector<Action>;

// What can happen to a scheduler.
struct RequestArrived {
  Request request;
  // It came with others: nothing is decided on it before the AllArrived that follows. Other events may come
  // in between, and are decided as ever.
  bool more = false;
};
// All requests that came together have been told: what they call for is decided now.
struct AllArrived {};
struct RequestCancelled {  // the client has gone; the request is open, or has been answered meanwhile
  RequestId request;
  ModelId model;  // the request's
};
struct ActionDone {
  ActionId id;
  ActionStatus status{};
  TimePoint start;  // when the work began; meaningless where nothing was done
  TimePoint end;
  Duration duration;  // of the work on the device itself (EXEC, or the copy of LOAD)
  // Of an INFER that succeeded: how many threads ran it. A device may change their number, and all times
  // change with it. 0: not told.
  int threads = 0;
};
// A device appears (also at the start), or changes. Loaded models and pending actions of a device that went
// are gone.
struct DeviceChanged {
  DeviceId device;
  bool alive = true;
  std::uint64_t pages = 0;  // size of its page cache
  int best_effort = 1;      // runs of that class that it does at a time
};
// A model appears (also at the start), changes or goes; ids are dense: the first time, one is the number of
// those that came before. A new version may come while the last one serves: what waits is for the new one.
struct ModelChanged {
  ModelId model;
  std::shared_ptr<const ModelInfo> info;  // of its version from now on; none: it goes
};
// It comes, or comes in a new version.
inline ModelChanged model_comes(const ModelInfo& info) {
  return {info.id, std::make_shared<const ModelInfo>(info)};
}
// What a model's batches take has changed, all at once: a device has other plans for them. `batches` are of
// the same sizes as ModelInfo::batches, and are its seeds from now on. What was measured of a size whose seed
// changed is forgotten. What is under way may have begun with the old plans.
struct TimesChanged {
  ModelId model;
  std::vector<BatchProfile> batches;
};
// What a device does beside other things, each with threads or streams of its own.
enum class Lane : std::uint8_t { exec, load, real_time, best_effort };
inline constexpr std::size_t lanes = 4;
// Why a device may have reported nothing in a lane since it was last looked at.
struct Excuse {
  DeviceId device;
  Lane lane{};
  Duration starved{0};  // so long one of the threads that the lane's work needs had no processor
  bool moved = false;   // the work got on: kernels or pages were done
  friend bool operator==(const Excuse&, const Excuse&) = default;
};
// `excuses`: of devices that have something to do and are slow to report. Only a Watchdog heeds them.
struct Wake {
  std::vector<Excuse> excuses{};
};
// What a request takes when it runs alone: a sample that somebody else measured, such as the server when it
// started. Policies that plan by distributions learn from it; the others do not care.
struct RequestProfiled {
  ModelId model;
  AppId app;
  Duration solo;
};
using Event = std::variant<RequestArrived, RequestCancelled, ActionDone, DeviceChanged, Wake, RequestProfiled,
                           ModelChanged, AllArrived, TimesChanged>;

}  // namespace carillon::schedule
