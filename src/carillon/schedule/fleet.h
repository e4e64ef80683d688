#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "carillon/profile/rolling.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/load_priority.h"
#include "carillon/schedule/margins.h"
#include "carillon/schedule/placement.h"
#include "carillon/schedule/scheduler.h"

namespace carillon::schedule {

// The mirror of devices for policies that may run any model on any device: a sub-cluster whose devices hold
// the same models (Symphony, section 4.4). It keeps what was sent, when each device will be free, and how
// long batches take. It chooses no batch. Models of zero pages are everywhere without a LOAD.
//
// A device that can hold all models is given all. On others it says what is loaded (fleet_loads.cpp), from
// the most urgent on: a model that somebody waits for and that is nowhere; free memory, with what is asked
// for most by copy; a copy of a model whose devices are asked for more than another (Placement), in the place
// of what costs least: copies that the others can do without, or what is asked for least; and, for requests
// that wait now for devices that have more to do than they can in time, a copy on the device that has least
// (LoadPriority), in the place of what nobody waits for. Not thread-safe.
class Fleet {
 public:
  // Over which rates of arrival are averaged to decide what is loaded: long beside a LOAD (some
  // milliseconds), short beside how demand changes.
  static constexpr Duration rate_window = 2s;

  // Demand for a device's whole time, in the unit of LoadPriority.
  static constexpr Duration device_time = 1s;

  struct Flight {  // an INFER that was sent and not yet reported
    ActionId id;
    DeviceId device;
    ModelId model;
    int batch_index = 0;
    std::vector<Request> requests;
    TimePoint earliest;    // its window opens, and its inputs are there
    TimePoint start, end;  // expected; corrected by what is reported of those before it
    TimePoint sent;
    bool at_once = false;  // nothing was before it, and its window was open
  };

  explicit Fleet(const Environment& environment);
  // As measured so far, of the worst device; see Report::margins.
  const Environment& environment() const { return margins_.worst(); }

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
  // A client's request came: what models are loaded where follows what is asked for. Call it for each.
  void arrived(const Request& request, TimePoint now, Actions& out);
  // Requests of a model wait that is loaded nowhere: loads it, where that is possible, and until then tries
  // again when something is reported and at wake_at(). True where it is loaded, loading, or will be tried
  // again; false where no device can hold it, or its LOADs failed five times in a row: then nobody should
  // wait.
  bool want(ModelId model, TimePoint now, Actions& out);
  // The requests of a model that wait: how many, and since when the oldest does; max() where none does. A
  // model that somebody has waited for longer than for the wanted one is not taken from its last device for
  // it. `requests` may be 0 where some wait: then what waits gets no copies.
  struct Waiting {
    TimePoint since = TimePoint::max();
    std::size_t requests = 0;
  };
  void set_waiting(ModelId model, Waiting waiting);
  // Some model is wanted and could not be loaded yet: memory is short, and nobody should hold on to it for
  // long.
  bool short_of_memory() const { return !wanted_.empty(); }
  // When wake() is to be called; max() for never.
  TimePoint wake_at() const { return wake_; }
  // Tries again to load what is wanted, where its time has come.
  void wake(TimePoint now, Actions& out);
  // Loads for what waits. Call it at the end of each event, when all has been sent that can be.
  void load_for_waiting(TimePoint now, Actions& out);

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
           saturating_add(devices_[id.index()].free_at, environment().answer) < now;
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
    bool margins = false;    // environment() is another now
    bool estimates = false;  // exec() of other batch sizes of the flight's model, too
  };
  Report finish(const ActionDone& done, TimePoint now, Actions& out);

  // Estimates decide what runs, and only what runs is measured: call this when a request is refused because a
  // batch of one would take too long. Where nothing was measured for a second, the seeds count again; what is
  // allowed for besides is doubted, too (Margins::doubt).
  void doubt(const Request& request, TimePoint now);
  // True once after environment() changed by a doubt.
  bool take_doubt() { return std::exchange(doubted_, false); }

