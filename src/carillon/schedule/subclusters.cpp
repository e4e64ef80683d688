#include "carillon/schedule/subclusters.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <type_traits>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/base/mix.h"

namespace carillon::schedule {
namespace {

// An order's outer name is the policy's own name, and the group in these bits. Classed's own ids lie above
// them (Classed::owns), and no policy counts so far. So orders of a group keep their order.
constexpr int group_bit = 48;
constexpr std::uint64_t group_mask = std::uint64_t{most_subclusters - 1} << group_bit;

ActionId outer_name(ActionId id, std::uint32_t group) {
  CARILLON_ASSERT((id.value & group_mask) == 0);
  return ActionId{id.value | std::uint64_t{group} << group_bit};
}
std::uint32_t group_of(ActionId id) {
  return static_cast<std::uint32_t>((id.value & group_mask) >> group_bit);
}
ActionId own_name(ActionId id) {
  return ActionId{id.value & ~group_mask};
}

std::uint64_t mixed(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

// No device holds so many.
constexpr std::uint64_t pages_of_nowhere = std::uint64_t{1} << 40;

}  // namespace

std::uint32_t GroupsOfModels::group(std::string_view model) const {
  if (const auto named = of.find(model); named != of.end()) return named->second;
  return static_cast<std::uint32_t>(mixed(0, model) % groups);
}

void GroupsOfModels::merge(const GroupsOfModels& next) {
  for (const auto& [name, group] : next.of) of[name] = group;
}

std::uint64_t GroupsOfModels::hash() const {
  std::uint64_t hash = mix(groups);
  for (const auto& [name, group] : of) hash = mix(mixed(hash, name) ^ group);
  return std::max<std::uint64_t>(hash, 1);
}

GroupsOfModels groups_of_models(const std::vector<std::vector<std::string>>& names) {
  GroupsOfModels division{.groups = names.size(), .of = {}};
  for (std::uint32_t g = 0; g < names.size(); ++g)
    for (const std::string& name : names[g]) division.of.emplace(name, g);
  return division;
}

Subclusters::Subclusters(const MakePolicy& make, const Environment& environment, GroupsOfModels division,
                         Duration patience)
    : environment_(environment), patience_(patience), division_(std::move(division)) {
  CARILLON_ASSERT(division_.groups >= 1 && division_.groups <= most_subclusters && patience > Duration{0});
  for (std::size_t g = 0; g < division_.groups; ++g) {
    Group& group = groups_.emplace_back();
    group.policy = make();
    group.policy->reads(group.ledger);
  }
}

void Subclusters::change(GroupsOfModels division, TimePoint at) {
  CARILLON_ASSERT(division.groups == groups_.size());
  const auto later = std::ranges::upper_bound(changes_, at, {}, [](const auto& each) { return each.first; });
  changes_.insert(later, {at, std::move(division)});
}

std::optional<Environment> Subclusters::environment() const {
  std::optional<Environment> worst;
  for (const Group& group : groups_) {
    const auto its = group.policy->environment();
    if (!its) continue;
    if (!worst) worst = its;
    worst->dispatch = std::max(worst->dispatch, its->dispatch);
    worst->answer = std::max(worst->answer, its->answer);
    worst->overrun = std::max(worst->overrun, its->overrun);
    worst->shortest = std::max(worst->shortest, its->shortest);
  }
  return worst;
}

// The driver's ledger plans by devices' times, for those who read there what runs take.
void Subclusters::reads(ledger::Ledger& ledger) {
  outer_ = &ledger;
  ledger.planned_by(environment_, true);
  if (environment_.classes) ledger.classed_by(environment_, true);
}

TimePoint Subclusters::decide(const Event& event, TimePoint now, Actions& out) {
  std::visit([&](const auto& what) { on(what, now, out); }, event);
  while (!changes_.empty() && changes_.front().first <= now) {
    const GroupsOfModels next = std::move(changes_.front().second);
    changes_.pop_front();
    divide(next, now, out);
  }
  if (look_) go_on(now, out);
  const TimePoint wake = std::min(wakes_.top_at(), until_.top_at());
  return changes_.empty() ? wake : std::min(wake, changes_.front().first);
}

// --- What is heard

std::uint32_t& Subclusters::open(Group& group, ModelId model) {
  if (group.open.size() <= model.index()) group.open.resize(model.index() + 1);
  return group.open[model.index()];
}

void Subclusters::closed(std::uint32_t group, ModelId model, std::uint32_t requests) {
  open(groups_[group], model) -= requests;
  const std::optional<Move>& move = models_[model.index()].move;
  if (move && move->step == Move::Step::ends && move->from == group) ends_if_over(model);
}

void Subclusters::tell(std::uint32_t index, const Event& event, TimePoint now, Actions& out) {
  Group& group = groups_[index];
  if (moving_ > 0) hears(index);
  if (const auto* came = std::get_if<RequestArrived>(&event)) {
    ++open(group, came->request.model);
    if (came->more && !std::exchange(group.gathering, true)) gathering_.push_back(index);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    const auto* const request = group.ledger.request(gone->request);
    if (request != nullptr && request->withdrawn == 0) closed(index, gone->model, 1);
  } else if (const auto* done = std::get_if<ActionDone>(&event)) {
    const auto* const action = group.ledger.action(done->id);
    if (action != nullptr && action->kind == ActionKind::infer && done->status == ActionStatus::success)
      closed(index, action->model, action->wanted);
  }
  group.ledger.apply(event, now);
  orders_.clear();
  const TimePoint wake = group.policy->decide(event, now, orders_);
  wake == TimePoint::max() ? wakes_.remove(index) : wakes_.set(index, wake);
  pass(index, now, out);
  for (const auto& refused : group.ledger.changes().refused) closed(index, refused.model, 1);
}

// The orders of a group's policy.
void Subclusters::pass(std::uint32_t index, TimePoint now, Actions& out) {
  for (Action& order : orders_) {
    groups_[index].ledger.book(order, now);
    std::visit(
        [&](auto& what) {
          using Order = std::decay_t<decltype(what)>;
          if constexpr (std::is_same_v<Order, Infer>) what.planned_as.reset();
          if constexpr (std::is_same_v<Order, GiveUp>) look_ = moving_ > 0;
          if constexpr (requires { what.id; }) what.id = outer_name(what.id, index);
        },
        order);
    out.push_back(std::move(order));
  }
}

bool Subclusters::load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) {
  const std::uint32_t index = group(wanted.model);
  if (beside(wanted.model) || division_.group(wanted.device) != index) return true;
  auto* const loads = dynamic_cast<LoadsAhead*>(groups_[index].policy.get());
  if (loads == nullptr) return false;
  LoadAhead its = wanted;
  std::erase_if(its.instead, [&](ModelId model) { return beside(model) || group(model) != index; });
  orders_.clear();
  const bool does = loads->load_ahead(its, now, orders_);
  pass(index, now, out);
  return does;
}

std::optional<std::uint32_t> Subclusters::beside(ModelId id) const {
  const std::optional<Move>& move = models_[id.index()].move;
  if (!move) return std::nullopt;
  return move->step == Move::Step::loads ? move->to : move->from;
}

bool Subclusters::answers(ModelId model, std::uint32_t group) const {
  return models_[model.index()].group == group || beside(model) == group;
}

void Subclusters::tell_holders(ModelId model, const Event& event, TimePoint now, Actions& out) {
  const std::uint32_t own = models_[model.index()].group;
  const auto other = beside(model);
  if (other && *other < own) tell(*other, event, now, out);
  tell(own, event, now, out);
  if (other && *other > own) tell(*other, event, now, out);
}

void Subclusters::on(const RequestArrived& event, TimePoint now, Actions& out) {
  tell(group(event.request.model), event, now, out);
}

void Subclusters::on(const AllArrived& event, TimePoint now, Actions& out) {
  due_.clear();
  std::swap(due_, gathering_);
  std::ranges::sort(due_);
  for (const std::uint32_t g : due_) {
    groups_[g].gathering = false;
    tell(g, event, now, out);
  }
}

void Subclusters::on(const RequestCancelled& event, TimePoint now, Actions& out) {
  const auto other = beside(event.model);
  const bool there = other && groups_[*other].ledger.request(event.request) != nullptr;
  tell(there ? *other : group(event.model), event, now, out);
}

void Subclusters::on(const ActionDone& event, TimePoint now, Actions& out) {
  const std::uint32_t g = group_of(event.id);
  CARILLON_ASSERT(g < groups_.size());
  ActionDone own = event;
  own.id = own_name(event.id);
  const auto* const action = groups_[g].ledger.action(own.id);
  look_ |= moving_ > 0 && action != nullptr && action->kind != ActionKind::infer;
  tell(g, own, now, out);
}

// Groups hear of devices in order. So to the other groups this device is one that is not there. The device
// may come with models of other groups, as another division was in force: its group unloads them.
void Subclusters::on(const DeviceChanged& event, TimePoint now, Actions& out) {
  const std::uint32_t home = division_.group(event.device);
  const bool comes_first = event.device.index() >= devices_;
  devices_ = std::max(devices_, event.device.index() + 1);
  std::vector<ModelId> others;
  for (const ModelId model : event.held)
    if (!answers(model, home)) others.push_back(model);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    if (g == home) {
      for (const ModelId model : others) tell(g, ModelChanged{model, models_[model.index()].info}, now, out);
      tell(g, event, now, out);
      for (const ModelId model : others) tell(g, ModelChanged{model, nullptr}, now, out);
    } else if (comes_first) {
      tell(g, DeviceChanged{event.device, false}, now, out);
    }
  }
  look_ = moving_ > 0;
}

