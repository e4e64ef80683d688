#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "carillon/schedule/load_priority.h"
#include "carillon/schedule/parts/bits.h"
#include "carillon/schedule/parts/life.h"
#include "carillon/schedule/parts/rates.h"
#include "carillon/schedule/placement.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule::parts {

// What is loaded where, by what copies are worth: the requests a second that would be lost without them. A
// model without a copy is loaded where waiting requests can still be in time. It is also loaded where it is
// asked for more often than the models that make room for it. A model gets another copy if its devices have
// not the time for it. Rates show that; so does what waits, as rates tell of a burst too late. No further
// copy goes beside models that could not wait for half a run of it. Free memory is filled while nothing else
// is to be loaded. Copies of a version that is served no more are unloaded. Not thread-safe.
class Placing {
 public:
  Placing() : work_(work_window), pressing_(device_time) {}

  // What an event says of requests, devices, models and LOADs: unloads what left, and refuses whatever waits
  // for a model that no device can hold, or whose LOADs fail everywhere. O(log models + devices with the
  // model); also O(devices) where LOADs of the model failed, and O(models) where it is a DeviceChanged.
  void hear(const Event& event, Life& life, Orders& out);
  // Who waits for the model has changed: requests came, went or were sent. O(devices with the model).
  void waits(ModelId model, const Waiting& waiting, const Orders& out);
  // Sends LOADs, and UNLOADs that make room for them. For each of a few models O(log models), and O(devices
  // with the model) for each of some copies on a few devices.
  void step(Life& life, Orders& out) {
    if (any() || renew_ > 0 || !going_on_.empty() || !patient_.empty() || !retry_.empty())
      step_now(life, out);
    else
      wake_ = TimePoint::max();
  }
  // See LoadsAhead.
  void load_ahead(const LoadAhead& wanted, const Waiting& waiting, Orders& out);
  // When step() has something to do by the clock alone.
  TimePoint wake_at() const { return wake_; }

  // Some model takes memory.
  bool any() const { return all_pages_ > 0; }
  // Some device has not the memory for all models.
  bool scarce() const { return short_; }
  // Where it is loaded, by the place of the device.
  const Bits& loaded(ModelId model) const { return models_[model.index()].loaded; }
  // Copies, models and devices that step() looked at in all, in whatever order: what bounds its work.
  std::uint64_t looked_at() const { return looked_at_; }

  const Rates& rates() const { return rates_; }

