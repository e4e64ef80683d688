#include "carillon/schedule/subclusters.h"

#include <algorithm>
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

// No device holds so many.
constexpr std::uint64_t pages_of_nowhere = std::uint64_t{1} << 40;

}  // namespace

std::uint32_t GroupsOfModels::group(std::string_view model) const {
  if (const auto named = of.find(model); named != of.end()) return named->second;
  std::uint64_t hash = 0;
  for (const char c : model) hash = mix(hash ^ static_cast<unsigned char>(c));
  return static_cast<std::uint32_t>(hash % groups);
}

void GroupsOfModels::merge(const GroupsOfModels& next) {
  for (const auto& [name, group] : next.of) of[name] = group;
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
  TimePoint wake = changes_.empty() ? TimePoint::max() : changes_.front().first;
  for (const Group& group : groups_) wake = std::min(wake, group.wake);
  for (const Move& move : moves_) wake = std::min(wake, move.until);
  return wake;
}

// --- What is heard

std::uint32_t& Subclusters::open(Group& group, ModelId model) {
  if (group.open.size() <= model.index()) group.open.resize(model.index() + 1);
  return group.open[model.index()];
}

void Subclusters::tell(std::uint32_t index, const Event& event, TimePoint now, Actions& out) {
  Group& group = groups_[index];
  if (const auto* came = std::get_if<RequestArrived>(&event)) {
    ++open(group, came->request.model);
    group.gathering |= came->more;
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    const auto* const request = group.ledger.request(gone->request);
    if (request != nullptr && request->withdrawn == 0) --open(group, gone->model);
  } else if (const auto* done = std::get_if<ActionDone>(&event)) {
    const auto* const action = group.ledger.action(done->id);
    if (action != nullptr && action->kind == ActionKind::infer && done->status == ActionStatus::success)
      open(group, action->model) -= action->wanted;
  }
  group.ledger.apply(event, now);
  orders_.clear();
  group.wake = group.policy->decide(event, now, orders_);
  for (Action& order : orders_) {
    group.ledger.book(order, now);
    std::visit(
        [&](auto& what) {
          using Order = std::decay_t<decltype(what)>;
          if constexpr (std::is_same_v<Order, Infer>) what.planned_as.reset();
          if constexpr (std::is_same_v<Order, GiveUp>) look_ = !moves_.empty();
          if constexpr (requires { what.id; }) what.id = outer_name(what.id, index);
        },
        order);
    out.push_back(std::move(order));
  }
  for (const auto& refused : group.ledger.changes().refused) --open(group, refused.model);
  if (!moves_.empty())
    for (const Move& move : moves_)
      look_ |= move.step == Move::Step::ends && move.from == index && open(group, move.model) == 0;
}

// Whether the group answers requests of the model, or may have to.
bool Subclusters::answers(ModelId model, std::uint32_t group) {
  if (models_[model.index()].group == group) return true;
  return std::ranges::any_of(moves_, [&](const Move& move) {
    return move.model == model && ((move.step == Move::Step::loads && move.to == group) ||
                                   (move.step == Move::Step::ends && move.from == group));
  });
}

void Subclusters::tell_holders(ModelId model, const Event& event, TimePoint now, Actions& out) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g)
    if (answers(model, g)) tell(g, event, now, out);
}

void Subclusters::on(const RequestArrived& event, TimePoint now, Actions& out) {
  tell(group(event.request.model), event, now, out);
}

void Subclusters::on(const AllArrived& event, TimePoint now, Actions& out) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g)
    if (std::exchange(groups_[g].gathering, false)) tell(g, event, now, out);
}

void Subclusters::on(const RequestCancelled& event, TimePoint now, Actions& out) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g)
    if (groups_[g].ledger.request(event.request) != nullptr) return tell(g, event, now, out);
  // It has been answered meanwhile.
  tell(group(event.model), event, now, out);
}

void Subclusters::on(const ActionDone& event, TimePoint now, Actions& out) {
  const std::uint32_t g = group_of(event.id);
  CARILLON_ASSERT(g < groups_.size());
  ActionDone own = event;
  own.id = own_name(event.id);
  const auto* const action = groups_[g].ledger.action(own.id);
  look_ |= !moves_.empty() && action != nullptr && action->kind != ActionKind::infer;
  tell(g, own, now, out);
}

// Groups hear of devices in order. So to the other groups this device is one that is not there.
void Subclusters::on(const DeviceChanged& event, TimePoint now, Actions& out) {
  const std::uint32_t home = division_.group(event.device);
  const bool comes_first = event.device.index() >= devices_;
  devices_ = std::max(devices_, event.device.index() + 1);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    if (g == home) {
      DeviceChanged own = event;
      std::erase_if(own.held, [&](ModelId model) { return !answers(model, g); });
      tell(g, own, now, out);
    } else if (comes_first) {
      tell(g, DeviceChanged{event.device, false}, now, out);
    }
  }
  look_ = !moves_.empty();
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
    models_.push_back({.info = event.info, .group = division_.group(event.info->name)});
    return comes(event.model, now, out);
  }
  Model& model = models_[event.model.index()];
  if (model.info == nullptr && event.info != nullptr) model.group = division_.group(event.info->name);
  model.info = event.info;
  tell_holders(event.model, event, now, out);
  // A model that goes moves no more. If it comes again, it comes where the division says.
  if (event.info == nullptr)
    std::erase_if(moves_, [&](const Move& move) { return move.model == event.model; });
  look_ = !moves_.empty();
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
  for (std::uint32_t g = 0; g < groups_.size(); ++g)
    if (groups_[g].wake <= now) tell(g, Wake{.excuses = std::exchange(groups_[g].excuses, {})}, now, out);
  look_ |= std::ranges::any_of(moves_, [&](const Move& move) { return move.until <= now; });
}

