#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "carillon/schedule/id_map.h"
#include "carillon/schedule/load_priority.h"
#include "carillon/schedule/loads_ahead.h"
#include "carillon/schedule/placement.h"
#include "carillon/schedule/state/mirror.h"

namespace carillon::schedule {

// The devices for policies that may run any model on any device: a sub-cluster whose devices hold the same
// models (Symphony, section 4.4), over the Mirror, with one estimate for all devices. It keeps the requests
// that are under way, and decides what is loaded where. It chooses no batch. Models of zero pages are
// everywhere without a LOAD.
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

  struct Flight {  // an INFER that was sent
    ActionId id;
    DeviceId device;
    ModelId model;
    int batch_index = 0;
    int batch = 0;  // the size that it was sent with
    std::vector<Request> requests;
    bool outdated = false;  // the model went, or came in another version, since: `batch_index` is of the last
    bool other_times = false;  // else, what a batch of its size takes has changed since
    bool estimates = false;    // as reported: exec() of other batch sizes than its own has changed, too
  };

  explicit Fleet(const Environment& environment);
  // What runs is measured there. Before all else.
  void reads(ledger::Ledger& ledger) { mirror_.reads(ledger); }
  // As measured so far, of the worst device; see Report::margins.
  const Environment& environment() const { return mirror_.margins().worst(); }

  // A model comes, changes or goes. Sends LOADs and UNLOADs.
  void model_changed(const ModelChanged& change, TimePoint now, Actions& out);
  void times_changed(const TimesChanged& change, TimePoint now);
  std::size_t model_count() const { return models_.size(); }
  const ModelInfo& model(ModelId id) const { return mirror_.model(id); }
  bool served(ModelId id) const { return mirror_.served(id); }
  // All that run with the same weights as it (ModelInfo::weights_of).
  std::span<const ModelId> family(ModelId id) const { return mirror_.family(id); }
  // Why nobody should wait for a model that want() says is not to be had.
  Reason why_not(ModelId id) const { return served(id) ? Reason::no_device : Reason::no_model; }

