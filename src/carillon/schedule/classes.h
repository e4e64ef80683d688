#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/slab.h"
#include "carillon/ledger/ledger.h"
#include "carillon/schedule/around.h"
#include "carillon/schedule/edf_queue.h"
#include "carillon/schedule/id_map.h"
#include "carillon/schedule/policy.h"
#include "carillon/schedule/state/mirror.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

struct ClassedOptions {
  // Real-time INFERs that a device has at a time: one that runs, and one that follows it without a gap. All
  // others wait here, so that a more urgent one can go before them.
  std::size_t in_flight = 2;
  // A real-time request without a deadline counts as due so long after it came: else those that have one
  // would go before it for ever, and what waits would have no bound. A second is what a device is given
  // before it is taken to hang.
  Duration longest_wait = 1s;
  // A best-effort batch is no longer than that, unless a batch of one is: whose turn it is changes with every
  // batch.
  Duration longest_batch = 100ms;
  // False: the policy is told what the device reports, for comparison.
  bool tells_share = true;
};

// A policy on devices that have streams by class (docs/reef.md): it decides on normal requests, as if there
// were no others. Real-time and best-effort ones are kept from it, and sent to the device by what stands
// here.
//
// Real-time: admitted on arrival where it can be answered in time behind the real-time work that comes before
// it and without making any behind it late, as nothing else on the device is in its way; else it is refused
// at once. It goes to the device that has the model and ends it first, in order of deadlines.
//
// Best effort: a queue a model, which take turns by the device time that they had. A device gets two for each
// that it runs at a time. They wait for as long as it takes, or until their deadline.
//
// Residence. Models of class real-time, and then best effort, are loaded here on every device and stay there
// (pinned): the policy is told that they take no pages, and that the device has so many fewer. No more are
// pinned where the largest of the other models would have no room beside them (for a best-effort one: where
// the normal models would not all have). Of all others it is the policy that decides what is loaded: a
// request whose model is nowhere is handed to it as a normal one, of best effort one at a time.
//
// The policy does not see what real-time runs take of a device. They pause its runs, and a device reports no
// pauses. A run that was not paused says nothing of the next. So the policy is told that each of its runs
// took longer, by the share of the device's time that real-time runs had of late (BusyShare::stretched()).
// The ledger learns the same (Ledger::times()).
//
// Costs: O(log n) in waiting requests, models and devices, times the best-effort models passed over that a
// device does not have; a real-time request also looks at the devices that have its model (of one that is
// everywhere at `looked_at` of them). Normal requests pass for O(1). Not thread-safe.
class Classed final : public Around {
 public:
  // The layer's own actions have ids from here on, ascending: above any that a policy comes to, below those
  // that a worker keeps for itself (worker::Measuring).
  static constexpr std::uint64_t first_own = std::uint64_t{1} << 62;
  static bool owns(ActionId id) { return id.value >= first_own; }

  Classed(std::unique_ptr<Scheduler> policy, const Environment& environment,
          const ClassedOptions& options = {})
      : Around(std::move(policy)), options_(options), environment_(environment) {}