 private:
  static constexpr Duration work_window = 2s;
  // Demand for a device's whole time, in the unit of LoadPriority.
  static constexpr Duration device_time = 1s;
  using Ledger = ledger::Ledger;
  struct Failed {
    std::uint32_t times = 0;  // in a row
    TimePoint retry;
  };
  // What comes first into free memory: fewest copies, highest rate.
  using Spread = std::tuple<std::size_t, double, ModelId>;
  struct Model {
    std::optional<double> listed;        // its key in wanted_
    bool blocked = false;                // it is in blocked_
    TimePoint since = TimePoint::max();  // it is nowhere, and in patient_: requests wait for it
    bool pressed = false;          // it was loaded for requests that waited for long, and they are yet to run
    std::optional<DeviceId> room;  // a device makes room for it
    Duration slack{0};             // that its requests come with, of late
    std::uint64_t pages = 0;       // of its last version, while it is served
    double rate = 0;               // of its requests, as of `rate_at`
    TimePoint rate_at = TimePoint::min();
    Bits there, loaded;            // by device: loaded or loading, and of these loaded
    std::optional<Spread> spread;  // its key in by_copies_
    // A device that could hold it, when that was last asked; and none can before then, unless devices change.
    DeviceId host;
    TimePoint hopeless = TimePoint::min();
    std::uint64_t hopeless_of = 0;
  };
  struct Held {
    ModelId model;
    TimePoint since;          // when it was loaded; max(): it is loading
    std::uint32_t place = 0;  // among the ledger's copies of the device
  };
  struct Device {
    std::vector<Held> copies;            // loaded or loading, in any order
    std::vector<std::uint32_t> held_at;  // by place among the ledger's copies: in `copies`
    std::size_t next = 0;                // of `copies`: where the next search begins
    std::uint64_t pages = 0;             // while it is alive
    std::optional<Spread> fill_from;     // what has fewer copies does not fit
    std::optional<ModelId> coming;
    TimePoint pressed{};  // until then no other LOAD takes the place of what is worth more
    double bus = 0;       // LOADs' share of the time of late, as of `bus_seen`
    TimePoint bus_seen{};
    double bus_at(TimePoint now) const;
    Duration patience{};  // of the models there, until then
    TimePoint patience_until = TimePoint::min();
    Duration next_patience = Duration::max();  // of those that were looked at for the next time
    std::size_t next_patient = 0;              // so many
  };
  // Of a LOAD: it serves requests to come; some that wait, too; some that wait for busy devices; or what has
  // waited for too long.
  enum class Need : std::uint8_t { asked, helps, relieves, presses };
  struct Room {
    std::vector<ModelId> victims;
    double cost = 0;  // requests a second
  };
  Model& model_of(ModelId id);
  Device& device_of(DeviceId id);
  void asked(const Request& request, const Orders& out);
  void ended(const Ledger::Action& action, const ActionDone* done, Life& life, Orders& out);
  void give_up(ModelId model, Life& life, Orders& out);
  void sync(DeviceId device, ModelId model, const Orders& out);
  void step_now(Life& life, Orders& out);
  void find_scarce();
  void list_spread(ModelId model, const Orders& out);
  void renew(Life& life, Orders& out);
  template <typename See>
  void some_copies(Device& device, See&& see);
  void know(ModelId model, const Orders& out);
  void list(ModelId model, const Waiting& waiting, const Orders& out);
  void unlist(ModelId model);
  std::size_t rescued(ModelId model, TimePoint loaded, const Waiting& waiting, const Orders& out) const;
  double score(ModelId model, const Waiting& waiting, const Orders& out) const;
  bool open(const Ledger& ledger, DeviceId device) const;
  void find_open(DeviceId device, const Orders& out);
  bool may_load(const Ledger& ledger, DeviceId device, ModelId model, TimePoint now);
  bool easy_to_load(ModelId model, const Orders& out) const;
  static double counts_for(ModelId model, const Orders& out);
  double cost(DeviceId device, ModelId model, TimePoint now);
  double rate(ModelId model, TimePoint now);
  std::optional<Room> room(DeviceId device, ModelId model, double worth, Need need, const Waiting& waiting,
                           const Orders& out);
  bool load_somewhere(ModelId model, bool presses, const Waiting& waiting, Orders& out);
  TimePoint waits_since(ModelId model, const Waiting& waiting, const Orders& out) const;
  void be_patient(ModelId model, bool waits, TimePoint now);
  void press(const Waiting& waiting, Orders& out);
  void retry(const Waiting& waiting, Orders& out);
  void relieve(const Waiting& waiting, Orders& out);
  Duration others_wait(DeviceId device, const Orders& out);
  bool others_can_wait(DeviceId device, ModelId model, const Orders& out);
  void relieve_on(DeviceId device, const Waiting& waiting, Orders& out);
  void another_copy(ModelId model, const Waiting& waiting, Orders& out);
  void make_room(DeviceId device, ModelId model, const Room& room, const Waiting& waiting, Orders& out);
  void load(DeviceId device, ModelId model, Orders& out);
  void unload(DeviceId device, ModelId model, Orders& out);
  void go_on(DeviceId device, const Waiting& waiting, Orders& out);
  void fill(Orders& out);
  bool fill(DeviceId device, std::size_t& tries, Orders& out);

  Rates rates_;
  Placement work_;         // by rates
  LoadPriority pressing_;  // by what waits
  std::uint64_t all_pages_ = 0;
  bool short_ = false;  // some device has not the memory for all models
  std::map<std::pair<ModelId, DeviceId>, Failed> failed_;
  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::set<DeviceId> open_;                      // devices that are to be told of another LOAD
  DeviceId open_from_;                           // of these: where the next search begins
  std::multiset<std::uint64_t> sizes_;           // of devices that are alive
  std::uint64_t devices_changed_ = 0;            // so often
  std::size_t renew_from_ = 0, renew_ = 0;       // models that are to be looked at: from there on, so many
  std::vector<DeviceId> going_on_;               // something ended where room is being made, or began
  Bits unfilled_;                                // devices: more may fit
  std::set<Spread> by_copies_;                   // models that take pages
  std::set<std::pair<double, ModelId>> wanted_;  // what is nowhere, by -score()
  std::deque<ModelId> blocked_;                  // no room until something ends
  std::vector<ModelId> scarce_;                  // perhaps they need another copy
  std::set<std::pair<TimePoint, ModelId>> patient_;
  TimerHeap retry_;       // by model: when a device may be tried again whose LOAD failed
  bool stirred_ = false;  // relieve() may find what it did not find before
  bool busy_ = false;     // what has to make room for a model is in use, or waited for
  std::uint64_t looked_at_ = 0;
  TimePoint wake_ = TimePoint::max();
};

}  // namespace carillon::schedule::parts
