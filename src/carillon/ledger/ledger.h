#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "carillon/base/ids.h"
#include "carillon/base/index_table.h"
#include "carillon/base/slab.h"
#include "carillon/base/time.h"
#include "carillon/ledger/busy_share.h"
#include "carillon/ledger/environment.h"
#include "carillon/ledger/event.h"
#include "carillon/ledger/exec_times.h"
#include "carillon/ledger/id_ring.h"
#include "carillon/ledger/margins.h"
#include "carillon/ledger/order.h"
#include "carillon/ledger/residence.h"
#include "carillon/workload/request.h"

namespace carillon::ledger {

class Chances;

// The device had no credit for the action, and never got it. The scheduler hears of that later, as an
// ActionDone.
struct NotTaken {
  ActionId action;
};

// What is known of requests, orders, devices and residence, and what was measured of runs, each fact written
// once. Events go in by apply(), orders by book(), each at its moment. Nothing else changes a ledger; all
// others read it. The driver writes both. A scheduler writes its Doubts and plans, and may book its orders
// as it gives them.
//
// Models, devices and requests are those that clients and workers name: the outside of every policy and of
// what stands around it. A policy that holds an order back has not ordered it yet.
//
// An event or an order costs O(1), and an end also O(actions of its lane). DeviceChanged and GiveUp cost
// O(actions and copies of the device), ModelChanged O(devices). After a start nothing is allocated while no
// more requests and actions are open than ever were. References are good until the next change. Not
// thread-safe; `now` never goes back.
class Ledger {
 public:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  // INFERs of a request that did not succeed.
  struct Tries {
    std::uint32_t failed = 0;
    std::uint32_t late = 0;  // came too late for their window
    std::uint32_t lost = 0;  // went with their device, which had them
  };
  // A request from its arrival to its outcome. One whose client has gone stays while an INFER has it.
  struct OpenRequest {
    Request told;
    std::uint32_t action = none;  // the place of the INFER that has it; none: it waits
    std::uint64_t withdrawn = 0;  // the tick when its client went; 0: it is there
    Tries tries;
  };
  // An order that is under way, from when it was sent to its report.
  struct Action {
    ActionId id;
    ActionKind kind{};
    Lane lane{};
    Class cls = Class::normal;
    DeviceId device;
    ModelId model;
    std::uint32_t incarnation = 0;    // of the device
    std::uint32_t version = 0;        // of the model
    ExecTimes::Run run;               // INFER: whose times it tells
    std::uint64_t place = 0;          // among all orders, by time
    std::vector<RequestId> requests;  // INFER
    std::uint32_t wanted = 0;         // of them: those whose clients are there
    // One for each request that was known when the INFER was sent. `late`: the chance, at that time, that the
    // answer comes after the deadline.
    struct Promise {
      TimePoint deadline;
      double late = 0;
    };
    std::vector<Promise> promises;
    std::optional<RequestId> profiled;  // the request that this runs again; `requests` is empty
    Window window;                      // an UNLOAD's opens when it is sent, and never closes
    TimePoint order;                    // its place in its lane: `window.earliest`, or as it was preempted
    Duration expected{0};
    TimePoint sent;
    bool cold = false;       // an INFER that was sent while its model was loading
    bool uses_copy = false;  // an INFER of a model that takes pages
    bool at_once = false;    // an INFER: nothing was before it in its lane, its window open, its model there
    bool stopped = false;    // a Stop was sent
    bool taken = true;       // the device has it; or an UNLOAD that waits until it has credit for it
    std::uint32_t preempted = 0;  // Preempts that were sent
    std::uint64_t overtaken = 0;  // the tick when an order of its lane that came later ended; 0: none
  };
  // A model's weights on a device.
  struct Copy {
    Residence residence = Residence::absent;
    bool arriving = false;                  // leaving, but its LOAD is yet to be reported
    bool held = false;                      // the device reported that it has it, and not that it let it go
    bool brought = false;                   // the device came with it: no LOAD did it
    std::uint32_t version = 0;              // of the model
    std::uint32_t failures = 0;             // LOADs in a row
    std::uint64_t pages = 0;                // that it takes, or would
    ActionId load;                          // the last LOAD
    std::array<std::uint32_t, 3> users{};   // INFERs under way, by Class
    TimePoint last_use = TimePoint::min();  // by a normal INFER, or by its LOAD
    std::uint32_t using_it() const { return users[0] + users[1] + users[2]; }
  };
  struct Device {
    bool alive = false;
    std::uint32_t incarnation = 0;  // another whenever what was under way there is lost
    std::uint64_t pages = 0;
    std::uint64_t taken = 0;    // pages of copies that are not absent
    std::uint64_t freeing = 0;  // of them: of copies that are unloading
    std::uint32_t leaving = 0;  // copies that are leaving or unloading
    int best_effort = 1;
    int threads = 0;  // that ran the last INFER that told
    int paced = 0;    // the number of threads by which times(Class::normal) were measured; 0: not told
    // Of the device's time, the share that real-time runs had when a normal run last ended.
    BusyShare urgent;
    double urgent_share = 0;
    // The places of its actions by Lane, in the order in which it runs them: by `order`, then by id.
    std::array<std::vector<std::uint32_t>, lanes> under_way;
    std::uint32_t wanted_for = 0;  // LOADs, INFERs and Profiles
    std::uint32_t runs = 0;        // INFERs and Profiles that it has, and what their EXEC is expected to take
    Duration busy{0};
    // By Lane, since it started: when something was last reported, and how long runs took in all.
    std::array<std::uint64_t, lanes> reported{};
    std::array<Duration, lanes> ran{};
    // By Lane: when the last reported action ended, but no later than it was reported.
    std::array<TimePoint, lanes> ended{};
    std::vector<std::pair<ModelId, Copy>> copies;  // of models that ever were there
    std::vector<std::uint32_t> copy_of;            // by model: in `copies`
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;  // of its last version; null before the first
    bool served = false;
    std::uint32_t version = 0;    // how often it changed since it first came
    std::uint32_t under_way = 0;  // actions, and of them LOADs, that a device has
    std::uint32_t loading = 0;
    std::vector<DeviceId> places;  // where it is loaded, in the order in which it came to be
    std::uint32_t coming = 0;      // where it is loading
    std::uint32_t held = 0;        // copies that devices hold
  };

