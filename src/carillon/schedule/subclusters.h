#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/first_that_fits.h"
#include "carillon/schedule/loads_ahead.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

// Which group of devices holds which models (Symphony, section 4.4). Device d is in group d modulo `groups`.
struct GroupsOfModels {
  std::size_t groups = 1;                                // 1..most_subclusters
  std::map<std::string, std::uint32_t, std::less<>> of;  // by the model's name; each below `groups`

  std::uint32_t group(DeviceId device) const { return device.value % static_cast<std::uint32_t>(groups); }
  // Of a model that is not named: by a hash of its name.
  std::uint32_t group(std::string_view model) const;
  // What `next` names is divided anew; what it does not name stays.
  void merge(const GroupsOfModels& next);
  // Of the groups and the names; never 0.
  std::uint64_t hash() const;
};
inline constexpr std::size_t most_subclusters = 1024;
// `names`: of each group's models; 1..most_subclusters groups.
GroupsOfModels groups_of_models(const std::vector<std::vector<std::string>>& names);

// Groups of devices, each with a policy and a ledger of its own. A request goes to the group of its model. No
// group knows of another group's devices and requests.
//
// change() sets another division while requests come. A model that changes its group moves in three steps:
//   1. loads: the policy of the new group hears of the model, and loads it into free memory. Requests go to
//      the old group. One model at a time loads in a group.
//   2. ends: once all devices of the new group that can hold the model have it, requests go to the new group.
//      The old group answers the requests that it has.
//   3. Then the old group's policy hears that the model went, and unloads it.
// A move into a group without enough free memory waits for moves out of that group. If nothing else moves,
// memory is too scarce to keep both copies, and the move begins all the same. Some policies load only models
// that requests ask for (clockwork, fcfs). So a move waits at most `patience` for LOADs, but longer if LOADs
// fail.
//
// The new group starts from the times that the old one measured. An event costs as under the group's policy,
// however many models move. While models move, the end of a LOAD or UNLOAD and each step of a move cost
// O(d log d + d log moves) more, for the d devices of each group that heard something. If all moves wait for
// memory, that is O(devices + groups log moves). DeviceChanged and a new model cost O(groups), and
// another division O(models log models). Not thread-safe.
class Subclusters final : public Scheduler, public LoadsAhead {
 public:
  using MakePolicy = std::function<std::unique_ptr<Scheduler>()>;
  static constexpr Duration default_patience = std::chrono::seconds{30};

  // `make` makes the policy of one group; the policy was told of `environment`.
  Subclusters(const MakePolicy& make, const Environment& environment, GroupsOfModels division,
              Duration patience = default_patience);

  // From `at` on `division` counts. Requires as many groups as before. A model that it does not name stays
  // where it is. A move under way goes on if its model still moves to the same group. Takes effect with the
  // first event at or after `at`; decide() returns a wake for `at`.
  void change(GroupsOfModels division, TimePoint at);

  // The group that requests of the model go to now. Requires that the model came.
  std::uint32_t group(ModelId model) const { return models_[model.index()].group; }
  // How many models have yet to begin or end their move.
  std::size_t moving() const { return moving_; }
  // The division that the moves lead to, as of the last decide().
  const GroupsOfModels& division() const { return division_; }

  std::string_view name() const override { return groups_.front().policy->name(); }
  std::optional<Environment> environment() const override;
  void reads(ledger::Ledger& ledger) override;
  ledger::Ledger* own_ledger(DeviceId device) override { return &groups_[division_.group(device)].ledger; }
  Terms terms(ModelId model, Class cls, TimePoint now) const override {
    return groups_[group(model)].policy->terms(model, cls, now);
  }
  bool favours(const Request& request, TimePoint now) const override {
    return groups_[group(request.model)].policy->favours(request, now);
  }
  void turned_away(const Request& request, TimePoint now) override {
    groups_[group(request.model)].policy->turned_away(request, now);
  }
  bool tells_tenants() const override { return groups_.front().policy->tells_tenants(); }
  bool by_chance() const override { return groups_.front().policy->by_chance(); }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  // Nothing is sent for a model that moves, or for a device of another group.
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override;

  // For tests: how much was looked at on behalf of moves: devices, steps of moves, and steps of a search
  // among the moves that wait.
  std::uint64_t looked_at() const { return looked_at_; }