// The model's id is used up in every group, and only one group serves the model.
void Subclusters::comes(ModelId id, TimePoint now, Actions& out) {
  const Model& model = models_[id.index()];
  auto nowhere = std::make_shared<ModelInfo>(*model.info);
  nowhere->pages = pages_of_nowhere;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    if (g == model.group) {
      tell(g, ModelChanged{id, model.info}, now, out);
    } else {
      tell(g, ModelChanged{id, nowhere}, now, out);
      tell(g, ModelChanged{id, nullptr}, now, out);
    }
  }
}

void Subclusters::on(const ModelChanged& event, TimePoint now, Actions& out) {
  if (outer_ != nullptr) outer_->plan(event);
  if (event.model.index() >= models_.size()) {
    CARILLON_ASSERT(event.model.index() == models_.size() && event.info != nullptr);
    models_.push_back(
        {.info = event.info, .group = division_.group(event.info->name), .move = {}, .waits = {}});
    return comes(event.model, now, out);
  }
  Model& model = models_[event.model.index()];
  if (model.info == nullptr && event.info != nullptr) model.group = division_.group(event.info->name);
  if (model.waits && event.info != nullptr && event.info->pages != model.info->pages) {
    groups_[model.waits->to].resized = true;
    hears(model.waits->to);
  }
  model.info = event.info;
  tell_holders(event.model, event, now, out);
  // A model that goes moves no more. If it comes again, it comes where the division says.
  if (event.info == nullptr) forget_moves(event.model);
  look_ = moving_ > 0;
}

