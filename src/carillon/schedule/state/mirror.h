#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/ledger/ledger.h"
#include "carillon/ledger/residence.h"
#include "carillon/profile/rolling.h"
#include "carillon/schedule/action.h"
#include "carillon/schedule/environment.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/loads_ahead.h"
#include "carillon/schedule/state/executor.h"

namespace carillon::schedule {

namespace testing {
struct Audit;
}
using ledger::Residence;

// An action that was sent; once it is reported, also what that changed.
struct SentAction {
  ActionId id;
  ActionKind kind{};
  DeviceId device;
  ModelId model;
  int batch_index = 0;  // INFER: place in the model's list of batch sizes
  int batch = 0;        // INFER: that size
  // INFER: its requests, where whoever sent it wants them back; by id, or as they are.
  std::vector<RequestId> requests;
  std::vector<Request> members;
  bool sent_cold = false;     // INFER: sent while the model was still loading
  bool uses_copy = false;     // INFER: counted where the weights are
  TimePoint sent;             // INFER
  Duration expected{0};       // INFER: of EXEC, when it was sent
  int preempted = 0;          // INFER: how often it was to make way
  std::uint32_t version = 0;  // of the model, as the mirror counts them
  std::uint32_t times = 0;    // INFER: how often the seed of its size had changed
  // As it is reported.
  bool outdated = false;         // the model went, or came in another version, since
  bool other_times = false;      // INFER: the seed of its size has changed since, but not the version
  bool copy_lost = false;        // INFER: the worker says that the weights are not there
  bool other_estimates = false;  // INFER: estimates of other batch sizes than its own have changed, too
  bool margins = false;          // INFER: margins() have changed
};

struct MirrorOptions {
  // Estimates are of each device by itself; else of all alike: they are learned sooner, and whoever does not
  // care which device it gets has one number to ask for.
  bool by_device = true;
  // What was sent behind an action starts when that is reported to have ended, or, where it did not run, when
  // that is heard. Else not before anything that was ever seen to end there: devices' clocks may be off.
  bool follows_reports = false;

  // An INFER makes way so often at most: each time it may have to fetch its weights and activations anew, and
  // its end is known less well.
  int preemptions = 8;
  // The longest of an INFER's kernels, as a share of it: so long it may take to make way.
  double kernel = 0.05;
};

// The mirror of all devices that a scheduler decides by (Clockwork, section 5.3): memory state, pending
// actions and when each executor is free, and what LOADs take. What batches take, and what is to be allowed
// for besides, it reads in the ledger (Ledger::times(), margins()), and says there by which times it plans.
// The mirror chooses nothing. A policy asks it, books each order there, and passes each report on. Costs O(1)
// but where said. Memory grows with devices x models by four bytes, and by about a quarter of a kilobyte for
// each pair that was ever loaded or run. Models of zero pages are loaded everywhere, without a LOAD. Not
// thread-safe.
class Mirror {
 public:
  explicit Mirror(const MirrorOptions& options = {}, const Environment& environment = {})
      : options_(options), environment_(environment) {}

  // What runs is measured there. Before all else.
  void reads(ledger::Ledger& ledger);

  // A model comes: ids ascend by one from zero, `batches` ascends and starts at 1. Or it goes, or comes in
  // another version: then copies of the last one are leaving, and what was measured of it is forgotten. O(1)
  // where it comes first, else O(devices where it ever was).
  void model_changed(const ModelChanged& change);
  // Its batches take other times, also of one that went: what is under way keeps what was expected of it, and
  // is not learned from where the seed of its size changed. O(batch sizes x devices where it ever was).
  void times_changed(const TimesChanged& change, TimePoint now);
  std::size_t model_count() const { return models_.size(); }
  // Of its last version, where it is not served any more.
  const ModelInfo& model(ModelId id) const { return models_[id.index()].info; }
  bool served(ModelId id) const { return models_[id.index()].served; }
  // Whose weights it runs with: its own, or another's (ModelInfo::weights_of). What is said of residence and
  // LOADs of a model is said of that one, whose LOADs alone are sent.
  ModelId home(ModelId id) const { return models_[id.index()].info.weights_of.value_or(id); }
  // All models that run with its weights, itself first.
  std::span<const ModelId> family(ModelId id) const { return models_[home(id).index()].family; }
  // Sends the UNLOADs of copies that are leaving and that nothing uses any more. Call it after each event.
  void unload_leaving(Actions& out) {
    if (!leaving_.empty()) unload_left(out);
  }