 private:
  // A move's place among all moves: those that began to wait first go first.
  using Place = std::pair<std::uint64_t, ModelId>;
  struct Group {
    std::unique_ptr<Scheduler> policy;
    ledger::Ledger ledger;
    bool gathering = false;           // an AllArrived is owed to it
    std::vector<std::uint32_t> open;  // by model: requests without an outcome
    std::vector<Excuse> excuses;      // by device and lane, for its next Wake
    // Moves into this group. `loads`: the model that is being loaded. The others are the moves that waited
    // when the division came, in their order. `fitting` counts those that wait only for room and their turn.
    std::optional<ModelId> loads;
    std::vector<ModelId> waited;
    FirstThatFits fitting;
    bool resized = false;        // a model that waits takes other pages than `fitting` knows
    bool heard = false;          // something since the last look at it
    std::optional<Place> ready;  // of these moves: the one in ready_
  };
  struct Move {
    enum class Step : std::uint8_t { loads, ends } step = Step::loads;
    std::uint64_t place = 0;
    std::uint32_t from = 0, to = 0;
    TimePoint until = TimePoint::max();  // loads: patience ends
  };
  struct Waits {
    std::uint64_t place = 0;
    std::uint32_t to = 0;
    std::uint32_t number = 0;  // in the group's `waited`
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;  // null: it is not served
    std::uint32_t group = 0;                // where its requests go
    std::optional<Move> move;               // that has begun
    std::optional<Waits> waits;             // a move that has not; behind the other
  };

  void on(const RequestArrived& event, TimePoint now, Actions& out);
  void on(const AllArrived& event, TimePoint now, Actions& out);
  void on(const RequestCancelled& event, TimePoint now, Actions& out);
  void on(const ActionDone& event, TimePoint now, Actions& out);
  void on(const DeviceChanged& event, TimePoint now, Actions& out);
  void on(const ModelChanged& event, TimePoint now, Actions& out);
  void on(const TimesChanged& event, TimePoint now, Actions& out);
  void on(const RequestProfiled& event, TimePoint now, Actions& out);
  void on(const Wake& event, TimePoint now, Actions& out);

  void comes(ModelId model, TimePoint now, Actions& out);
  void pass(std::uint32_t index, TimePoint now, Actions& out);
  void tell(std::uint32_t group, const Event& event, TimePoint now, Actions& out);
  void tell_holders(ModelId model, const Event& event, TimePoint now, Actions& out);
  std::uint32_t& open(Group& group, ModelId model);
  void closed(std::uint32_t group, ModelId model, std::uint32_t requests);
  // The other group than the model's own that answers requests of the model, or may have to.
  std::optional<std::uint32_t> beside(ModelId model) const;
  bool answers(ModelId model, std::uint32_t group) const;

  void divide(const GroupsOfModels& division, TimePoint now, Actions& out);
  void forget_moves(ModelId model);
  void forget_loads(Model& model);
  void go_on(TimePoint now, Actions& out);
  void hears(std::uint32_t group);
  void look_at_groups(TimePoint now);
  void look_at(std::uint32_t group, TimePoint now);
  void size(Group& group);
  std::optional<Place> first_with_room(std::uint32_t group);
  std::optional<ModelId> first_without_room();
  std::optional<Place> place_of(const Group& group, std::uint32_t number) const;
  void take_step(Place place, TimePoint now, Actions& out);
  void begin(ModelId model, TimePoint now, Actions& out);
  void ends_if_over(ModelId model);
  bool is_loaded(ModelId model, const Move& move);
  bool may_switch_unloaded(ModelId model, const Move& move);
  // Calls see(device, its id) for each device of the group.
  void visit_devices(std::uint32_t group, auto&& see);
  std::shared_ptr<const ModelInfo> as_measured(ModelId model, std::uint32_t group) const;

  const Environment environment_;
  const Duration patience_;
  GroupsOfModels division_;
  std::deque<std::pair<TimePoint, GroupsOfModels>> changes_;  // to come, by time
  std::deque<Group> groups_;                                  // ledgers do not move
  std::vector<Model> models_;
  std::size_t devices_ = 0;
  TimerHeap wakes_;                       // of groups
  std::vector<std::uint32_t> gathering_;  // groups that an AllArrived is owed to
  std::size_t moving_ = 0, begun_ = 0;    // moves, and of them those that have begun
  std::uint64_t places_ = 0;              // of moves so far
  bool look_ = false;                     // some move may take its next step
  std::vector<std::uint32_t> heard_;      // groups that have heard something since they were looked at
  TimerHeap until_;                       // by group: Move::until of the move that loads there
  std::set<Place> ready_;                 // moves that may take their next step, as of the last looks
  ledger::Ledger* outer_ = nullptr;
  Actions orders_;                                             // of a policy, by its own names
  std::vector<std::uint32_t> due_;                             // scratch: groups
  std::vector<std::pair<std::uint64_t, std::uint64_t>> room_;  // scratch: pages of devices, and free ones
  std::uint64_t looked_at_ = 0;
};

}  // namespace carillon::schedule