void Subclusters::on(const TimesChanged& event, TimePoint now, Actions& out) {
  if (outer_ != nullptr) outer_->plan(event, now);
  Model& model = models_[event.model.index()];
  if (model.info != nullptr) {
    auto info = std::make_shared<ModelInfo>(*model.info);
    info->batches = event.batches;
    model.info = std::move(info);
  }
  tell_holders(event.model, event, now, out);
}

void Subclusters::on(const RequestProfiled& event, TimePoint now, Actions& out) {
  tell_holders(event.model, event, now, out);
}

void Subclusters::on(const Wake& event, TimePoint now, Actions& out) {
  for (const Excuse& excuse : event.excuses) {
    std::vector<Excuse>& told = groups_[division_.group(excuse.device)].excuses;
    const auto before = std::ranges::find_if(
        told, [&](const Excuse& each) { return each.device == excuse.device && each.lane == excuse.lane; });
    if (before == told.end()) {
      told.push_back(excuse);
    } else {
      before->starved += excuse.starved;
      before->moved = before->moved || excuse.moved;
    }
  }
  due_.clear();
  wakes_.visit_first(groups_.size(), saturating_add(now, Duration{1}),
                     [&](std::uint32_t g) { due_.push_back(g); });
  std::ranges::sort(due_);
  for (const std::uint32_t g : due_)
    tell(g, Wake{.excuses = std::exchange(groups_[g].excuses, {})}, now, out);
  look_ |= until_.top_at() <= now;
}