  // A device came, went or started anew: what was loaded and pending there is gone, and what it brings is
  // loaded. Returns the pending INFERs, in the order of their ids. Ids are dense; a device that was never
  // announced is not alive.
  std::vector<SentAction> device_changed(const DeviceChanged& change, TimePoint now);
  std::size_t device_count() const { return devices_.size(); }
  bool alive(DeviceId id) const { return id.index() < devices_.size() && devices_[id.index()].alive; }
  std::uint64_t total_pages(DeviceId id) const { return device(id).total_pages; }
  std::uint64_t free_pages(DeviceId id) const { return device(id).free_pages; }
  // Pages that will be free once every UNLOAD on its way is reported.
  std::uint64_t freeing_pages(DeviceId id) const { return device(id).freeing_pages; }
  // Some device that is alive could hold the model, which is served.
  bool can_hold(ModelId model) const {
    return alive_ > 0 && models_[model.index()].served && models_[model.index()].info.pages <= largest_pages_;
  }
  // Devices that are alive.
  std::size_t alive_count() const { return alive_; }

  // Of a device that was announced.
  const Executor& exec(DeviceId id) const { return devices_[id.index()].exec; }
  const Executor& load(DeviceId id) const { return devices_[id.index()].load; }
  // An INFER or a LOAD that is not reported yet; none where it is not known.
  const SentAction* sent(ActionId id) const { return actions_.find(id); }
  // The same, of a model that has not changed since.
  bool current(ActionId id) const {
    const SentAction* found = sent(id);
    return found != nullptr && found->version == models_[found->model.index()].changes;
  }

  Residence residence(DeviceId id, ModelId model) const {
    const Model& m = models_[model.index()];
    if (!m.served && (m.info.pages == 0 || m.info.weights_of)) return Residence::absent;
    if (m.info.pages == 0) return alive(id) ? Residence::loaded : Residence::absent;
    const OnDevice* on = find(device(id), home(model));
    return on == nullptr ? Residence::absent : on->residence;
  }
  bool loaded(DeviceId id, ModelId model) const {
    if (!alive(id)) return false;
    const Model& m = models_[model.index()];
    if (!m.served && (m.info.pages == 0 || m.info.weights_of)) return false;
    if (m.info.pages == 0) return true;
    const OnDevice* on = find(devices_[id.index()], home(model));
    return on != nullptr && on->residence == Residence::loaded;
  }
  // No copy is there, and none comes or goes. The device was announced; a model of zero pages has no copies.
  bool absent(DeviceId id, ModelId model) const {
    const OnDevice* on = find(devices_[id.index()], home(model));
    return on == nullptr || on->residence == Residence::absent;
  }
  // Devices where it is loading or loaded; none for a model of zero pages.
  std::size_t places(ModelId model) const { return models_[home(model).index()].places; }
  // When it was last used where it is loaded; where it is loading, when that began.
  TimePoint last_use(DeviceId id, ModelId model) const;
  // INFERs of its family that are pending on the device.
  int pending_infers(DeviceId id, ModelId model) const {
    const OnDevice* on = find(device(id), home(model));
    return on == nullptr ? 0 : on->pending_infers;
  }
  // LOADs of it there that failed in a row, until the device or the model changes, and before when no other
  // is to be sent. Another device may do what this one cannot: its worker may lack the model.
  int failed_loads(DeviceId id, ModelId model) const {
    const OnDevice* on = find(device(id), home(model));
    return on == nullptr ? 0 : on->failed_loads;
  }
  TimePoint load_not_before(DeviceId id, ModelId model) const {
    const OnDevice* on = find(device(id), home(model));
    return on == nullptr ? TimePoint::min() : on->load_not_before;
  }
  // All devices that could hold it have failed so often; false where none could. O(devices).
  bool loads_fail_everywhere(ModelId model, int times) const;
  // When one of these devices may try again; max() where there is none. O(devices).
  TimePoint next_load_try(ModelId model) const;
  // When the weights will be there, seen at `now`: `now` where loaded, the expected end of the LOAD where
  // loading, max() otherwise.
  TimePoint ready_at(DeviceId device, ModelId model, TimePoint now) const;
  // The LOAD of a loading model should have ended already: when it will is not known.
  bool load_overdue(DeviceId device, ModelId model, TimePoint now) const;

