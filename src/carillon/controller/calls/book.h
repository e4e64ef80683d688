#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/ledger/ledger.h"
#include "carillon/profile/rolling.h"
#include "carillon/schedule/model_info.h"
#include "carillon/worker/worker.h"

namespace carillon::controller {

// How one call ended.
enum class Outcome : std::uint8_t {
  on_time,    // a result, by its deadline
  late,       // a result, after its deadline: still delivered, but counted apart
  refused,    // by the scheduler, as it cannot be (or was not) on time
  shed,       // likewise, but before the scheduler heard of it: it could not keep up
  cancelled,  // its client has gone
  invalid,    // its own data or its deadline are to blame
  failed      // all else: no room, a device that fails, a server that stops
};

// The durations of one call's steps, as KServe's statistics name them.
struct CallSteps {
  Duration queue{0};
  Duration input{0};
  Duration infer{0};
  Duration output{0};
};

// Statistics of all models. Written by the controller, read by any thread: one short lock a model.
class Book {
 public:
  Book();

  // Models come in the order of their ids, worker::most_models at most: from one thread at a time, also while
  // others read and write. One that comes again, of the same name and version, goes on where it was.
  // `unix_minus_timeline`: what to add to a TimePoint to get Unix time. Not while others write.
  void add_model(std::string name, std::int64_t version, std::optional<Duration> slo = std::nullopt);
  // What its batches take, at first: expected() goes by what is measured from then on.
  void seed(ModelId model, const std::vector<schedule::BatchProfile>& batches);
  // They change from the one to the other, of the same sizes: what was measured of those that differ counts
  // no more.
  void reseed(ModelId model, const std::vector<schedule::BatchProfile>& before,
              const std::vector<schedule::BatchProfile>& after);
  // Devices, in the order of their ids.
  void add_device(std::string name);
  void set_unix_offset(Duration unix_minus_timeline) { unix_offset_ = unix_minus_timeline; }

  // One call of `rows` rows was answered at `now`. `steps` counts for on_time and late only.
  void answered(ModelId model, Outcome outcome, int rows, TimePoint arrival, TimePoint now,
                const CallSteps& steps);
  // One INFER of `batch` rows succeeded; `predicted` is what the scheduler expected of its EXEC.
  void executed(DeviceId device, ModelId model, int batch, const worker::ActionTimes& times,
                Duration predicted);
  // What became of the promises of one INFER that succeeded.
  void kept(ModelId model, const ledger::Ledger::Kept& kept);
  // One request of an ensemble, of `rows` rows, has run: that counts as an execution.
  void executed_whole(ModelId ensemble, int rows, const CallSteps& steps);
  // One ran for that long and came to nothing.
  void wasted(DeviceId device, Duration busy);
  // How long all devices have run batches.
  Duration exec_busy() const;
  // The scheduler refused one of its calls.
  void refused(ModelId model, schedule::Reason reason);
  void profiled(ModelId model);  // a finished request was run again alone
  // `again`: the device held the weights before.
  void loaded(DeviceId device, ModelId model, Duration took, bool again);
  void unloaded(DeviceId device, ModelId model);
  // The device went, and with it the weights that it held; or is back.
  void device_lost(DeviceId device);
  void device_back(DeviceId device);
  // A report that belongs to no action under way there.
  void odd_report(DeviceId device);
  void set_open_requests(std::uint64_t count);
  // A call waits, or waits no longer: something of it runs, or it was answered. One thread's.
  void waits(ModelId model, bool waiting);

  // What a request of so many rows is expected to take, by itself: in the smallest batches that have room for
  // it. Zero: nobody knows. One long run is not believed for ever, since nobody would try again.
  Duration expected(ModelId model, int rows, TimePoint now) const;

  // Where the model is in snapshot().models: for good. From the thread that writes.
  std::uint32_t place_of(ModelId model) const { return by_model_[model.index()]->place; }

  // A copy of all of it; numbers of pages are left to the caller.
  ServerStatistics snapshot() const;

 private:
  struct Page {
    mutable std::mutex mutex;
    ModelStatistics of;
    mutable std::vector<std::pair<int, profile::RollingWindow>> takes;  // by batch size, ascending
    std::atomic<std::uint64_t> waiting{0};                              // written by one thread
    std::uint32_t place = 0;                                            // in pages_
  };
  Page& page(ModelId id) { return *by_model_[id.index()]; }

  // Neither ever moves: room for all that may come is taken at once.
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<Page*> by_model_;
  std::atomic<std::size_t> pages_there_{0};
  Duration unix_offset_{0};
  mutable std::mutex mutex_;  // of what follows
  std::uint64_t open_requests_ = 0;
  std::vector<DeviceStatistics> devices_;
};

}  // namespace carillon::controller
