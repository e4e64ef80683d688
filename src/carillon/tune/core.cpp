#include "carillon/tune/core.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/tune/model.h"

namespace carillon::tune {
namespace {

bool is_positive(double value, double most) {
  return value > 0 && value <= most;  // false of what is no number
}

constexpr double most_iterations = 1e15, most_priority = 1e6, most_speed = 1e6;

device::JobId job_of(std::uint32_t trial) {
  return device::JobId{trial};
}

bool is_in(const std::vector<std::uint32_t>& list, std::uint32_t what) {
  return std::ranges::find(list, what) != list.end();
}

bool is_right(double speed, double supply, Bytes memory) {
  return is_positive(speed, most_speed) && supply >= 0 && supply <= 1 && memory <= device::most_job_bytes;
}

}  // namespace

std::string_view name_of(TuneReason reason) {
  switch (reason) {
    case TuneReason::none:
      return "none";
    case TuneReason::duplicate:
      return "duplicate";
    case TuneReason::bad_budget:
      return "bad_budget";
    case TuneReason::bad_priority:
      return "bad_priority";
    case TuneReason::bad_iteration:
      return "bad_iteration";
    case TuneReason::bad_device:
      return "bad_device";
    case TuneReason::too_large:
      return "too_large";
    case TuneReason::too_many:
      return "too_many";
    case TuneReason::empty_group:
      return "empty_group";
  }
  CARILLON_ASSERT(false);
}

std::string_view name_of(TrialView::State state) {
  switch (state) {
    case TrialView::State::waiting:
      return "waiting";
    case TrialView::State::running:
      return "running";
    case TrialView::State::held:
      return "held";
    case TrialView::State::paused:
      return "paused";
  }
  CARILLON_ASSERT(false);
}

void TuneCore::on(const TuneEvent& event, TimePoint now, TuneOrders& out) {
  now_at_ = std::max(now_at_, now);
  out_ = &out;
  std::visit([this](const auto& e) { take(e); }, event);
  decide();
  out_ = nullptr;
}

// --- Events

TuneReason TuneCore::check(const TrialSpec& spec) const {
  const auto slot = find(spec.trial);
  if (slot && trials_[*slot].state != State::paused) return TuneReason::duplicate;
  if (spec.budget && !is_positive(*spec.budget, most_iterations)) return TuneReason::bad_budget;
  if (!is_positive(spec.priority, most_priority)) return TuneReason::bad_priority;
  if (spec.iteration && spec.iteration->count() <= 0) return TuneReason::bad_iteration;
  if (!slot && here_ >= most_trials) return TuneReason::too_many;
  if (spec.memory.persistent > device::most_job_bytes || spec.memory.ephemeral > device::most_job_bytes)
    return TuneReason::too_large;
  // Before any device is here nobody can say.
  if (devices_here_ > 0 && std::ranges::none_of(devices_, [&](const Device& d) {
        return d.here && spec.memory.persistent + spec.memory.ephemeral <= d.lanes.capacity();
      }))
    return TuneReason::too_large;
  return TuneReason::none;
}

void TuneCore::take(const GroupCame& event) {
  if (event.trials.empty()) return refuse(TrialId{}, TuneReason::empty_group);
  std::vector<Slot> taken;
  taken.reserve(event.trials.size());
  for (const TrialSpec& spec : event.trials) {
    if (const TuneReason reason = check(spec); reason != TuneReason::none) {
      refuse(spec.trial, reason);
      continue;
    }
    Slot slot = 0;
    if (const auto known = find(spec.trial)) {
      slot = *known;
    } else {
      if (free_trials_.empty()) {
        slot = static_cast<Slot>(trials_.size());
        trials_.emplace_back();
      } else {
        slot = free_trials_.back();
        free_trials_.pop_back();
      }
      trials_[slot] = {};
      trials_[slot].here = true;
      trials_[slot].id = spec.trial;
      trials_[slot].memory = spec.memory;
      by_id_.emplace(spec.trial.value, slot);
      ++here_;
    }
    Trial& t = trials_[slot];
    // Where its memory still lies it is held there; else it waits.
    set_state(slot, t.devices.empty() && t.under == Under::none ? State::waiting : State::held);
    t.group = event.group;
    t.came = came_++;
    t.remaining = spec.budget;
    t.credit = 0;
    t.since = now_at_;
    if (spec.iteration) t.told_s = to_seconds(*spec.iteration);
    t.priority = spec.priority;
    taken.push_back(slot);
  }
  if (!taken.empty()) came(event.group, taken);
}

void TuneCore::take(const TrialReported& event) {
  const auto slot = find(event.trial);
  if (!slot) return;
  Trial& t = trials_[*slot];
  if (t.state != State::running || !is_positive(event.iterations, most_iterations)) return;
  t.done += event.iterations;
  t.credit = 0;
  t.since = now_at_;
  bool more = false;
  if (t.remaining) t.remaining = std::max(0.0, *t.remaining - event.iterations);
  if (event.remaining && is_positive(*event.remaining, most_iterations)) {
    // What a shell works out from a budget and its own count differs from ours by parts of an iteration.
    more = t.remaining && *event.remaining > *t.remaining + 0.5;
    t.remaining = event.remaining;
  }
  // Of one that has an order under way nobody knows how wide it was.
  const bool mixed = std::exchange(t.mixed, t.under != Under::none);
  t.steady = mixed ? 0 : t.steady + 1;
  if (!mixed && event.busy.count() > 0) {
    double slowest = std::numeric_limits<double>::max();
    for (const Slot d : t.devices) slowest = std::min(slowest, devices_[d].rate());
    if (slowest > 0 && !t.devices.empty())
      estimator_.add(
          {.trial = *slot,
           .company = t.devices.size() == 1 ? static_cast<int>(devices_[t.devices.front()].users.size()) : 1,
           .width = static_cast<int>(t.devices.size()),
           .speed = slowest,
           .seconds = to_seconds(event.busy) / event.iterations});
  }
  reported(*slot, more);
}

void TuneCore::take(const TrialSettled& event) {
  const auto slot = find(event.trial);
  if (!slot || trials_[*slot].under == Under::none) return;
  Trial& t = trials_[*slot];
  const Under under = std::exchange(t.under, Under::none);
  t.since = now_at_;
  for (const Slot d : std::exchange(t.leaving, {})) vacate(d, *slot);
  switch (under) {
    case Under::none:
      break;
    case Under::change:
      if (event.stood.count() > 0) estimator_.add_move(to_seconds(event.stood));
      for (const Slot d : t.devices)
        for (User& user : devices_[d].users)
          if (user.trial == *slot) user.sharers = sharers_of(t.width);
      break;
    case Under::hold:
      for (const Slot d : t.devices) leave(d, *slot);
      break;
    case Under::release:
      vacate_all(*slot);
      if (t.state != State::paused) wait_again(*slot);
      break;
  }
  if (t.broken) {
    t.broken = false;
    if (t.devices.empty())
      wait_again(*slot);
    else if (t.state == State::running)
      release(*slot);
  }
  settled(*slot);
}

void TuneCore::take(const TrialEnded& event) {
  if (const auto slot = find(event.trial)) forget(*slot);
}

void TuneCore::take(const TrialPaused& event) {
  const auto slot = find(event.trial);
  if (!slot || trials_[*slot].state == State::paused) return;
  Trial& t = trials_[*slot];
  // Of an order under way nobody knows how far it got: memory may lie at both ends.
  for (const Slot d : std::exchange(t.leaving, {}))
    if (!is_in(t.devices, d)) t.devices.push_back(d);
  std::ranges::sort(t.devices);
  const bool company = has_company(*slot);
  for (const Slot d : t.devices) leave(d, *slot);
  if (t.under != Under::release) t.under = Under::none;
  set_state(*slot, State::paused);
  t.broken = false;
  t.width = 0;
  left(*slot, company);
}

void TuneCore::take(const TrialDied& event) {
  const auto slot = find(event.trial);
  if (!slot) return;
  if (!event.retry) return forget(*slot);
  Trial& t = trials_[*slot];
  if (is_positive(event.lost, most_iterations)) {
    const double lost = std::min(event.lost, t.done);
    t.done -= lost;
    if (t.remaining) *t.remaining += lost;
  }
  vacate_all(*slot);
  t.under = Under::none;
  t.broken = false;
  t.credit = 0;
  if (t.state != State::paused) wait_again(*slot);
}

void TuneCore::take(const DeviceCame& event) {
  if (find(event.device)) return refuse(TrialId{}, TuneReason::duplicate);
  if (!is_right(event.speed, event.supply, event.memory)) return refuse(TrialId{}, TuneReason::bad_device);
  if (devices_here_ >= most_devices) return refuse(TrialId{}, TuneReason::too_many);
  auto place = std::ranges::find_if(devices_, [](const Device& d) { return !d.here; });
  if (place == devices_.end()) place = devices_.emplace(devices_.end());
  *place = {};
  place->here = true;
  place->id = event.device;
  place->speed = event.speed;
  place->supply = event.supply;
  place->lanes = device::Lanes(event.memory);
  device_by_id_.emplace(event.device.value, static_cast<Slot>(place - devices_.begin()));
  ++devices_here_;
  count_usable();
  devices_changed();
}

void TuneCore::take(const DeviceChanged& event) {
  const auto slot = find(event.device);
  if (!slot) return;
  if (!is_right(event.speed, event.supply, event.memory)) return refuse(TrialId{}, TuneReason::bad_device);
  Device& d = devices_[*slot];
  accrue(*slot);
  d.speed = event.speed;
  d.supply = event.supply;
  d.lanes.set_capacity(event.memory);
  company_changed(*slot);
  relieve(*slot);
  count_usable();
  devices_changed();
}

void TuneCore::take(const DeviceWent& event) {
  const auto found = find(event.device);
  if (!found) return;
  const Slot slot = *found;
  std::vector<Slot> there;
  for (Slot t = 0; t < trials_.size(); ++t)
    if (trials_[t].here && (is_in(trials_[t].devices, slot) || is_in(trials_[t].leaving, slot)))
      there.push_back(t);
  for (const Slot trial : there) {
    Trial& t = trials_[trial];
    vacate(slot, trial);
    const bool lost = std::erase(t.devices, slot) > 0;
    std::erase(t.leaving, slot);
    if (!lost || t.state == State::paused || t.state == State::waiting) continue;
    if (t.devices.empty() && t.leaving.empty()) {
      t.under = Under::none;
      wait_again(trial);
    } else if (t.under != Under::none) {
      t.broken = true;
    } else if (t.state == State::running) {
      release(trial);
    }
  }
  device_by_id_.erase(devices_[slot].id.value);
  devices_[slot].here = false;
  devices_[slot].users.clear();
  --devices_here_;
  count_usable();
  devices_changed();
}

// --- The book

std::optional<TuneCore::Slot> TuneCore::find(TrialId id) const {
  const auto found = by_id_.find(id.value);
  return found == by_id_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<TuneCore::Slot> TuneCore::find(DeviceId id) const {
  const auto found = device_by_id_.find(id.value);
  return found == device_by_id_.end() ? std::nullopt : std::optional(found->second);
}

void TuneCore::refuse(TrialId id, TuneReason reason) {
  out_->push_back({.kind = TuneOrder::Kind::refuse, .trial = id, .reason = reason});
}

void TuneCore::order(Slot slot, TuneOrder::Kind kind) {
  TuneOrder order{.kind = kind, .trial = trials_[slot].id};
  if (kind == TuneOrder::Kind::place || kind == TuneOrder::Kind::resize || kind == TuneOrder::Kind::move) {
    for (const Slot d : trials_[slot].devices) order.devices.push_back(devices_[d].id);
    std::ranges::sort(order.devices);
    order.width = trials_[slot].width;
  }
  out_->push_back(std::move(order));
}

void TuneCore::company_changed(Slot device) {
  for (const User& user : devices_[device].users) trials_[user.trial].mixed = true;
}

void TuneCore::leave(Slot device, Slot trial) {
  Device& d = devices_[device];
  accrue(device);
  if (std::erase_if(d.users, [&](const User& u) { return u.trial == trial; }) == 0) return;
  company_changed(device);
  // What only a running trial needs, others may have.
  if (d.lanes.has(job_of(trial))) {
    const device::LaneId lane = d.lanes.lane_of(job_of(trial));
    CARILLON_ASSERT(d.lanes.update(job_of(trial), {trials_[trial].memory.persistent, Bytes{}}));
    d.lanes.fit(lane);
  }
}

void TuneCore::vacate(Slot device, Slot trial) {
  Device& d = devices_[device];
  leave(device, trial);
  if (d.lanes.has(job_of(trial))) {
    d.lanes.remove(job_of(trial));
    --d.residents;
  }
}

void TuneCore::vacate_all(Slot trial) {
  for (const Slot d : std::exchange(trials_[trial].devices, {})) vacate(d, trial);
  for (const Slot d : std::exchange(trials_[trial].leaving, {})) vacate(d, trial);
}

void TuneCore::wait_again(Slot slot) {
  set_state(slot, State::waiting);
  trials_[slot].width = 0;
  trials_[slot].broken = false;
  waits_again(slot);
}

void TuneCore::set_state(Slot slot, State state) {
  Trial& t = trials_[slot];
  const bool ran = t.state == State::running, runs = state == State::running;
  t.state = state;
  if (runs && !ran) {
    t.place = static_cast<std::uint32_t>(running_.size());
    running_.push_back(slot);
  } else if (ran && !runs) {
    running_[t.place] = running_.back();
    trials_[running_[t.place]].place = t.place;
    running_.pop_back();
  }
}

bool TuneCore::has_company(Slot slot) const {
  return std::ranges::any_of(trials_[slot].devices, [&](Slot d) { return devices_[d].users.size() > 1; });
}

void TuneCore::forget(Slot slot) {
  const bool company = has_company(slot);
  vacate_all(slot);
  set_state(slot, State::waiting);
  trials_[slot].under = Under::none;
  left(slot, company);
  by_id_.erase(trials_[slot].id.value);
  trials_[slot].here = false;
  estimator_.forget(slot);
  free_trials_.push_back(slot);
  --here_;
}

// Memory fell below what is there: those that stand still go first, then the last to come.
void TuneCore::relieve(Slot device) {
  Device& d = devices_[device];
  std::uint64_t over = d.lanes.over().count;
  if (over == 0) return;
  std::vector<Slot> there;
  for (Slot t = 0; t < trials_.size(); ++t)
    if (trials_[t].here && d.lanes.has(job_of(t))) there.push_back(t);
  std::ranges::sort(there, [&](Slot a, Slot b) {
    const bool runs_a = trials_[a].state == State::running, runs_b = trials_[b].state == State::running;
    return runs_a != runs_b ? runs_b : trials_[a].came > trials_[b].came;
  });
  for (const Slot t : there) {
    if (over == 0) break;
    const device::JobMemory has = d.lanes.memory_of(job_of(t));
    over -= std::min(over, (has.persistent + has.ephemeral).count);
    if (trials_[t].under == Under::none)
      release(t);
    else if (trials_[t].under != Under::release)
      trials_[t].broken = true;
  }
}

void TuneCore::count_usable() {
  usable_ = static_cast<std::size_t>(
      std::ranges::count_if(devices_, [](const Device& d) { return d.here && d.rate() > 0; }));
}

// --- What a policy asks

bool TuneCore::has_room(Slot device, Slot trial, int sharers) const {
  int others = 0, least = std::numeric_limits<int>::max();
  for (const User& user : devices_[device].users) {
    if (user.trial == trial) continue;
    ++others;
    least = std::min(least, user.sharers);
  }
  return others == 0 || (others < sharers && others < least);
}

bool TuneCore::is_resident(Slot device, Slot trial) const {
  return devices_[device].lanes.has(job_of(trial));
}

bool TuneCore::has_memory(Slot device, Slot trial) const {
  const device::Lanes& lanes = devices_[device].lanes;
  const device::JobMemory need = trials_[trial].memory;
  if (!lanes.has(job_of(trial))) return lanes.find_apart(need).has_value();
  const device::JobMemory has = lanes.memory_of(job_of(trial));
  return has == need || need.ephemeral <= lanes.room_of(job_of(trial)).ephemeral;
}

std::size_t TuneCore::could_hold(Slot trial) const {
  const device::JobMemory& need = trials_[trial].memory;
  return static_cast<std::size_t>(std::ranges::count_if(devices_, [&](const Device& d) {
    return d.here && d.rate() > 0 && need.persistent + need.ephemeral <= d.lanes.capacity();
  }));
}

double TuneCore::iteration(Slot slot) const {
  if (trials_[slot].told_s) return *trials_[slot].told_s;
  const Measured measured = estimator_.iteration(slot);
  return measured.known ? measured.value : 1;  // nothing is known of any: all are alike
}

double TuneCore::work(Slot slot) const {
  const Trial& t = trials_[slot];
  const double all = t.remaining.value_or(std::max(1.0, t.done)) * iteration(slot);
  return std::max(0.0, all - credit(slot));
}

double TuneCore::pace(Slot slot) const {
  const Trial& t = trials_[slot];
  if (t.state != State::running || t.under != Under::none || t.devices.empty()) return 0;
  double slowest = std::numeric_limits<double>::max();
  for (const Slot d : t.devices) slowest = std::min(slowest, devices_[d].rate());
  return slowest / height_of(t.devices.size(), devices_[t.devices.front()].users.size());
}

double TuneCore::height_of(std::size_t devices, std::size_t sharers) const {
  const auto power = [](Powers& powers, double of, std::size_t n) {
    if (powers.of != of) {
      powers.of = of;
      powers.by.assign(1, 1.0);
    }
    while (powers.by.size() <= n) powers.by.push_back(powers.by.back() * of);
    return powers.by[n];
  };
  if (devices > 1) return power(scaled_, scaling(), devices - 1) / static_cast<double>(devices);
  return power(packed_, packing(), std::max<std::size_t>(1, sharers) - 1);
}

double TuneCore::credit(Slot slot) const {
  return trials_[slot].credit + pace(slot) * to_seconds(now_at_ - trials_[slot].since);
}

void TuneCore::accrue(Slot device) {
  for (const User& user : devices_[device].users) {
    trials_[user.trial].credit = credit(user.trial);
    trials_[user.trial].since = now_at_;
  }
}

double TuneCore::packing() const {
  return options_.alpha ? *options_.alpha : estimator_.alpha().value;
}
double TuneCore::scaling() const {
  return options_.beta ? *options_.beta : estimator_.beta().value;
}
double TuneCore::move_cost() const {
  return options_.move ? to_seconds(*options_.move) : estimator_.move().value;
}

TuneModel TuneCore::model() const {
  TuneModel m;
  m.alpha = options_.alpha ? Measured{*options_.alpha, 0, 0, true} : estimator_.alpha();
  m.beta = options_.beta ? Measured{*options_.beta, 0, 0, true} : estimator_.beta();
  m.move = options_.move ? Measured{to_seconds(*options_.move), 0, 0, true} : estimator_.move();
  const int packed = options_.c.value_or(options_.most_packed);
  const int spread = std::min(options_.d.value_or(static_cast<int>(most_devices)),
                              static_cast<int>(std::max<std::size_t>(1, devices_here_)));
  // One step beyond what is known: c = 2 and d = 2 are tried where nothing is. An error as large as the last
  // step's gain makes that step doubtful.
  m.c = m.alpha.known ? packing_limit(m.alpha.value + m.alpha.error, options_.threshold, packed)
                      : std::min(packed, 2);
  m.d = m.beta.known ? scaling_limit(m.beta.value + m.beta.error, spread) : std::min(spread, 2);
  return m;
}

std::size_t TuneCore::appetite() const {
  return usable_ * static_cast<std::size_t>(model().c);
}

std::vector<TrialView> TuneCore::trials() const {
  std::vector<TrialView> views;
  for (Slot slot = 0; slot < trials_.size(); ++slot) {
    const Trial& t = trials_[slot];
    if (!t.here) continue;
    TrialView view{.trial = t.id, .group = t.group};
    view.state = static_cast<TrialView::State>(t.state);
    view.settling = t.under != Under::none;
    for (const Slot d : t.devices) view.devices.push_back(devices_[d].id);
    std::ranges::sort(view.devices);
    view.width = t.width;
    view.iterations = t.done;
    view.remaining = t.remaining;
    const Measured measured = t.told_s ? Measured{*t.told_s, 0, 0, true} : estimator_.iteration(slot);
    if (measured.known) {
      view.iteration_s = measured;
      if (t.remaining) view.left_alone = from_seconds(std::min(9e9, *t.remaining * measured.value));
    }
    views.push_back(std::move(view));
  }
  std::ranges::sort(views, {}, &TrialView::trial);
  return views;
}

// --- What a policy orders

void TuneCore::place(Slot slot, std::vector<Slot> on, double width) {
  Trial& t = trials_[slot];
  CARILLON_ASSERT(t.here && t.under == Under::none && t.state != State::paused && !on.empty());
  std::ranges::sort(on);
  const int sharers = sharers_of(width);
  const bool running = t.state == State::running;
  if (running && on == t.devices && width == t.width) return;
  bool keeps_all = true, has_all = true;
  for (const Slot d : t.devices) accrue(d);
  for (const Slot d : on) accrue(d);
  t.since = now_at_;
  for (const Slot d : t.devices)
    if (!is_in(on, d)) {
      keeps_all = false;
      t.leaving.push_back(d);
    }
  for (const Slot d : on) {
    has_all = has_all && is_in(t.devices, d);
    Device& device = devices_[d];
    CARILLON_ASSERT(has_room(d, slot, sharers));
    const auto user = std::ranges::find(device.users, slot, &User::trial);
    if (user == device.users.end()) {
      device.users.push_back({slot, sharers});
    } else {
      // Until the trial settles it holds both places. The more crowded one counts.
      user->sharers = std::min(user->sharers, sharers);
    }
    company_changed(d);
    if (device.lanes.has(job_of(slot))) {
      CARILLON_ASSERT(device.lanes.update(job_of(slot), t.memory));
    } else {
      const auto lane = device.lanes.find_apart(t.memory);
      CARILLON_ASSERT(lane.has_value());
      device.lanes.admit(job_of(slot), t.memory, *lane);
      ++device.residents;
    }
  }
  t.devices = std::move(on);
  t.width = width;
  set_state(slot, State::running);
  t.under = Under::change;
  t.mixed = true;
  order(slot, !running               ? TuneOrder::Kind::place
              : keeps_all || has_all ? TuneOrder::Kind::resize
                                     : TuneOrder::Kind::move);
}

void TuneCore::hold(Slot slot) {
  Trial& t = trials_[slot];
  CARILLON_ASSERT(t.here && t.under == Under::none && t.state == State::running);
  set_state(slot, State::held);
  t.under = Under::hold;
  t.width = 0;
  order(slot, TuneOrder::Kind::hold);
}

void TuneCore::release(Slot slot) {
  Trial& t = trials_[slot];
  CARILLON_ASSERT(t.here && t.under == Under::none);
  if (t.state == State::running) set_state(slot, State::held);
  t.under = Under::release;
  t.width = 0;
  order(slot, TuneOrder::Kind::release);
}

bool TuneCore::make_room(Slot device, const device::JobMemory& need, Slot keep) {
  Device& d = devices_[device];
  const std::uint64_t capacity = d.lanes.capacity().count;
  std::uint64_t used = (d.lanes.persistent() + d.lanes.ephemeral()).count;
  const std::uint64_t wanted = (need.persistent + need.ephemeral).count;
  if (d.lanes.has(job_of(keep))) {
    const device::JobMemory has = d.lanes.memory_of(job_of(keep));
    used -= std::min(used, (has.persistent + has.ephemeral).count);
  }
  if (wanted > capacity) return false;
  std::vector<Slot> still;
  for (Slot t = 0; t < trials_.size(); ++t) {
    const Trial& other = trials_[t];
    if (!other.here || t == keep || !d.lanes.has(job_of(t))) continue;
    const bool stands = other.state == State::paused || other.state == State::held;
    if (other.under == Under::release || std::ranges::find(other.leaving, device) != other.leaving.end())
      used -= std::min(
          used, (d.lanes.memory_of(job_of(t)).persistent + d.lanes.memory_of(job_of(t)).ephemeral).count);
    else if (stands && other.under == Under::none)
      still.push_back(t);
  }
  // Paused trials go first, then those that came last.
  std::ranges::sort(still, [&](Slot a, Slot b) {
    const bool paused_a = trials_[a].state == State::paused, paused_b = trials_[b].state == State::paused;
    return paused_a != paused_b ? paused_a : trials_[a].came > trials_[b].came;
  });
  std::size_t enough = 0;
  std::uint64_t after = used;
  while (after + wanted > capacity && enough < still.size())
    after -= std::min(after, d.lanes.memory_of(job_of(still[enough++])).persistent.count);
  if (after + wanted > capacity) return false;
  for (std::size_t i = 0; i < enough; ++i) release(still[i]);
  return true;
}

void TuneCore::wake_at(TimePoint at) {
  out_->push_back({.kind = TuneOrder::Kind::wake_at, .at = at});
}

}  // namespace carillon::tune