  // Rolling estimates; the model's seed where nothing was measured (on this device).
  Duration exec_estimate(DeviceId device, ModelId model, int batch_index) const {
    return times_->of(device, model, static_cast<std::size_t>(batch_index));
  }
  // What it usually takes, which is never more: the median where exec_estimate() is the largest.
  Duration usual_exec(DeviceId device, ModelId model, int batch_index) const {
    return times_->usual(device, model, static_cast<std::size_t>(batch_index));
  }
  // When everything that was sent to the device will have ended where it comes there as it usually does; not
  // before `now`, nor after exec().free_at(now). O(pending).
  TimePoint usual_free_at(DeviceId device, TimePoint now) const;
  // All of them by batch index; empty where the model never ran (on the device): its seeds count.
  std::span<const Duration> exec_estimates(DeviceId device, ModelId model) const {
    return times_->all(device, model);
  }
  Duration load_estimate(DeviceId id, ModelId model) const {
    if (!options_.by_device) return load_estimate(model);
    const OnDevice* on = find(device(id), home(model));
    return on == nullptr ? models_[home(model).index()].info.load : on->load.estimate();
  }
  // The same where all devices are alike.
  Duration exec_estimate(ModelId model, int batch_index) const {
    return times_->of(model, static_cast<std::size_t>(batch_index));
  }
  Duration load_estimate(ModelId model) const { return models_[home(model).index()].load.estimate(); }
  // Bounds of all devices' estimates, for whoever would else ask them all: nobody's are longer (by batch
  // index), or shorter. They rise and fall with reports alone, and may for a while be further away than they
  // need.
  std::span<const Duration> longest_execs(ModelId model) const { return times_->longest(model); }
  Duration shortest_exec(ModelId model) const { return times_->shortest(model); }  // of one row
  Duration shortest_load(ModelId model) const { return models_[home(model).index()].shortest_load; }
  // Changes whenever some device's estimate for one row does.
  std::uint64_t exec_version(ModelId model) const { return times_->row_version(model); }

  const ledger::Margins& margins() const { return *margins_; }

  // Loaded models of a device, from the least recently used on, with their last use.
  const std::set<std::pair<TimePoint, ModelId>>& lru(DeviceId id) const { return device(id).lru; }
  // The same but for those that a pending action needs. Calls `take(model, last use)` until it returns false.
  // O(loaded models seen).
  template <typename Take>
  void visit_lru(DeviceId id, Take&& take) const {
    const Device& d = device(id);
    for (const auto& [used, model] : d.lru)
      if (find(d, model)->pending_infers == 0 && !take(model, used)) return;
  }

  // What has to be unloaded for a model that is wanted, of what may be; none: that is too little.
  std::optional<std::vector<ModelId>> room_ahead(const LoadAhead& wanted) const;

  // A LOAD that was reported did not succeed. The next waits for `pause`, twice as long each time, `most`
  // times.
  void load_failed(DeviceId device, ModelId model, Duration pause, int most, TimePoint now);
  void put_off_load(DeviceId device, ModelId model, TimePoint until);
  // Book what is being sent. LOAD takes its pages at once, which must be free. UNLOAD is not for a model with
  // pending actions; its pages are free when it is reported.
  ActionId begin_load(DeviceId device, ModelId model, TimePoint earliest, Duration expected, TimePoint now);
  ActionId begin_unload(DeviceId device, ModelId model);
  // An INFER is on its way for `dispatch`: it cannot start before. It is in time where it starts by `latest`.
  ActionId begin_infer(DeviceId device, ModelId model, int batch_index, std::vector<RequestId> requests,
                       TimePoint earliest, Duration expected, TimePoint now, Duration dispatch = {},
                       TimePoint latest = TimePoint::max());
  ActionId begin_infer(DeviceId device, ModelId model, int batch_index, std::vector<Request> members,
                       TimePoint earliest, Duration expected, TimePoint now, Duration dispatch = {},
                       TimePoint latest = TimePoint::max());
  // Whether an INFER that is sent now may go before what the device was sent from that place on, on time by
  // its `latest` as it was booked. What runs then makes way, and goes on behind it: it is known to be
  // possible only where the device has room for both workspaces beside each other; else the run goes on.
  std::optional<Overtaking> overtaking(DeviceId device, std::size_t place, TimePoint now) const;
  // Books it, and tells what runs to make way, where it has to.
  ActionId overtake(const Overtaking& at, DeviceId device, ModelId model, int batch_index,
                    std::vector<RequestId> requests, Duration expected, TimePoint now, TimePoint latest,
                    Actions& out);
  // The id of an action that the mirror is to know nothing of.
  ActionId new_action() { return ActionId{next_action_.value++}; }
  // The client of a request has gone: where it is a member of an INFER of that model, it is no more.
  // O(pending INFERs).
  void forget(RequestId request, ModelId model);