// --- Moves

void Subclusters::divide(const GroupsOfModels& division, TimePoint now, Actions& out) {
  division_.merge(division);
  std::erase_if(moves_, [](const Move& move) { return move.step == Move::Step::waits; });
  for (std::uint32_t m = 0; m < models_.size(); ++m) {
    const ModelId id{m};
    const Model& model = models_[m];
    if (model.info == nullptr) continue;
    const std::uint32_t to = division_.group(model.info->name);
    const auto loads = std::ranges::find_if(
        moves_, [&](const Move& move) { return move.model == id && move.step == Move::Step::loads; });
    if (loads != moves_.end()) {
      if (loads->to == to) continue;
      tell(loads->to, ModelChanged{id, nullptr}, now, out);  // nothing was asked of it there
      moves_.erase(loads);
    }
    if (to != model.group) moves_.push_back({.model = id, .from = model.group, .to = to});
  }
  look_ = !moves_.empty();
}

// A step never lets an earlier move of the list take its step, unless it ends a move.
void Subclusters::go_on(TimePoint now, Actions& out) {
  for (bool again = true; again;) {
    again = look_ = false;
    for (std::size_t i = 0; i < moves_.size() && !again; ++i) again = takes_its_step(moves_[i], now, out);
    again |= look_;
  }
  // Memory is too scarce for any that waits, and nothing is about to leave.
  const auto waits = [](const Move& move) { return move.step == Move::Step::waits; };
  const auto stuck = std::ranges::find_if(moves_, [&](const Move& move) { return may_begin(move); });
  if (!std::ranges::all_of(moves_, waits) || stuck == moves_.end()) return;
  for (const Move& move : moves_)
    for (const auto& device : groups_[move.to].ledger.all_devices())
      for (const auto& [model, copy] : device.copies)
        if (copy.residence == ledger::Residence::leaving || copy.residence == ledger::Residence::unloading)
          return;
  begin(*stuck, now, out);
  look_ = false;
}

// True: the move took a step, and moves_ may have changed.
bool Subclusters::takes_its_step(Move& move, TimePoint now, Actions& out) {
  const Move before = move;
  switch (move.step) {
    case Move::Step::waits:
      if (!may_begin(move) || !has_room(move)) return false;
      begin(move, now, out);
      return true;
    case Move::Step::loads:
      if (!is_loaded(move)) {
        if (now < move.until) return false;
        if (!may_switch_unloaded(move)) {
          move.until = saturating_add(now, patience_);
          return false;
        }
      }
      models_[move.model.index()].group = move.to;
      move.step = Move::Step::ends;
      move.until = TimePoint::max();
      return true;
    case Move::Step::ends:
      if (open(groups_[move.from], move.model) > 0) return false;
      std::erase_if(moves_, [&](const Move& each) {
        return each.model == before.model && each.step == Move::Step::ends;
      });
      tell(before.from, ModelChanged{before.model, nullptr}, now, out);
      return true;
  }
  return false;
}

// One model at a time loads in a group, and each moves once at a time.
bool Subclusters::may_begin(const Move& move) const {
  if (move.step != Move::Step::waits) return false;
  const auto in_the_way = [&](const Move& other) {
    return other.step != Move::Step::waits &&
           (other.model == move.model || (other.to == move.to && other.step == Move::Step::loads));
  };
  if (std::ranges::any_of(moves_, in_the_way)) return false;
  const std::uint64_t pages = models_[move.model.index()].info->pages;
  return std::ranges::any_of(groups_[move.to].ledger.all_devices(),
                             [&](const auto& device) { return device.alive && device.pages >= pages; });
}

bool Subclusters::has_room(const Move& move) const {
  const std::uint64_t pages = models_[move.model.index()].info->pages;
  return std::ranges::all_of(groups_[move.to].ledger.all_devices(), [&](const auto& device) {
    return !device.alive || device.pages < pages || device.pages - device.taken >= pages;
  });
}

void Subclusters::begin(Move& move, TimePoint now, Actions& out) {
  move.step = Move::Step::loads;
  move.from = models_[move.model.index()].group;
  move.until = saturating_add(now, patience_);
  const std::uint32_t to = move.to;
  const ModelChanged comes{move.model, as_measured(move.model, move.from)};
  tell(to, comes, now, out);
  look_ = true;  // without pages it is there
}

bool Subclusters::is_loaded(const Move& move) const {
  const std::uint64_t pages = models_[move.model.index()].info->pages;
  const ledger::Ledger& ledger = groups_[move.to].ledger;
  if (ledger.alive() == 0) return false;
  if (pages == 0) return true;
  std::size_t able = 0;
  for (std::uint32_t i = 0; const auto& device : ledger.all_devices()) {
    const DeviceId id{i++};
    if (!device.alive || device.pages < pages) continue;
    ++able;
    if (ledger.residence(id, move.model) != ledger::Residence::loaded) return false;
  }
  return able > 0;
}

// If LOADs fail, or no device could load the model, a switch would lose requests.
bool Subclusters::may_switch_unloaded(const Move& move) const {
  const ledger::Ledger& ledger = groups_[move.to].ledger;
  if (!ledger.model(move.model).places.empty()) return true;
  bool failed = false;
  for (std::uint32_t i = 0; i < ledger.devices(); ++i)
    if (const auto* const copy = ledger.copy(DeviceId{i}, move.model)) failed |= copy->failures > 0;
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
