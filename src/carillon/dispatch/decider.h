#pragma once

#include <cstddef>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/ledger/model_info.h"
#include "carillon/wire/ends.h"
#include "carillon/wire/model.h"
#include "carillon/wire/report.h"

namespace carillon::dispatch {

// Whoever decides on a controller's calls, for its devices. In one process that is Dispatch. In a cluster it
// is the way to the leader, from a frontend or from a worker.
//
// Not thread-safe; `now` never goes back. Devices must not call back, and calls only as wire::Dispatcher
// says.
class Decider : public wire::Dispatcher {
 public:
  // Before start(). Devices are numbered in order; a link must outlive this. Models come in the order of
  // their ids, which are dense, with a batch size at least.
  virtual void add_device(wire::DeviceLink& link) = 0;
  virtual void add_model(wire::Model model) = 0;
  virtual void start(TimePoint now) = 0;
  // After start(): a model comes, with the next id; one goes, and is unloaded where it is loaded when nothing
  // uses it any more; what its batches take changes on the devices (ledger::TimesChanged).
  virtual void come(wire::Model model, TimePoint now) = 0;
  virtual void go(ModelId id, TimePoint now) = 0;
  virtual void change_times(ModelId id, std::vector<ledger::BatchProfile> batches, TimePoint now) = 0;
  virtual const ledger::ModelInfo& model(ModelId id) const = 0;

  // What a device says.
  virtual void on_report(const wire::Report& report, TimePoint now) = 0;
  virtual void on_probe(const wire::ProbeReport& report, TimePoint now) = 0;
  // When wake() wants to be called; max() for never.
  virtual TimePoint wake_at() const = 0;
  virtual void wake(TimePoint now) = 0;
  // Nothing is decided any more. Reports must still come in, or the devices end.
  virtual void stop() = 0;
  // Nothing more follows at once: what was said to other hosts can go.
  virtual void flush() {}
  virtual bool stopped() const = 0;

  virtual std::size_t devices() const = 0;
  // Before start(): those that are there from the start.
  virtual std::size_t devices_alive() const = 0;
  virtual bool device_alive(DeviceId id) const = 0;
  // A device has its weights, or an action of it.
  virtual bool on_devices(ModelId id) const = 0;
  virtual std::size_t actions_in_flight() const = 0;
};

}  // namespace carillon::dispatch
