#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/ledger/ledger.h"
#include "carillon/schedule/scheduler.h"

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
// and O(moves x devices) where a LOAD or UNLOAD ended while models move. DeviceChanged and a new model cost
// O(groups). Not thread-safe.
class Subclusters final : public Scheduler {
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
  std::size_t moving() const { return moves_.size(); }
  // The division that the moves lead to, as of the last decide().
  const GroupsOfModels& division() const { return division_; }

  std::string_view name() const override { return groups_.front().policy->name(); }
  std::optional<Environment> environment() const override;
  void reads(ledger::Ledger& ledger) override;
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

 private:
  struct Group {
    std::unique_ptr<Scheduler> policy;
    ledger::Ledger ledger;
    TimePoint wake = TimePoint::max();
    bool gathering = false;           // an AllArrived is owed to it
    std::vector<std::uint32_t> open;  // by model: requests without an outcome
    std::vector<Excuse> excuses;      // by device and lane, for its next Wake
  };
  struct Model {
    std::shared_ptr<const ModelInfo> info;  // null: it is not served
    std::uint32_t group = 0;                // where its requests go
  };
  // A model has at most one move past `waits`, and one more that waits behind it.
  struct Move {
    enum class Step : std::uint8_t { waits, loads, ends } step = Step::waits;
    ModelId model;
    std::uint32_t from = 0, to = 0;
    TimePoint until = TimePoint::max();  // loads: patience ends
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
  void tell(std::uint32_t group, const Event& event, TimePoint now, Actions& out);
  void tell_holders(ModelId model, const Event& event, TimePoint now, Actions& out);
  std::uint32_t& open(Group& group, ModelId model);
  bool answers(ModelId model, std::uint32_t group);

  void divide(const GroupsOfModels& division, TimePoint now, Actions& out);
  void go_on(TimePoint now, Actions& out);
  bool takes_its_step(Move& move, TimePoint now, Actions& out);
  void begin(Move& move, TimePoint now, Actions& out);
  bool may_begin(const Move& move) const;
  bool has_room(const Move& move) const;
  bool is_loaded(const Move& move) const;
  bool may_switch_unloaded(const Move& move) const;
  std::shared_ptr<const ModelInfo> as_measured(ModelId model, std::uint32_t group) const;

  const Environment environment_;
  const Duration patience_;
  GroupsOfModels division_;
  std::deque<std::pair<TimePoint, GroupsOfModels>> changes_;  // to come, by time
  std::deque<Group> groups_;                                  // ledgers do not move
  std::vector<Model> models_;
  std::size_t devices_ = 0;
  std::vector<Move> moves_;  // in the order in which they are to begin
  bool look_ = false;        // some move may take its next step
  ledger::Ledger* outer_ = nullptr;
  Actions orders_;  // of a policy, by its own names
};

}  // namespace carillon::schedule