  // Devices, from zero on; one that was never announced is not alive.
  std::size_t device_count() const { return mirror_.device_count(); }
  const Mirror& mirror() const { return mirror_; }
  std::size_t alive_count() const { return mirror_.alive_count(); }
  bool alive(DeviceId id) const { return mirror_.alive(id); }
  // The weights are there: an INFER may be sent.
  bool loaded(DeviceId device, ModelId model) const { return mirror_.loaded(device, model); }
  // Loaded, or being loaded, somewhere.
  bool anywhere(ModelId model) const { return mirror_.places(model) > 0 || everywhere(model); }

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
  // See LoadsAhead.
  void load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out);
  // Loads for what waits, and unloads what left. Call it at the end of each event, when all has been sent
  // that can be.
  void load_for_waiting(TimePoint now, Actions& out);

  // Time of EXEC by place in the model's list of batch sizes: the rolling estimate over all devices.
  Duration exec(ModelId model, int batch_index) const { return mirror_.exec_estimate(model, batch_index); }
  // From the start of EXEC until the client has its answer, at most.
  Duration span(ModelId model, int batch_index) const;
  // The same where all goes as usual on that device; never more.
  Duration usual_span(DeviceId device, ModelId model, int batch_index) const {
    return std::min(span(model, batch_index),
                    mirror_.margins().usual(device).span(mirror_.usual_exec(device, model, batch_index)));
  }
  Duration usual_dispatch(DeviceId device) const { return mirror_.margins().usual(device).dispatch; }
  // The place of the largest batch size <= requests; requests >= 1.
  int batch_index(ModelId model, std::size_t requests) const;
  int batch_size(ModelId model, int index) const {
    return mirror_.model(model).batches[static_cast<std::size_t>(index)].batch;
  }
  int batch_count(ModelId model) const { return static_cast<int>(mirror_.model(model).batches.size()); }

  // When all that was sent to the device is expected to have ended; not before `now`. max() where it is not
  // alive.
  TimePoint free_at(DeviceId id, TimePoint now) const {
    return alive(id) ? std::max(now, mirror_.exec(id).expected_end()) : TimePoint::max();
  }
  // The same where what was sent comes there as it usually does: not later.
  TimePoint usual_free_at(DeviceId id, TimePoint now) const {
    return alive(id) ? mirror_.usual_free_at(id, now) : TimePoint::max();
  }
  // INFERs sent and not yet reported.
  int pending(DeviceId id) const { return static_cast<int>(mirror_.exec(id).pending().size()); }
  // What was sent should have ended, and been reported, before `now`: only its report will tell more.
  bool overdue(DeviceId id, TimePoint now) const {
    const Executor& exec = mirror_.exec(id);
    return !exec.idle() && saturating_add(exec.expected_end(), environment().answer) < now;
  }

  // Sends an INFER of the first `batch_size(model, batch_index)` of `requests` (that many at least), to start
  // within the window; the window's earliest is not before now. The model is loaded there. Returns its id.
  ActionId send(DeviceId device, ModelId model, int batch_index, std::vector<Request> requests, Window window,
                TimePoint now, Actions& out);
  // The id of an action that the caller sends, and hears of, by itself.
  ActionId new_action() { return mirror_.new_action(); }
  // Sends a Stop; the flight is reported as stopped, or as what it came to before.
  void stop(ActionId id, Actions& out);
  // None where it has been reported, or went with its device.
  const SentAction* sent(ActionId id) const { return mirror_.sent(id); }
  // It has not been reported, and its model is as it was.
  bool current(ActionId id) const { return mirror_.current(id); }
  // The client of a request has gone: where it is in a flight of that model, it is taken out of its list, so
  // that nobody tries it again. O(devices).
  void forget(RequestId request, ModelId model) { mirror_.forget(request, model); }

  // An action is reported. For an INFER, returns its flight and removes it (whatever its status); LOADs and
  // UNLOADs are dealt with here, and `loaded` tells that a model became ready on a device.
  struct Report {
    std::optional<Flight> flight;
    std::optional<std::pair<DeviceId, ModelId>> loaded;
    // A LOAD failed for good: nobody should wait for this model's family.
    std::optional<ModelId> unloadable;
    bool margins = false;  // environment() is another now
  };
  Report finish(const ActionDone& done, TimePoint now, Actions& out);

  // Call this when a request is refused because a batch of one would take too long: see ledger::Doubt.
  void doubt(const Request& request, TimePoint now);
  // True once after environment() changed by a doubt.
  bool take_doubt() { return std::exchange(doubted_, false); }

 private:
  static constexpr DeviceId nowhere{std::numeric_limits<std::uint32_t>::max()};
  struct Model {
    bool load_failed = false;                    // the last one
    bool wanted = false;                         // somebody waits for it, and it is nowhere
    std::uint64_t asked = 0;                     // how often, since it was wanted
    DeviceId room_on = nowhere;                  // where room is made for it
    TimePoint waiting_since = TimePoint::max();  // of its whole family
    Waiting own;                                 // of it alone
    Duration can_wait{0};                        // requests, from their arrival on: a mean of the latest
    TimePoint deadline = TimePoint::min();       // the last of those that came
  };
  struct Device {
    std::vector<ModelId> coming;  // room is being made for them; in the order in which they will be loaded
    std::uint64_t coming_pages = 0;
    Duration patience{0};  // what its models can wait, as of the last look
    TimePoint patience_until = TimePoint::min();
    TimePoint fill_at = TimePoint::max();  // LOADs that failed may be tried again
    bool scarce = false;                   // it cannot hold all models
  };

  // A LOAD that makes room for one of these costs the requests of its victims so much: see make_room().
  struct Room {
    std::vector<ModelId> victims;
    double cost = 0;  // requests a second
  };
  // Loading, in fleet_loads.cpp.
  void renew_model(const ModelChanged& change, TimePoint now);
  void set_wanted(ModelId model, bool wanted);
  std::uint64_t pages(ModelId model) const { return mirror_.model(model).pages; }
  bool everywhere(ModelId model) const;
  // What has no weights of its own is loaded with what has.
  bool has_weights(ModelId model) const { return mirror_.home(model) == model && pages(model) > 0; }
  std::uint64_t spare_pages(DeviceId id) const {  // free, or about to be, and nobody's yet
    return mirror_.free_pages(id) + mirror_.freeing_pages(id) - devices_[id.index()].coming_pages;
  }
  std::size_t loads(DeviceId id) const { return mirror_.load(id).pending().size(); }
  bool absent(DeviceId id, ModelId model) const { return mirror_.absent(id, model); }
  bool may_load(DeviceId id, ModelId model, TimePoint now) const {
    return absent(id, model) && mirror_.load_not_before(id, model) <= now;
  }
  bool room_for_another_load(DeviceId id) const;
  void placed(ModelId model, DeviceId device, TimePoint now);
  void removed(ModelId model, DeviceId device, TimePoint now);
  void find_scarce();
  void fill(DeviceId id, TimePoint now, Actions& out);
  void load(DeviceId id, ModelId model, TimePoint now, Actions& out);
  void unload(DeviceId id, ModelId model, TimePoint now, Actions& out);
  void left(ModelId model, DeviceId device, TimePoint now);
  bool load_wanted(ModelId model, TimePoint now, Actions& out);
  void load_copy(ModelId model, TimePoint now, Actions& out);
  void load_pressing(TimePoint now, Actions& out);
  Duration patience(DeviceId id, TimePoint now);
  bool unused_room(DeviceId id, std::uint64_t pages, TimePoint now, Room& room) const;
  bool room(DeviceId id, ModelId model, TimePoint now, Room& room) const;
  void make_room(DeviceId id, ModelId model, const Room& room, TimePoint now, Actions& out);
  void load_next(DeviceId id, TimePoint now, Actions& out);
  void fill_again(TimePoint now, Actions& out);
  Report moved(const SentAction& move, const ActionDone& done, TimePoint now, Actions& out);

  Mirror mirror_;
  bool doubted_ = false;
  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::uint64_t all_pages_ = 0;  // of all models that are served
  bool scarce_ = false;          // some device cannot hold all models
  Placement placement_;          // kept while scarce_
  LoadPriority pressing_;        // likewise
  std::vector<ModelId> wanted_;
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