  Ledger();
  ~Ledger();
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;

  void apply(const Event& event, TimePoint now);
  void apply(const NotTaken& event, TimePoint now);
  // An order that is booked already changes nothing, as a scheduler may book its own when it gives them;
  // nor does one for a device that is not there. A Preempt, Stop or Keep is booked once, by the driver.
  void book(const Order& order, TimePoint now);
  Doubted book(const Doubt& doubt, TimePoint now);

  // A run that the device did for another scheduler before it came. It teaches what a batch takes, and by how
  // much a batch outlasts its estimate. To be told after the device has come, and in the order of the ends.
  struct Earlier {
    ModelId model;
    Class cls{};
    std::size_t rows = 0;
    Duration took{0}, expected{0};
    TimePoint end;
  };
  void recall(DeviceId device, const Earlier& run);
  // A device of another host has taken an order of that class with its inputs, so long after the order was
  // sent; the outputs of a run have come to where they are wanted. Each teaches the margins of its class
  // (Margins). The device is known, and alive.
  void arrived(DeviceId device, Class cls, Duration after_order, TimePoint now);
  void delivered(DeviceId device, Class cls, Duration after_end, TimePoint now);

  // Who reads this ledger says so before the first event: what plans normal requests, by each device's times
  // or by those of all devices alike; and what sends real-time and best-effort ones. `tells_share`: see
  // times().
  void planned_by(const Environment& environment, bool by_device);
  void classed_by(const Environment& environment, bool tells_share);
  // A model as what plans normal requests names it (Infer::planned_as), while it decides on the event.
  void plan(const ModelChanged& change) { model_changed(Class::normal, change); }
  void plan(const TimesChanged& change, TimePoint now) { times_changed(Class::normal, change, now); }

  // Counts events and orders; a later one has a larger tick.
  std::uint64_t tick() const { return tick_; }

  // What the last event changed, and the orders since. Good until the next event.
  struct Changes {
    struct Refused {
      Refuse order;
      ModelId model;
      Class cls{};
      friend bool operator==(const Refused&, const Refused&) = default;
    };
    std::vector<RequestId> back;       // wait again: their INFER did not succeed, or its device went
    std::vector<std::uint32_t> ended;  // the places of actions that were reported
    std::vector<std::uint32_t> lost;   // and of those that went with their device
    std::vector<Refused> refused;      // requests that were open
  };
  const Changes& changes() const { return changes_; }

  // Null where there is none.
  const OpenRequest* request(RequestId id) const { return requests_.find(id); }
  const Action* action(ActionId id) const;
  // Where it is while it is under way. A place is then another's.
  std::optional<std::uint32_t> place_of(ActionId id) const { return action_at_.find(id.value); }
  const Action& at(std::uint32_t place) const { return actions_[place]; }
  std::size_t open_requests() const { return requests_.size(); }
  std::size_t actions_under_way() const { return action_at_.size(); }

  std::size_t devices() const { return devices_.size(); }
  std::span<const Device> all_devices() const { return devices_; }  // by id
  const Device& device(DeviceId id) const { return devices_[id.index()]; }
  std::size_t alive() const { return alive_; }
  // Alive, with no LOAD, INFER or Profile under way: nobody wants it before the scheduler acts.
  bool idle(DeviceId id) const {
    return id.index() < devices_.size() && devices_[id.index()].alive && devices_[id.index()].wanted_for == 0;
  }