 private:
  enum class Residence : std::uint8_t { absent, loading, loaded, unloading };
  struct Model {
    ModelInfo info;
    std::vector<profile::RollingWindow> exec;  // by batch index
    profile::RollingWindow load;
    TimePoint renewed = TimePoint::min();  // when other estimates than what ran were last looked at
    int places = 0;                        // devices where it is loading or loaded
    int load_failures = 0;
    TimePoint load_not_before = TimePoint::min();
    bool wanted = false;         // somebody waits for it, and it is nowhere
    std::uint64_t asked = 0;     // how often, since it was wanted
    DeviceId room_on = nowhere;  // where room is made for it
    TimePoint waiting_since = TimePoint::max();
    Duration can_wait{0};                   // requests, from their arrival on: a mean of the latest
    TimePoint deadline = TimePoint::min();  // the last of those that came
  };
  struct Device {
    bool alive = false;
    std::uint64_t total_pages = 0, free_pages = 0, freeing_pages = 0;
    std::vector<Residence> residence;  // by model; empty until a model with pages is loaded there
    std::vector<int> pending_of;       // INFERs by model, like residence
    std::vector<TimePoint> last_use;   // like residence
    std::set<std::pair<TimePoint, ModelId>> lru;
    std::vector<ModelId> coming;  // room is being made for them; in the order in which they will be loaded
    std::uint64_t coming_pages = 0;
    Duration patience{0};  // what its models can wait, as of the last look
    TimePoint patience_until = TimePoint::min();
    int loads = 0;        // sent and not yet reported
    bool scarce = false;  // it cannot hold all models
    TimePoint free_at = TimePoint::min();
    int pending = 0;
    std::uint64_t life = 0;
  };
  struct Move {
    ActionKind kind{};
    DeviceId device;
    ModelId model;
    std::uint64_t life = 0;
  };

  // A LOAD that makes room for one of these costs the requests of its victims so much: see make_room().
  struct Room {
    std::vector<ModelId> victims;
    double cost = 0;  // requests a second
  };
  static constexpr DeviceId nowhere{std::numeric_limits<std::uint32_t>::max()};

  void prepare(Device& device);
  void touch(Device& device, ModelId model, TimePoint now);
  bool renew_others(Model& model, std::size_t measured, TimePoint now);

  // Loading, in fleet_loads.cpp.
  void set_wanted(Model& model, bool wanted);
  std::uint64_t spare_pages(const Device& device) const {  // free, or about to be, and nobody's yet
    return device.free_pages + device.freeing_pages - device.coming_pages;
  }
  bool room_for_another_load(const Device& device) const;
  void placed(ModelId model, DeviceId device, TimePoint now);
  void removed(ModelId model, DeviceId device, TimePoint now);
  void find_scarce();
  void fill(DeviceId id, TimePoint now, Actions& out);
  void load(DeviceId id, ModelId model, TimePoint now, Actions& out);
  void unload(DeviceId id, ModelId model, TimePoint now, Actions& out);
  void left(Model& model, ModelId id, DeviceId device, TimePoint now);
  bool load_wanted(ModelId model, TimePoint now, Actions& out);
  void load_copy(ModelId model, TimePoint now, Actions& out);
  void load_pressing(TimePoint now, Actions& out);
  Duration patience(Device& device, TimePoint now);
  bool unused_room(DeviceId id, std::uint64_t pages, TimePoint now, Room& room) const;
  bool room(DeviceId id, ModelId model, TimePoint now, Room& room) const;
  void make_room(DeviceId id, ModelId model, const Room& room, TimePoint now, Actions& out);
  void load_next(DeviceId id, TimePoint now, Actions& out);
  Report moved(const Move& move, const ActionDone& done, TimePoint now, Actions& out);

  Margins margins_;
  bool doubted_ = false;
  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::size_t alive_ = 0;
  std::uint64_t all_pages_ = 0;  // of all models
  bool scarce_ = false;          // some device cannot hold all models
  Placement placement_;          // kept while scarce_
  LoadPriority pressing_;        // likewise
  std::vector<ModelId> wanted_;
  IdMap<ActionId, Flight> flights_;
  std::vector<std::vector<ActionId>> flights_of_;  // by device, in the order of sending
  IdMap<ActionId, Move> moves_;
  ActionId next_action_{};
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