// --- Moves

// Moves that wait are made anew, in the order of the models.
void Subclusters::divide(const GroupsOfModels& division, TimePoint now, Actions& out) {
  division_.merge(division);
  for (Group& group : groups_) group.waited.clear();
  for (std::uint32_t m = 0; m < models_.size(); ++m) {
    const ModelId id{m};
    Model& model = models_[m];
    if (std::exchange(model.waits, std::nullopt)) --moving_;
    if (model.info == nullptr) continue;
    const std::uint32_t to = division_.group(model.info->name);
    if (model.move && model.move->step == Move::Step::loads) {
      if (model.move->to == to) continue;
      tell(model.move->to, ModelChanged{id, nullptr}, now, out);  // nothing was asked of it there
      forget_loads(model);
    }
    if (to == model.group) continue;
    std::vector<ModelId>& waited = groups_[to].waited;
    model.waits = Waits{.place = places_++, .to = to, .number = static_cast<std::uint32_t>(waited.size())};
    waited.push_back(id);
    ++moving_;
  }
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    groups_[g].resized = true;
    hears(g);
  }
  look_ = moving_ > 0;
}

void Subclusters::forget_moves(ModelId id) {
  Model& model = models_[id.index()];
  if (model.waits) {
    groups_[model.waits->to].fitting.count(model.waits->number, false);
    hears(model.waits->to);
    model.waits.reset();
    --moving_;
  }
  if (!model.move) return;
  if (model.move->step == Move::Step::loads) return forget_loads(model);
  ready_.erase({model.move->place, id});
  model.move.reset();
  --moving_;
  --begun_;
}

void Subclusters::forget_loads(Model& model) {
  const std::uint32_t to = model.move->to;
  groups_[to].loads.reset();
  until_.remove(to);
  hears(to);
  model.move.reset();
  --moving_;
  --begun_;
}

// One move takes one step at a time. Of several moves that may take a step, the one that began first does.
void Subclusters::go_on(TimePoint now, Actions& out) {
  for (look_at_groups(now); !ready_.empty(); look_at_groups(now)) take_step(*ready_.begin(), now, out);
  look_ = false;
  // Memory is too scarce for any that waits, and nothing is about to leave.
  if (moving_ == 0 || begun_ > 0) return;
  if (const auto stuck = first_without_room()) {
    begin(*stuck, now, out);
    look_ = false;
  }
}

void Subclusters::hears(std::uint32_t group) {
  if (!std::exchange(groups_[group].heard, true)) heard_.push_back(group);
}

// Of a group that has heard nothing since the last look the same is ready as then, until patience ends.
void Subclusters::look_at_groups(TimePoint now) {
  until_.visit_first(groups_.size(), saturating_add(now, Duration{1}), [&](std::uint32_t g) { hears(g); });
  for (const std::uint32_t g : heard_) look_at(g, now);
  heard_.clear();
}