  // What batches take on the streams of a class. Each class has times of its own, as it meets others on the
  // device. A run teaches what its device reported; a normal run that over the share of the device's time
  // that real-time runs left, as they pause it: so long such a run takes from its start to its end on
  // average. Models are named as who plans the class does.
  const ExecTimes& times(Class cls) const { return times_[static_cast<std::size_t>(cls)]; }
  // What is to be allowed for besides. Best-effort runs have nobody to be late for: they teach none, and
  // those of real-time runs count for them.
  const Margins& margins(Class cls) const { return cls == Class::normal ? margins_ : urgent_margins_; }

  // Both of these as one distribution, by device. Best-effort runs teach this, too.
  const Chances& chances(Class cls) const { return *chances_[static_cast<std::size_t>(cls)]; }
  // The answers of an INFER, which the driver heard at `heard`: how many were late, and how many were
  // expected to be when the INFER was sent.
  struct Kept {
    std::uint64_t answers = 0, late = 0;
    double expected = 0;          // late answers
    std::uint64_t avoidable = 0;  // of the late: sent though the chance was above what is promised
  };
  Kept kept(const Action& action, TimePoint heard) const;

  std::size_t models() const { return models_.size(); }
  const Model& model(ModelId id) const { return models_[id.index()]; }
  // Null where it never was there.
  const Copy* copy(DeviceId device, ModelId model) const;
  // The device has its weights.
  bool holds(DeviceId device, ModelId model) const {
    const Copy* found = copy(device, model);
    return found != nullptr && found->held;
  }
  // Of a model that takes pages.
  Residence residence(DeviceId device, ModelId model) const {
    const Copy* found = copy(device, model);
    return found != nullptr ? found->residence : Residence::absent;
  }

 private:
  void on(const RequestArrived& event, TimePoint now);
  void on(const RequestCancelled& event, TimePoint now);
  void on(const ActionDone& event, TimePoint now);
  void on(const DeviceChanged& event, TimePoint now);
  void on(const ModelChanged& event, TimePoint now);
  void on(const TimesChanged& event, TimePoint now);
  void on(const Wake&, TimePoint) {}
  void on(const RequestProfiled&, TimePoint) {}
  void on(const AllArrived&, TimePoint) {}
  void on(const Load& order, TimePoint now);
  void on(const Unload& order, TimePoint now);
  void on(const Infer& order, TimePoint now);
  void on(const Profile& order, TimePoint now);
  void on(const Refuse& order, TimePoint now);
  void on(const Stop& order, TimePoint now);
  void on(const Preempt& order, TimePoint now);
  void on(const Keep&, TimePoint) {}
  void on(const GiveUp& order, TimePoint now);

  std::uint32_t send(ActionId id, ActionKind kind, Lane lane, DeviceId device, ModelId model, Window window,
                     Duration expected, TimePoint now);
  void line_up(std::vector<std::uint32_t>& lined, std::uint32_t at);
  bool leaves_device(Action& action);
  void give_back_requests(Action& action, std::optional<ActionStatus> status, bool had = true);
  bool books(ActionId id, DeviceId device) const {
    return devices_[device.index()].alive && !action_at_.find(id.value).has_value();
  }
  void restart(DeviceId id);
  void bring(DeviceId id, ModelId model, TimePoint now);
  void ended_load(const ActionDone& done, const Action& load, TimePoint now);
  void ended_unload(const ActionDone& done, const Action& unload);
  void ended_run(const ActionDone& done, const Action& run, TimePoint now);
  void learn(const ActionDone& done, const Action& run, TimePoint now);
  void promise(Action& action, TimePoint now);
  void model_changed(Class cls, const ModelChanged& change);
  void times_changed(Class cls, const TimesChanged& change, TimePoint now);
  Chances& learnt(Class cls) { return *chances_[static_cast<std::size_t>(cls)]; }
  Margins& taught(Class cls) { return cls == Class::normal ? margins_ : urgent_margins_; }
  ExecTimes& of(Class cls) { return times_[static_cast<std::size_t>(cls)]; }
  void hold(ModelId model, Copy& copy, bool held);
  void reside(Device& device, DeviceId id, ModelId model, Copy& copy, Residence residence);
  Copy& copy_there(Device& device, ModelId model);
  Copy* find(Device& device, ModelId model);
  Model& known(ModelId id) {
    if (id.index() >= models_.size()) [[unlikely]]
      models_.resize(id.index() + 1);
    return models_[id.index()];
  }
  Device& device_of(const Action& action) { return devices_[action.device.index()]; }

  std::uint64_t tick_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t sent_before_ = 0;  // orders before the last event; later ones have not left yet
  std::vector<Device> devices_;
  std::size_t alive_ = 0;
  std::vector<Model> models_;
  std::array<ExecTimes, 3> times_{ExecTimes(false), ExecTimes(false), ExecTimes(false)};  // by Class
  Margins margins_{Environment{}}, urgent_margins_{Environment{}};
  std::array<std::unique_ptr<Chances>, 3> chances_;  // by Class
  bool by_device_ = false;                           // of normal runs
  bool classed_ = false, tells_share_ = false;
  IdRing<RequestId, OpenRequest> requests_;
  Slab<Action> actions_;
  IndexTable action_at_;
  Changes changes_;
};

}  // namespace carillon::ledger
