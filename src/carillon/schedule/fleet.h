#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/profile/rolling.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule {

// The mirror of devices for policies that may run any model on any device: a sub-cluster whose devices hold
// the same models (Symphony, section 4.4). It loads all models on all devices as far as memory goes, and
// where it does not, evicts the least recently used for a model that is wanted and nowhere. It keeps what was
// sent, when each device will be free, and how long batches take. It chooses no batch. Models of zero pages
// are everywhere without a LOAD. Not thread-safe.
class Fleet {
 public:
  struct Flight {  // an INFER that was sent and not yet reported
    ActionId id;
    DeviceId device;
    ModelId model;
    int batch_index = 0;
    std::vector<Request> requests;
    TimePoint earliest;    // its window opens, and its inputs are there
    TimePoint start, end;  // expected; corrected by what is reported of those before it
  };

  explicit Fleet(const Environment& environment) : environment_(environment) {}
  const Environment& environment() const { return environment_; }

  void add_model(const ModelInfo& model);
  std::size_t model_count() const { return models_.size(); }
  const ModelInfo& model(ModelId id) const { return models_[id.index()].info; }

  // Devices, from zero on; one that was never announced is not alive.
  std::size_t device_count() const { return devices_.size(); }
  std::size_t alive_count() const { return alive_; }
  bool alive(DeviceId id) const { return id.index() < devices_.size() && devices_[id.index()].alive; }
  // The weights are there: an INFER may be sent.
  bool loaded(DeviceId device, ModelId model) const;
  // Some device that is alive could hold the model. O(devices) where memory is scarce.
  bool can_hold(ModelId model) const;
  // Loaded, or being loaded, somewhere. O(1).
  bool anywhere(ModelId model) const { return models_[model.index()].places > 0; }

  // A device came or went: what was pending there is lost, and returned. Sends LOADs.
  std::vector<Flight> device_changed(const DeviceChanged& change, TimePoint now, Actions& out);
  // Requests of a model wait that is loaded nowhere: loads it, where that is possible. Call it again when
  // called by the clock at wake_at(). True where it is loaded, loading, or will be tried again; false where
  // no device can hold it, or its LOADs failed five times in a row: then nobody should wait.
  bool want(ModelId model, TimePoint now, Actions& out);
  // Since when the oldest waiting request of a model waits; max() where none does. Models that somebody has
  // waited for longer than for the wanted one are not evicted for it.
  void set_waiting(ModelId model, TimePoint since) {
    Model& m = models_[model.index()];
    m.waiting_since = since;
    if (since == TimePoint::max()) set_wanted(m, false);
  }
  // Some model is wanted and could not be loaded yet: memory is short, and nobody should hold on to it for
  // long.
  bool short_of_memory() const { return wanted_ > 0; }
  // When want() should be called again for what is still wanted; max() for never. take_wake() resets it, and
  // is to be called when that time has come.
  TimePoint wake_at() const { return wake_; }
  void take_wake() { wake_ = TimePoint::max(); }

  // Time of EXEC by place in the model's list of batch sizes: the rolling estimate over all devices.
  Duration exec(ModelId model, int batch_index) const {
    return models_[model.index()].exec[static_cast<std::size_t>(batch_index)].estimate();
  }
  // From the start of EXEC until the client has its answer, at most.
  Duration span(ModelId model, int batch_index) const;
  // The place of the largest batch size <= requests; requests >= 1.
  int batch_index(ModelId model, std::size_t requests) const;
  int batch_size(ModelId model, int index) const {
    return models_[model.index()].info.batches[static_cast<std::size_t>(index)].batch;
  }
  int batch_count(ModelId model) const {
    return static_cast<int>(models_[model.index()].info.batches.size());
  }

  // When all that was sent to the device is expected to have ended; not before `now`. max() where it is not
  // alive.
  TimePoint free_at(DeviceId id, TimePoint now) const;
  // INFERs sent and not yet reported.
  int pending(DeviceId id) const { return devices_[id.index()].pending; }
  // What was sent should have ended, and been reported, before `now`: only its report will tell more.
  bool overdue(DeviceId id, TimePoint now) const {
    return devices_[id.index()].pending > 0 &&
           saturating_add(devices_[id.index()].free_at, environment_.answer) < now;
  }

  // Sends an INFER of the first `batch_size(model, batch_index)` of `requests` (that many at least), to start
  // within the window; the window's earliest is not before now. The model is loaded there. Returns its id.
  ActionId send(DeviceId device, ModelId model, int batch_index, std::vector<Request> requests, Window window,
                TimePoint now, Actions& out);
  // Sends a Stop; the flight is reported as stopped, or as what it came to before.
  void stop(ActionId id, Actions& out);
  const Flight* flight(ActionId id) const { return flights_.find(id); }
  // The client of a request has gone: where it is in a flight of that model, it is taken out of its list, so
  // that nobody tries it again. O(devices).
  void forget(RequestId request, ModelId model);

  // An action is reported. For an INFER, returns its flight and removes it (whatever its status); LOADs and
  // UNLOADs are dealt with here, and `loaded` tells that a model became ready on a device.
  struct Report {
    std::optional<Flight> flight;
    std::optional<std::pair<DeviceId, ModelId>> loaded;
    // A LOAD failed for good: nobody should wait for this model.
    std::optional<ModelId> unloadable;
  };
  Report finish(const ActionDone& done, TimePoint now, Actions& out);

  // Estimates decide what runs, and only what runs is measured: call this when a request is refused because a
  // batch of one would take too long. Where nothing was measured for a second, the seeds count again.
  void doubt(ModelId model, TimePoint now);

 private:
  enum class Residence : std::uint8_t { absent, loading, loaded, unloading };
  enum class Kind : std::uint8_t { load, unload };
  struct Model {
    ModelInfo info;
    std::vector<profile::RollingWindow> exec;  // by batch index
    profile::RollingWindow load;
    int places = 0;  // devices where it is loading or loaded
    int load_failures = 0;
    TimePoint load_not_before = TimePoint::min();
    bool wanted = false;  // and waits for an UNLOAD
    TimePoint waiting_since = TimePoint::max();
  };
  struct Device {
    bool alive = false;
    std::uint64_t total_pages = 0, free_pages = 0, freeing_pages = 0;
    std::vector<Residence> residence;  // by model; empty until a model with pages is loaded there
    std::vector<int> pending_of;       // INFERs by model, like residence
    std::vector<TimePoint> last_use;   // like residence
    std::set<std::pair<TimePoint, ModelId>> lru;
    TimePoint free_at = TimePoint::min();
    int pending = 0;
    std::uint64_t life = 0;
  };
  struct Move {
    Kind kind{};
    DeviceId device;
    ModelId model;
    std::uint64_t life = 0;
  };

  void prepare(Device& device);
  ModelId oldest_wanted() const;
  void set_wanted(Model& model, bool wanted);
  void fill(DeviceId id, TimePoint now, Actions& out);
  void load(DeviceId id, ModelId model, TimePoint now, Actions& out);
  void touch(Device& device, ModelId model, TimePoint now);

  Environment environment_;
  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::size_t alive_ = 0;
  std::size_t wanted_ = 0;
  IdMap<ActionId, Flight> flights_;
  std::vector<std::vector<ActionId>> flights_of_;  // by device, in the order of sending
  IdMap<ActionId, Move> moves_;
  ActionId next_action_{};
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