  void reads(ledger::Ledger& ledger) override {
    ledger.classed_by(environment_, options_.tells_share);
    margins_ = &ledger.margins(Class::real_time);
    urgent_times_ = &ledger.times(Class::real_time);
    patient_times_ = &ledger.times(Class::best_effort);
    Around::reads(ledger);
  }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& actions) override;

  // Of that the policy is told that it takes no pages.
  bool pinned(ModelId model) const { return models_[model.index()].pinned; }

 private:
  friend struct testing::Audit;
  static constexpr std::size_t looked_at = 8;

  // A request that the policy does not know.
  struct Kept {
    Request request;
    TimePoint due;  // when its run has to have ended
    enum class Where : std::uint8_t {
      urgent,  // waits for `device`
      cold,    // real-time: waits until its model, which is pinned, is somewhere
      patient  // best effort: waits in its model's queue
    } where{};
    DeviceId device;
    std::uint32_t without_room = 0;  // of its failed INFERs: other INFERs' tensors were in the way of theirs

    bool has_deadline() const { return request.deadline != TimePoint::max(); }
  };
  struct Copy {
    Residence residence = Residence::absent;
    bool pin = false;            // the layer's
    std::uint64_t pages = 0;     // of it
    std::uint32_t failures = 0;  // of the layer's LOADs in a row
    TimePoint retry;             // the next one not before
  };
  struct Run {
    ActionId id;
    Duration takes{0};  // with its overrun
    TimePoint end;
  };
  struct Device {
    bool alive = false;
    std::uint64_t pages = 0;
    std::uint64_t reserved = 0;  // of them: for pinned models; the policy knows of the others
    std::uint64_t taken = 0;     // of these
    int best_effort = 1;
    EdfQueue urgent;
    std::vector<Run> urgent_runs;  // real-time INFERs that it has, in their order: what is expected of them
    bool full = false;  // an INFER of the layer found no room for its tensors, and nothing has ended since
    int normal = 0;     // the policy's INFERs under way, as far as they are followed
    std::vector<Action> held;            // the policy's, in order: see must_wait()
    std::vector<std::uint32_t> copy_of;  // by model
    std::vector<std::pair<ModelId, Copy>> copies;
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;  // of its last version
    bool served = false;
    bool pinned = false;
    std::vector<DeviceId> places;  // where it is loaded, of models that take pages
    EdfQueue cold, patient;
    Duration turn{0};                 // device time that its best-effort runs had, and a start
    std::optional<RequestId> handed;  // best effort: the policy has it, so that the model comes to be loaded
  };
  // What happens.
  void on(const RequestArrived& event, Orders& out);
  void on(const RequestCancelled& event, Orders& out);
  void on(const ActionDone& event, Orders& out);
  void on(const DeviceChanged& event, Orders& out);
  void on(const ModelChanged& event, Orders& out);
  void on(const TimesChanged& event, Orders& out);
  void on(const RequestProfiled& event, Orders& out) { ask(event, out); }
  void on(const Wake& event, Orders& out);
  void on(const AllArrived& event, Orders& out) { ask(event, out); }
  void begin(const Event& event, Orders& out);
  void ask(const Event& event, Orders& out);
  bool heed(const Action& action, TimePoint now);
  void settle(Orders& out);
  TimePoint wakes_at() const {
    return std::min({late_.top_at(), cold_.top_at(), patient_.top_at(), retries_.top_at()});
  }
  void expire(Orders& out);

  // Real-time requests.
  void place(std::uint32_t kept, Reason otherwise, Orders& out);
  bool admit(std::uint32_t kept, TimePoint& would_finish, Orders& out);
  template <typename Visit>
  void visit_devices(ModelId model, Visit&& visit) const;
  void send_urgent(DeviceId device, Orders& out);
  void drop_late(DeviceId device, Orders& out);
  TimePoint free_at(DeviceId device, TimePoint now) const;
  Duration with_overrun(DeviceId device, Duration exec) const;
  Duration urgent_time(ModelId model, std::size_t batch = 0) const { return urgent_times_->of(model, batch); }
  void retime_urgent(DeviceId device, ModelId model);
  void update_urgent(DeviceId device);
  void update_cold(ModelId model);

  // Best effort.
  void wait_patiently(std::uint32_t kept, Reason otherwise, Orders& out);
  void send_patient(DeviceId device, Orders& out);
  void send_patient(DeviceId device, ModelId model, Orders& out);
  void offer(ModelId model);
  void hand_over(ModelId model, Orders& out);
  void unhand(Model& model);
  void take_back(RequestId request);
  Duration patient_time(ModelId model, std::size_t batch = 0) const {
    return patient_times_->of(model, batch);
  }
  bool has_room(DeviceId id) const {
    const Device& d = devices_[id.index()];
    return d.alive && !d.full && runs(id, Class::best_effort) < 2 * d.best_effort;
  }
  void update_room(DeviceId device);
  void update_patient(ModelId model);
  void give_turn_back(ModelId model, Duration expected);

  // Both.
  void send(DeviceId device, ModelId model, Class cls, Window window, Duration expected, Orders& out);
  void ended(const ActionDone& done, std::uint32_t at, Orders& out);
  void give_back(std::uint32_t kept, Reason reason, Orders& out);
  void refuse(std::uint32_t kept, Reason reason, TimePoint would_finish, Orders& out);
  void refuse_waiting(std::uint32_t kept, Reason reason, TimePoint would_finish, Orders& out);
  void expired(std::uint32_t kept, TimePoint end, Orders& out);
  void forget(std::uint32_t kept);
  void unqueue(std::uint32_t kept);
  void requeue(ModelId model, Orders& out);
  std::vector<std::uint32_t> waiting(Kept::Where where, ModelId model) const;

  // Residence.
  bool somewhere(const Model& model) const {
    return model.info->pages == 0 ? ledger_->alive() > 0 : !model.places.empty();
  }
  bool usable(const Device& device, ModelId model) const;
  const Copy* find(const Device& device, ModelId model) const;
  Copy& copy(DeviceId device, ModelId model);
  std::uint32_t users(DeviceId device, ModelId model, Class cls) const {
    const auto* copy = ledger_->copy(device, model);
    return copy != nullptr ? copy->users[static_cast<std::size_t>(cls)] : 0;
  }
  std::uint32_t own_users(DeviceId device, ModelId model) const {
    return users(device, model, Class::real_time) + users(device, model, Class::best_effort);
  }
  void reside(DeviceId device, ModelId model, Residence residence);
  void loaded(const ledger::Ledger::Action& load, bool success);
  void bring(DeviceChanged& told);
  void lacks(DeviceId device, ModelId model, TimePoint now);
  bool pinnable(const Model& model) const {
    return model.served && model.info->cls != Class::normal && model.info->pages > 0;
  }
  std::uint64_t pinned_pages() const;
  bool fits(const Model& model) const;
  std::vector<ModelId> choose_pins(std::uint64_t pages) const;
  void change(const ModelChanged& change, bool may_be_pinned, Orders& out);
  void tell(ModelId model, Orders& out);
  void tend(DeviceId device, ModelId model, Orders& out);
  bool must_wait(const Action& action, std::span<const Action> before) const;
  bool in_vain(const Infer& infer) const;
  void refused(ActionId action, ActionStatus status, TimePoint now);
  void release(DeviceId device, Orders& out);
  template <typename Which>
  void return_held(ModelId model, TimePoint now, Which&& which);
  void pass(Action order, Orders& out);
  bool follows(ActionId infer) const { return follows_ && infer.value >= follows_from_; }
  // Neither its model has changed since it was sent, nor is the model pinned no more.
  bool current(const ledger::Ledger::Action& action) const;
  std::vector<std::uint32_t> lost_with(DeviceId device);
  // INFERs that the device has on the streams of a class.
  const std::vector<std::uint32_t>& under_way(DeviceId device, Class cls) const {
    return ledger_->device(device).under_way[static_cast<std::size_t>(ledger::lane_of(cls))];
  }
  int runs(DeviceId device, Class cls) const { return static_cast<int>(under_way(device, cls).size()); }

  ClassedOptions options_;
  TimePoint policy_wake_ = TimePoint::max();
  TimePoint asked_ = TimePoint::max();  // a Wake
  std::vector<ModelChanged> before_;    // any other event: models are told when it is known what is pinned
  bool begun_ = false, chosen_ = false;
  bool follows_ = false;  // the policy's INFERs: there is a pinned model, or was a real-time request
  std::uint64_t follows_from_ = 0;  // the id of the first that is followed

  std::vector<Model> models_;
  std::vector<Device> devices_;
  Slab<Kept> kept_;
  IdMap<RequestId, std::uint32_t> kept_by_id_;
  IdMap<RequestId, ModelId> handed_;
  Environment environment_;                   // as it was told
  const ledger::Margins* margins_ = nullptr;  // of the ledger, as these
  const ledger::ExecTimes *urgent_times_ = nullptr, *patient_times_ = nullptr;
  std::uint64_t next_own_ = first_own;
  std::size_t held_ = 0;  // actions, of all devices

  TimerHeap loads_;    // by device that is alive: when its real-time work ends; the least busy on top
  TimerHeap rooms_;    // by device that has room for best effort: how many of these it has
  TimerHeap turns_;    // by model with best-effort requests that wait: the device time that it had
  Duration turn_{0};   // of the model that was served last, when it was
  TimerHeap late_;     // by device: when the first that waits there is late
  TimerHeap cold_;     // by model: the same of its cold ones
  TimerHeap patient_;  // by model: the same of its patient ones
  TimerHeap retries_;  // by device: of LOADs
  // What is to be looked at before the decision is over.
  std::vector<std::pair<DeviceId, ModelId>> untended_;  // copies that may be loaded or unloaded now
  std::vector<DeviceId> unfilled_;
  std::vector<ModelId> unhanded_;
  std::vector<ActionDone> returned_;  // of what was held back and will not be sent
  Actions said_;                      // scratch: by the policy
  std::vector<RequestId> batch_;      // scratch: of the INFER that is sent
  std::vector<RequestId> gathered_;   // scratch
};

}  // namespace carillon::schedule