  // An action is reported: corrects executors, memory, times and margins. None where the action is not known
  // (its device went meanwhile, or it was reported before).
  std::optional<SentAction> finish(const ActionDone& done, TimePoint now);

  // A policy calls this before it refuses a request for want of time, which had `left`: see ledger::Doubt.
  // Where something changed, the refusal had better be thought over.
  ledger::Doubted doubt(ModelId model, Duration left, TimePoint now);

 private:
  friend struct testing::Audit;
  struct OnDevice {
    Residence residence = Residence::absent;
    bool arriving = false;    // leaving, but its LOAD is yet to be reported
    std::uint64_t pages = 0;  // that it takes
    ActionId load_action;
    int pending_infers = 0;
    int failed_loads = 0;  // in a row
    TimePoint load_not_before = TimePoint::min();
    TimePoint last_use = TimePoint::min();
    profile::RollingWindow load;
  };
  static constexpr std::uint32_t no_slot = std::numeric_limits<std::uint32_t>::max();
  struct Device {
    bool alive = false;
    std::uint64_t total_pages = 0, free_pages = 0, freeing_pages = 0;
    Executor exec, load;
    std::vector<std::uint32_t> slot_of;  // by model
    std::vector<OnDevice> slots;
    std::set<std::pair<TimePoint, ModelId>> lru;  // of the loaded
  };
  struct Model {
    ModelInfo info;
    profile::RollingWindow load;  // on all devices alike
    std::vector<ModelId> family;  // of one that has weights of its own, or of no pages
    bool served = true;
    std::uint32_t changes = 0;
    std::size_t places = 0;
    std::vector<std::uint32_t> devices;  // that have a slot for it
    Duration shortest_load;
    unsigned reports = 0;              // since that was found anew
    std::uint64_t estimates_seen = 0;  // ExecTimes::others_version() as of the last report
  };

  Device& device(DeviceId id) {
    CARILLON_ASSERT(id.index() < devices_.size());
    return devices_[id.index()];
  }
  const Device& device(DeviceId id) const { return const_cast<Mirror*>(this)->device(id); }
  const OnDevice* find(const Device& d, ModelId model) const {
    if (model.index() >= d.slot_of.size()) return nullptr;
    const std::uint32_t slot = d.slot_of[model.index()];
    return slot == no_slot ? nullptr : &d.slots[slot];
  }
  OnDevice* find(Device& d, ModelId model) const {
    return const_cast<OnDevice*>(find(std::as_const(d), model));
  }
  void unload_left(Actions& out);
  ActionId send_infer(SentAction&& infer, Window window, Duration dispatch, const Overtaking* at = nullptr);
  OnDevice& get(Device& d, ModelId model);
  void use(Device& d, ModelId model, OnDevice& on, TimePoint now);
  void drop(Device& d, ModelId model, OnDevice& on);
  void look_whether_it_leaves(DeviceId device, ModelId model, const OnDevice& on);
  void finish_load(const ActionDone& done, const SentAction& sent, TimePoint now);
  void finish_infer(const ActionDone& done, SentAction& sent, TimePoint now);
  void find_shortest_load(Model& model);
  TimePoint next_starts(const Executor& executor, const ActionDone& done, TimePoint now) const;

  MirrorOptions options_;
  Environment environment_;  // as it was told
  ledger::Ledger* ledger_ = nullptr;
  const ledger::ExecTimes* times_ = nullptr;  // of it
  const ledger::Margins* margins_ = nullptr;
  std::uint64_t margins_seen_ = 0;  // Margins::version() as of the last report
  std::vector<Model> models_;
  std::vector<Device> devices_;
  std::size_t alive_ = 0;
  std::uint64_t largest_pages_ = 0;  // of a device that is alive
  IdMap<ActionId, SentAction> actions_;
  std::vector<std::pair<DeviceId, ModelId>> leaving_;  // copies that nothing uses any more
  ActionId next_action_{};
};

}  // namespace carillon::schedule