void Subclusters::look_at(std::uint32_t index, TimePoint now) {
  Group& group = groups_[index];
  ++looked_at_;
  group.heard = false;
  if (group.resized) size(group);
  if (group.ready) ready_.erase(*group.ready);
  group.ready.reset();
  if (group.loads) {  // one model at a time loads in a group
    const ModelId id = *group.loads;
    Move& move = *models_[id.index()].move;
    bool may_end = is_loaded(id, move);
    if (!may_end && move.until <= now) {
      may_end = may_switch_unloaded(id, move);
      if (!may_end) move.until = saturating_add(now, patience_);
    }
    may_end ? until_.remove(index) : until_.set(index, move.until);
    if (may_end) group.ready = Place{move.place, id};
  } else {
    group.ready = first_with_room(index);
  }
  if (group.ready) ready_.insert(*group.ready);
}

// A model whose last move has not ended waits for that, too.
void Subclusters::size(Group& group) {
  std::vector<std::uint64_t> pages;
  for (const ModelId id : group.waited) {
    const auto& info = models_[id.index()].info;
    pages.push_back(info != nullptr ? info->pages : 0);
  }
  group.fitting.assign(pages);
  for (std::uint32_t i = 0; const ModelId id : group.waited) {
    const Model& model = models_[id.index()];
    const bool waits = model.waits && &groups_[model.waits->to] == &group && model.waits->number == i;
    if (!waits || model.move) group.fitting.count(i, false);
    ++i;
  }
  looked_at_ += group.waited.size();
  group.resized = false;
}

void Subclusters::visit_devices(std::uint32_t group, auto&& see) {
  const auto devices = groups_[group].ledger.all_devices();
  for (std::size_t i = group; i < devices.size(); i += groups_.size()) {
    ++looked_at_;
    see(devices[i], DeviceId{static_cast<std::uint32_t>(i)});
  }
}

std::optional<Subclusters::Place> Subclusters::place_of(const Group& group, std::uint32_t number) const {
  if (number == FirstThatFits::none) return std::nullopt;
  const ModelId id = group.waited[number];
  return Place{models_[id.index()].waits->place, id};
}

// A device can hold the model, and each that can has room. So the model's pages lie above those of a smaller
// device, and within the least room of all larger ones.
std::optional<Subclusters::Place> Subclusters::first_with_room(std::uint32_t index) {
  const Group& group = groups_[index];
  if (group.fitting.counted() == 0) return std::nullopt;
  room_.clear();
  visit_devices(index, [&](const auto& device, DeviceId) {
    if (device.alive) room_.emplace_back(device.pages, device.pages - device.taken);
  });
  std::ranges::sort(room_, std::greater{});
  std::uint32_t first = FirstThatFits::none;
  std::uint64_t room = ~std::uint64_t{0};
  for (std::size_t i = 0; i < room_.size(); ++i) {
    room = std::min(room, room_[i].second);
    const bool last = i + 1 == room_.size();
    if (!last && room_[i + 1].first == room_[i].first) continue;
    const std::uint64_t above = last ? 0 : room_[i + 1].first + 1;
    first = std::min(first, group.fitting.first(above, std::min(room, room_[i].first)));
    looked_at_ += group.fitting.steps();
  }
  return place_of(group, first);
}

// The first that a device could hold. None where something is about to leave, as there may be room then.
std::optional<ModelId> Subclusters::first_without_room() {
  std::optional<Place> first;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    ++looked_at_;
    if (group.fitting.counted() == 0) continue;
    bool leaves = false;
    std::optional<std::uint64_t> most;
    visit_devices(g, [&](const auto& device, DeviceId) {
      leaves |= device.leaving > 0;
      if (device.alive) most = std::max(most.value_or(0), device.pages);
    });
    if (leaves) return std::nullopt;
    if (!most) continue;
    looked_at_ += group.fitting.steps();
    const auto its = place_of(group, group.fitting.first(0, *most));
    if (its && (!first || *its < *first)) first = its;
  }
  return first ? std::optional(first->second) : std::nullopt;
}

