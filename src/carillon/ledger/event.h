#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/device/action.h"
#include "carillon/ledger/model_info.h"
#include "carillon/workload/request.h"

namespace carillon::ledger {

using device::ActionStatus;

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
// are gone. A device that worked for another scheduler may come with weights.
struct DeviceChanged {
  DeviceId device;
  bool alive = true;
  std::uint64_t pages = 0;      // size of its page cache
  int best_effort = 1;          // runs of that class that it does at a time
  std::vector<ModelId> held{};  // models, served and with pages, whose weights it has; all have room
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
// That of INFERs on the streams of a class.
constexpr Lane lane_of(Class streams) {
  switch (streams) {
    case Class::real_time:
      return Lane::real_time;
    case Class::best_effort:
      return Lane::best_effort;
    case Class::normal:
      break;
  }
  return Lane::exec;
}
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

}  // namespace carillon::ledger