void Subclusters::take_step(Place place, TimePoint now, Actions& out) {
  const ModelId id = place.second;
  Model& model = models_[id.index()];
  ++looked_at_;
  ready_.erase(place);
  if (model.waits && model.waits->place == place.first) return begin(id, now, out);
  Move& move = *model.move;
  switch (move.step) {
    case Move::Step::loads:
      model.group = move.to;
      move.step = Move::Step::ends;
      move.until = TimePoint::max();
      groups_[move.to].loads.reset();
      groups_[move.to].ready.reset();
      hears(move.to);
      ends_if_over(id);
      return;
    case Move::Step::ends: {
      const std::uint32_t from = move.from;
      model.move.reset();
      --moving_;
      --begun_;
      if (model.waits) {
        groups_[model.waits->to].fitting.count(model.waits->number, true);
        hears(model.waits->to);
      }
      return tell(from, ModelChanged{id, nullptr}, now, out);
    }
  }
}

// The old group has answered all requests that it had.
void Subclusters::ends_if_over(ModelId id) {
  const Move& move = *models_[id.index()].move;
  if (open(groups_[move.from], id) > 0) return;
  ready_.insert({move.place, id});
  look_ = true;
}

void Subclusters::begin(ModelId id, TimePoint now, Actions& out) {
  Model& model = models_[id.index()];
  const Waits waits = *std::exchange(model.waits, std::nullopt);
  model.move = Move{.step = Move::Step::loads,
                    .place = waits.place,
                    .from = model.group,
                    .to = waits.to,
                    .until = saturating_add(now, patience_)};
  ++begun_;
  groups_[waits.to].fitting.count(waits.number, false);
  groups_[waits.to].loads = id;
  groups_[waits.to].ready.reset();
  until_.set(waits.to, model.move->until);
  const ModelChanged comes{id, as_measured(id, model.group)};
  tell(waits.to, comes, now, out);
}

bool Subclusters::is_loaded(ModelId id, const Move& move) {
  const std::uint64_t pages = models_[id.index()].info->pages;
  const ledger::Ledger& ledger = groups_[move.to].ledger;
  if (ledger.alive() == 0) return false;
  if (pages == 0) return true;
  std::size_t able = 0, have = 0;
  visit_devices(move.to, [&](const auto& device, DeviceId at) {
    if (!device.alive || device.pages < pages) return;
    ++able;
    have += ledger.residence(at, id) == ledger::Residence::loaded ? 1 : 0;
  });
  return able > 0 && have == able;
}

// If LOADs fail, or no device could load the model, a switch would lose requests.
bool Subclusters::may_switch_unloaded(ModelId id, const Move& move) {
  const ledger::Ledger& ledger = groups_[move.to].ledger;
  if (!ledger.model(id).places.empty()) return true;
  bool failed = false;
  visit_devices(move.to, [&](const auto&, DeviceId at) {
    const auto* const copy = ledger.copy(at, id);
    failed |= copy != nullptr && copy->failures > 0;
  });
  return ledger.alive() > 0 && !failed;
}

// What the group knows of the model's times, as seeds. Policies may name models otherwise in their ledgers:
// then the seeds stay.
std::shared_ptr<const ModelInfo> Subclusters::as_measured(ModelId id, std::uint32_t group) const {
  const std::shared_ptr<const ModelInfo>& info = models_[id.index()].info;
  const ledger::Ledger& ledger = groups_[group].ledger;
  const ledger::ExecTimes& times = ledger.times(Class::normal);
  if (!times.came(id) || times.info(id)->name != info->name ||
      !same_sizes(times.info(id)->batches, info->batches))
    return info;
  auto measured = std::make_shared<ModelInfo>(*info);
  for (std::size_t b = 0; b < info->batches.size(); ++b) {
    Duration longest{0};
    for (std::uint32_t i = 0; const auto& device : ledger.all_devices()) {
      const DeviceId at{i++};
      if (device.alive && times.ran(at, id, b)) longest = std::max(longest, times.usual(at, id, b));
    }
    if (longest > Duration{0}) measured->batches[b].exec = longest;
  }
  return measured;
}

}  // namespace carillon::schedule
