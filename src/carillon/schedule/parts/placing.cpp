#include "carillon/schedule/parts/placing.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "carillon/schedule/parts/memory.h"

namespace carillon::schedule::parts {
namespace {

using ledger::Lane;
using ledger::Ledger;
using ledger::Residence;

// What a model is asked for in so many seconds counts beside requests that a LOAD of it serves at once.
constexpr double horizon = 0.15;
// A request that is served at once counts as much as what makes room for it would serve in so many times the
// LOAD's time: so long it is missed if it is loaded again.
constexpr double missed_for = 5;
// What its requests have the time to wait for costs the more, the busier LOADs are, but this much of its
// worth at least.
constexpr double least_price = 0.02;
// Over so many seconds a device's LOADs count: some tens of them.
constexpr double bus_window = 0.5;
// What goes must be worth so many times less than what comes: rates are estimates.
constexpr double margin = 1.2;
// So many times the time that its LOAD took a copy stays, unless requests wait for what takes its place.
constexpr int had_its_time = 3;
// Another copy of a model serves so many times the requests that Placement sees: it relieves bursts, too.
constexpr double relieves = 2;
// Devices that are looked at for a model, and models at an event: both bound the work.
constexpr std::size_t devices_tried = 8, models_tried = 4;
// For what waits for busy devices: devices, and models at each, for so many of which room is looked for.
constexpr std::size_t relieving_tried = 4, relieved_tried = 16, rooms_tried = 4;
// Of more copies on a device than that some are looked at, others the next time; and a search for what to
// load ends after about so many copies. Devices with little to do that are looked at for one that is open.
constexpr std::size_t copies_tried = 64, looks_at_most = 512, devices_seen = 64;
// So few open devices are looked at first.
constexpr std::size_t few_open = 8;
// At an event: models that are tried for free memory, and models that are looked at because devices changed.
constexpr std::size_t fills_tried = 256, models_renewed = 64;
// Likewise models that found no room before something ended: those that have waited for longest.
constexpr std::size_t models_unblocked = 8;
// For so long a model's rate counts as known, unless requests come.
constexpr Duration rate_renewed = 1ms;
// What was used within so many times the time that a LOAD of it takes does not go for what waits elsewhere.
constexpr int loads_unused = 10;
// For so long what a device's models can wait counts as known.
constexpr Duration patience_renewed = 100ms;
// LOADs that a device has to do at a time. What becomes urgent waits for no second one.
constexpr std::size_t loads_ahead = 1;
// A request that can wait longer than that counts as if it could not.
constexpr Duration longest_slack = 10s;
// Over about so many requests the time that they can wait is averaged: SLOs may differ.
constexpr int slacks_averaged = 16;
// After that a request's model is loaded whatever it is worth, but so many times the LOAD's time apart.
constexpr Duration patience = 500ms;
constexpr int pressed_apart = 10;
// More than that a LOAD does not serve at once: bounds the work.
constexpr std::size_t most_rescued = 32;

DeviceId device_at(std::size_t place) {
  return DeviceId{static_cast<std::uint32_t>(place)};
}
std::size_t loads(const Ledger& ledger, DeviceId device) {
  std::size_t found = 0;
  for (const std::uint32_t place : ledger.device(device).under_way[static_cast<std::size_t>(Lane::load)])
    found += ledger.at(place).kind == ActionKind::load ? 1 : 0;
  return found;
}
TimePoint loads_end(const Ledger& ledger, DeviceId device, TimePoint now) {
  TimePoint end = now;
  for (const std::uint32_t place : ledger.device(device).under_way[static_cast<std::size_t>(Lane::load)]) {
    const auto& action = ledger.at(place);
    end = saturating_add(std::max(end, action.sent), action.expected);
  }
  return end;
}
bool nowhere(const Ledger::Model& model) {
  return model.places.empty() && model.coming == 0;
}
bool takes_pages(const Ledger::Model& model) {
  return model.served && model.info->pages > 0;
}

}  // namespace

double Placing::Device::bus_at(TimePoint now) const {
  return bus * std::exp(-to_seconds(now - bus_seen) / bus_window);
}

Placing::Model& Placing::model_of(ModelId id) {
  if (id.index() >= models_.size()) models_.resize(id.index() + 1);
  return models_[id.index()];
}

Placing::Device& Placing::device_of(DeviceId id) {
  while (id.index() >= devices_.size()) {
    devices_.emplace_back();
    work_.add_device();
    pressing_.add_device();
  }
  return devices_[id.index()];
}

void Placing::hear(const Event& event, Life& life, Orders& out) {
  const Ledger& ledger = out.ledger();
  const Waiting& waiting = life.waiting();
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    const ModelId id = arrival->request.model;
    const bool pages = takes_pages(ledger.model(id));
    if (pages) asked(arrival->request, out);
    if (pages || ledger.alive() == 0) give_up(id, life, out);
    if (pages) list(id, waiting, out);
    if (ledger.changes().back.empty()) return;
  } else if (const auto* change = std::get_if<ModelChanged>(&event)) {
    know(change->model, out);
    find_scarce();
    Model& m = models_[change->model.index()];
    m.hopeless = TimePoint::min();
    failed_.erase(failed_.lower_bound({change->model, DeviceId{0}}),
                  failed_.lower_bound({ModelId{change->model.value + 1}, DeviceId{0}}));
    if (m.room) going_on_.push_back(*m.room);
    unfilled_.fill(devices_.size());
    for (Device& each : devices_) each.fill_from.reset();
    const Bits there = m.there;
    there.visit(nullptr, [&](std::size_t i) {
      sync(device_at(i), change->model, out);
      unload_if_left(device_at(i), change->model, out);
      return false;
    });
    give_up(change->model, life, out);
    list(change->model, waiting, out);
  } else if (const auto* device = std::get_if<DeviceChanged>(&event)) {
    Device& d = device_of(device->device);
    if (!failed_.empty())
      std::erase_if(failed_, [&](const auto& each) { return each.first.second == device->device; });
    if (d.coming) model_of(*std::exchange(d.coming, std::nullopt)).room.reset();
    if (d.pages > 0) sizes_.erase(sizes_.find(d.pages));
    d.pages = ledger.device(device->device).alive ? ledger.device(device->device).pages : 0;
    if (d.pages > 0) sizes_.insert(d.pages);
    ++devices_changed_;
    unfilled_.fill(devices_.size());
    for (Device& each : devices_) each.fill_from.reset();
    find_open(device->device, out);
    pressing_.set_alive(ledger.alive());
    find_scarce();
    for (const auto& [model, copy] : ledger.device(device->device).copies) {
      sync(device->device, model, out);
      list(model, waiting, out);
    }
    renew_ = ledger.models();
    renew(life, out);
  }
  for (const RequestId id : ledger.changes().back)
    if (const auto* const request = ledger.request(id)) {
      give_up(request->told.model, life, out);
      list(request->told.model, waiting, out);
    }
  const auto* const done = std::get_if<ActionDone>(&event);
  for (const std::uint32_t place : ledger.changes().ended) ended(ledger.at(place), done, life, out);
  // Whatever ended or came, something may be free.
  if (!ledger.changes().ended.empty() || std::holds_alternative<DeviceChanged>(event))
    for (std::size_t i = std::min(blocked_.size(), models_unblocked); i > 0; --i) {
      const ModelId id = blocked_.front();
      blocked_.pop_front();
      models_[id.index()].blocked = false;
      ++looked_at_;
      if (waiting.size(id) > 0) list(id, waiting, out);
    }
}

// Models that may have no device any more, or have one again.
void Placing::renew(Life& life, Orders& out) {
  const std::size_t models = out.ledger().models();
  for (std::size_t i = std::min(renew_, models_renewed); i > 0; --i, --renew_) {
    if (renew_from_ >= models) renew_from_ = 0;
    const ModelId model{static_cast<std::uint32_t>(renew_from_++)};
    give_up(model, life, out);
    list(model, life.waiting(), out);
    ++looked_at_;
  }
}

void Placing::asked(const Request& request, const Orders& out) {
  Model& m = model_of(request.model);
  rates_.arrived(request.model, out.time());
  m.rate_at = TimePoint::min();
  m.slack += (std::min<Duration>(request.deadline - out.time(), longest_slack) - m.slack) / slacks_averaged;
  if (!work_.arrived(request.model, out.time())) return;
  list_spread(request.model, out);
  if (!nowhere(out.ledger().model(request.model))) scarce_.push_back(request.model);
}

void Placing::ended(const Ledger::Action& action, const ActionDone* done, Life& life, Orders& out) {
  // An order may move the ledger's actions.
  const ModelId model = action.model;
  const DeviceId device = action.device;
  const auto where = std::pair(model, device);
  const bool success = done != nullptr && done->status == ActionStatus::success;
  if (action.kind == ActionKind::infer) models_[model.index()].pressed = false;
  if (action.kind == ActionKind::infer && success && action.uses_copy && !action.requests.empty())
    work_.served(model, action.requests.size(), done->duration, out.time());
  if (action.kind == ActionKind::load && out.ledger().copy(device, model)->failures == 0) {
    failed_.erase(where);
  } else if (action.kind == ActionKind::load) {
    Failed& failed = failed_[where];
    failed.retry = out.time() + first_retry * (1 << std::min(failed.times, 7U));
    if (!retry_.contains(model.value) || failed.retry < retry_.at(model.value))
      retry_.set(model.value, failed.retry);
    ++failed.times;
    give_up(model, life, out);
  }
  Device& d = device_of(device);
  if (action.kind == ActionKind::infer && !takes_pages(out.ledger().model(model)) && !action.uses_copy)
    return;
  if (action.kind != ActionKind::infer || !success) {
    unfilled_.set(device.index());
    d.fill_from.reset();
    models_[model.index()].hopeless = TimePoint::min();
  }
  if (d.coming) going_on_.push_back(device);
  stirred_ = stirred_ || action.kind != ActionKind::infer;
  if (action.kind == ActionKind::load && done != nullptr) {
    d.bus = d.bus_at(out.time()) + to_seconds(done->duration) / bus_window;
    d.bus_seen = out.time();
  }
  find_open(device, out);
  sync(device, model, out);
  unload_if_left(device, model, out);
  if (life.waiting().size(model) > 0) list(model, life.waiting(), out);
}

// Where nobody should wait for the model any more: refuses all who do.
void Placing::give_up(ModelId id, Life& life, Orders& out) {
  const Ledger& ledger = out.ledger();
  const auto& model = ledger.model(id);
  if (model.info != nullptr && model.info->pages == 0 && ledger.alive() > 0) return;
  if (life.waiting().size(id) == 0 || !nowhere(model)) return;
  Model& m = model_of(id);
  const auto possible = [&](DeviceId device) {
    if (!holds_ever(ledger, device, *model.info)) return false;
    const auto failed = failed_.find({id, device});
    return failed == failed_.end() || failed->second.times < most_failed_loads ||
           failed->second.retry <= out.time();
  };
  const bool held = !sizes_.empty() && model.info->pages <= *sizes_.rbegin();
  if (held && m.host.index() < ledger.devices() && possible(m.host)) return;
  const bool known = m.hopeless > out.time() && m.hopeless_of == devices_changed_;
  if (held && !known) {
    m.hopeless = TimePoint::max();
    m.hopeless_of = devices_changed_;
    for (std::size_t i = 0; i < ledger.devices(); ++i) {
      ++looked_at_;
      if (possible(m.host = device_at(i))) {
        m.hopeless = TimePoint::min();
        return;
      }
      if (const auto failed = failed_.find({id, device_at(i)}); failed != failed_.end())
        m.hopeless = std::min(m.hopeless, failed->second.retry);
    }
  }
  life.refuse_all(id, held ? Reason::device_failed : Reason::no_device, out);
}

void Placing::know(ModelId id, const Orders& out) {
  const auto& model = out.ledger().model(id);
  if (id.index() < models_.size()) {
    if (model.info) work_.renew_model(id, model.info->batches.front().exec);
  } else {
    model_of(id);
    work_.add_model(model.info ? model.info->batches.front().exec : Duration{1});
    pressing_.add_model();
  }
  const std::uint64_t pages = model.served ? model.info->pages : 0;
  all_pages_ += pages - std::exchange(models_[id.index()].pages, pages);
  list_spread(id, out);
}

void Placing::find_scarce() {
  short_ = !sizes_.empty() && *sizes_.begin() < all_pages_;
}

void Placing::list_spread(ModelId id, const Orders& out) {
  Model& m = model_of(id);
  const auto& model = out.ledger().model(id);
  std::optional<Spread> spread;
  if (takes_pages(model)) spread = {model.places.size() + model.coming, -rates_.rate(id, out.time()), id};
  if (m.spread == spread) return;
  auto entry = m.spread ? by_copies_.extract(*m.spread) : decltype(by_copies_)::node_type{};
  m.spread = spread;
  if (!spread) return;
  if (entry.empty()) {
    by_copies_.insert(*spread);
    return;
  }
  entry.value() = *spread;
  by_copies_.insert(std::move(entry));
}

// A waiting request demands the share of a device that its run takes of the time it has left.
void Placing::waits(ModelId model, const Waiting& waiting, const Orders& out) {
  if (!takes_pages(out.ledger().model(model))) return;
  const Duration alone = Times(out.ledger(), Class::normal).alone(model);
  const Duration has = std::max(alone, models_[model.index()].slack - alone);
  const double rows = short_ ? static_cast<double>(waiting.size(model)) : 0;
  const Duration demand = from_seconds(rows * to_seconds(alone) / to_seconds(has) * to_seconds(device_time));
  if (demand != pressing_.demand(model)) pressing_.add_demand(model, demand - pressing_.demand(model));
  stirred_ = stirred_ || pressing_.priority(model) > 0;
}

// What the ledger says of a copy.
void Placing::sync(DeviceId device, ModelId model, const Orders& out) {
  const Residence residence = out.ledger().residence(device, model);
  const bool there = residence == Residence::loaded || residence == Residence::loading;
  const auto& known = out.ledger().device(device);
  const std::uint32_t place =
      model.index() < known.copy_of.size() ? known.copy_of[model.index()] : Ledger::none;
  if (place == Ledger::none) return;  // it never was there
  Model& m = model_of(model);
  residence == Residence::loaded ? m.loaded.set(device.index()) : m.loaded.clear(device.index());
  Device& d = device_of(device);
  if (place >= d.held_at.size()) d.held_at.resize(known.copies.size(), Ledger::none);
  const std::uint32_t at = d.held_at[place];
  if (at != Ledger::none && d.copies[at].since == TimePoint::max() && residence == Residence::loaded)
    d.copies[at].since = out.time();
  if ((at != Ledger::none) == there) return;
  if (there) {
    m.there.set(device.index());
    d.held_at[place] = static_cast<std::uint32_t>(d.copies.size());
    d.copies.push_back({model, residence == Residence::loaded ? out.time() : TimePoint::max(), place});
    work_.placed(model, device, out.time());
    pressing_.placed(model, device);
  } else {
    m.there.clear(device.index());
    d.held_at[d.copies.back().place] = at;
    d.copies[at] = d.copies.back();
    d.copies.pop_back();
    d.held_at[place] = Ledger::none;
    work_.removed(model, device, out.time());
    pressing_.removed(model, device);
  }
  list_spread(model, out);
}

void Placing::unlist(ModelId model) {
  Model& m = model_of(model);
  if (m.listed) wanted_.erase({*m.listed, model});
  m.listed.reset();
}

// What is nowhere, and asked for.
void Placing::list(ModelId model, const Waiting& waiting, const Orders& out) {
  const auto& known = out.ledger().model(model);
  const bool lacks = takes_pages(known) && nowhere(known);
  be_patient(model, lacks && waiting.size(model) > 0, out.time());
  Model& m = model_of(model);
  const double key = lacks && !m.room && !m.blocked ? -score(model, waiting, out) : 0;
  const auto listed = key != 0 ? std::optional(key) : std::nullopt;
  if (listed == m.listed) return;
  unlist(model);
  m.listed = listed;
  if (listed) wanted_.insert({key, model});
}

// Of the most urgent and the least urgent by class, when the first one came.
TimePoint Placing::waits_since(ModelId model, const Waiting& waiting, const Orders& out) const {
  TimePoint since = out.time();
  waiting.visit(model, [&](const Waiting::Line& line) {
    for (const RequestId id : {line.begin()->second, line.back().second})
      since = std::min(since, out.ledger().request(id)->told.arrival);
  });
  return since;
}

void Placing::be_patient(ModelId model, bool waits, TimePoint now) {
  TimePoint& since = model_of(model).since;
  if ((since != TimePoint::max()) == waits) return;
  if (waits)
    patient_.emplace(now, model);
  else
    patient_.erase({since, model});
  since = waits ? now : TimePoint::max();
}

// How many that wait are in time where the LOAD ends then. O(those).
std::size_t Placing::rescued(ModelId model, TimePoint loaded, const Waiting& waiting,
                             const Orders& out) const {
  std::size_t found = 0;
  const TimePoint least = saturating_add(loaded, Times(out.ledger(), Class::normal).alone(model));
  waiting.visit(model, [&](const Waiting::Line& line) {
    for (auto each = line.lower_bound({least, RequestId{0}}); each != line.end() && found < most_rescued;
         ++each)
      ++found;
  });
  return found;
}

// Requests that a LOAD serves, now and soon, by the second that it takes.
double Placing::score(ModelId model, const Waiting& waiting, const Orders& out) const {
  const Duration load = out.ledger().model(model).info->load;
  const std::size_t now = rescued(model, saturating_add(out.time(), load), waiting, out);
  return (static_cast<double>(now) + horizon * rates_.rate(model, out.time())) /
         std::max(1e-6, to_seconds(load));
}

bool Placing::open(const Ledger& ledger, DeviceId device) const {
  return ledger.device(device).alive && device.index() < devices_.size() &&
         !devices_[device.index()].coming && loads(ledger, device) < loads_ahead;
}

// Whether the device is to be told of another LOAD: whatever decides that has changed.
void Placing::find_open(DeviceId device, const Orders& out) {
  if (open(out.ledger(), device))
    open_.insert(device);
  else
    open_.erase(device);
}

bool Placing::may_load(const Ledger& ledger, DeviceId device, ModelId model, TimePoint now) {
  if (!holds_ever(ledger, device, *ledger.model(model).info) ||
      ledger.residence(device, model) != Residence::absent)
    return false;
  if (failed_.empty()) return true;
  const auto failed = failed_.find({model, device});
  return failed == failed_.end() || failed->second.retry <= now;
}

// Of the copy's end, in requests a second.
double Placing::cost(DeviceId device, ModelId model, TimePoint now) {
  if (work_.places(model) > 1) return work_.cost_of_removal(model, device, now);
  return rate(model, now);
}

double Placing::rate(ModelId model, TimePoint now) {
  Model& m = models_[model.index()];
  if (m.rate_at == TimePoint::min() || now - m.rate_at >= rate_renewed) {
    m.rate = rates_.rate(model, now);
    m.rate_at = now;
  }
  return m.rate;
}

// A request that finds the model nowhere can wait for a LOAD of it.
bool Placing::easy_to_load(ModelId model, const Orders& out) const {
  return out.ledger().model(model).info->load + Times(out.ledger(), Class::normal).alone(model) <
         models_[model.index()].slack;
}

// A request that is served now counts as much as so many seconds of what makes room for it.
double Placing::counts_for(ModelId model, const Orders& out) {
  return std::max(1e-6, missed_for * to_seconds(out.ledger().model(model).info->load));
}

// Calls see(copy) for each copy on the device, or for some where they are many: others the next time. It may
// return true: these are enough, where there are many.
template <typename See>
void Placing::some_copies(Device& d, See&& see) {
  const std::size_t all = d.copies.size(), some = std::min(all, copies_tried);
  if (d.next >= all || some == all) d.next = 0;
  for (std::size_t i = 0; i < some; ++i) {
    ++looked_at_;
    if (see(d.copies[d.next]) && all > some) return;
    if (++d.next >= all) d.next = 0;
  }
}

// What has to go for the model: of least worth by page, and of less worth than the model all together.
std::optional<Placing::Room> Placing::room(DeviceId device, ModelId model, double worth, Need need,
                                           const Waiting& waiting, const Orders& out) {
  const Ledger& ledger = out.ledger();
  const TimePoint now = out.time();
  const std::uint64_t needs = ledger.model(model).info->pages;
  Room found;
  std::uint64_t freed = free_pages(ledger, device) + ledger.device(device).freeing;
  if (freed >= needs) return found;
  struct Victim {
    double by_page;
    double cost;
    std::uint64_t pages;
    ModelId model;
  };
  std::vector<Victim> victims;
  const double request_for = counts_for(model, out);
  const double price = std::clamp(devices_[device.index()].bus_at(now), least_price, 1.0);
  std::uint64_t later = freed;
  std::uint64_t worthless = freed;  // pages
  some_copies(devices_[device.index()], [&](const Held& held) {
    const auto [each, since, place] = held;
    const Ledger::Copy& copy = ledger.device(device).copies[place].second;
    const Duration load = ledger.model(each).info->load;
    const bool stays = copy.residence != Residence::loaded || copy.using_it() > 0 ||
                       (need == Need::relieves && saturating_add(copy.last_use, loads_unused * load) > now) ||
                       (need == Need::asked && saturating_add(since, had_its_time * load) > now) ||
                       ((need == Need::relieves || models_[each.index()].pressed) && waiting.size(each) > 0);
    // What stays tells only that there is room later. rate() of what is nowhere else is asked at all events,
    // as what it says holds for a while.
    if (stays && (need == Need::relieves || busy_ || later >= needs) && work_.places(each) > 1) return false;
    const bool only = ledger.model(each).places.size() <= 1;
    double costs = cost(device, each, now) * (easy_to_load(each, out) ? price : 1);
    if (costs * margin < worth) later += copy.pages;
    if (stays) return false;
    if (only) {
      const std::size_t waits = rescued(each, now, waiting, out);
      if (waits > 0 && need == Need::asked) return false;
      costs += static_cast<double>(waits) / request_for;
    }
    victims.push_back({costs / static_cast<double>(copy.pages), costs, copy.pages, each});
    if (costs == 0) worthless += copy.pages;
    return worthless >= needs;
  });
  busy_ = busy_ || later >= needs;
  std::ranges::sort(victims, {}, [](const Victim& v) { return std::pair(v.by_page, v.model); });
  std::size_t taken = 0;
  while (taken < victims.size() && freed < needs) freed += victims[taken++].pages;
  if (freed < needs) return std::nullopt;
  for (std::size_t i = taken; i-- > 0;) {
    if (freed - victims[i].pages >= needs) {
      freed -= victims[i].pages;
      continue;
    }
    found.cost += victims[i].cost;
    found.victims.push_back(victims[i].model);
  }
  if (found.cost * margin >= worth && need != Need::presses) return std::nullopt;
  return found;
}

void Placing::step_now(Life& life, Orders& out) {
  const Waiting& waiting = life.waiting();
  if (renew_ > 0) renew(life, out);
  for (const DeviceId device : going_on_.empty() ? std::vector<DeviceId>() : std::exchange(going_on_, {}))
    if (devices_[device.index()].coming) go_on(device, waiting, out);
  retry(waiting, out);
  press(waiting, out);
  std::size_t tried = 0;
  const std::uint64_t enough = looked_at_ + looks_at_most;
  while (!wanted_.empty() && tried < models_tried && !open_.empty() && looked_at_ < enough) {
    const auto [key, model] = *wanted_.begin();
    list(model, waiting, out);
    if (!models_[model.index()].listed) continue;
    // Requests were refused and rates fell since.
    if (*models_[model.index()].listed > key * 0.9 && wanted_.begin()->second != model) continue;
    ++tried;
    unlist(model);
    if (load_somewhere(model, false, waiting, out)) continue;
    if (busy_ && !models_[model.index()].blocked) {
      models_[model.index()].blocked = true;
      blocked_.push_back(model);
    }
  }
  for (const ModelId model : std::exchange(scarce_, {}))
    if (wanted_.empty()) another_copy(model, waiting, out);
  if (wanted_.empty()) relieve(waiting, out);
  if (wanted_.empty() && all_pages_ > 0) fill(out);
  if (renew_ > 0) wake_ = out.time();
  wake_ = std::min(retry_.top_at(), wake_);
}

void Placing::retry(const Waiting& waiting, Orders& out) {
  while (retry_.top_at() <= out.time()) {
    const ModelId model{retry_.top()};
    retry_.remove(model.value);
    models_[model.index()].hopeless = TimePoint::min();
    for (auto failed = failed_.lower_bound({model, DeviceId{0}});
         failed != failed_.end() && failed->first.first == model; ++failed) {
      const DeviceId device = failed->first.second;
      unfilled_.set(device.index());
      devices_[device.index()].fill_from.reset();
      if (failed->second.retry > out.time() &&
          (!retry_.contains(model.value) || failed->second.retry < retry_.at(model.value)))
        retry_.set(model.value, failed->second.retry);
    }
    list(model, waiting, out);
  }
}

// What waits for too long is loaded, whatever its worth.
void Placing::press(const Waiting& waiting, Orders& out) {
  wake_ = TimePoint::max();
  std::size_t tried = 0;
  while (!patient_.empty()) {
    const auto [since, model] = *patient_.begin();
    const TimePoint due = saturating_add(since, patience);
    if (due > out.time()) {
      wake_ = std::min(wake_, due);
      return;
    }
    list(model, waiting, out);  // perhaps nothing waits any more
    if (models_[model.index()].since != since) continue;
    if (const TimePoint first = waits_since(model, waiting, out); first > since) {
      patient_.erase({since, model});
      models_[model.index()].since = first;
      patient_.emplace(first, model);
      continue;
    }
    if (models_[model.index()].room || ++tried > 1) return;
    if (!load_somewhere(model, true, waiting, out)) return;
    be_patient(model, false, out.time());
    models_[model.index()].pressed = true;
  }
}

// False: there is no room for it.
bool Placing::load_somewhere(ModelId model, bool presses, const Waiting& waiting, Orders& out) {
  const Ledger& ledger = out.ledger();
  const Duration load = ledger.model(model).info->load;
  std::optional<DeviceId> best;
  Room best_room;
  double best_cost = 0;
  std::size_t tried = 0;
  busy_ = false;
  // False: enough of them were tried.
  const auto consider = [&](DeviceId device) {
    if (!may_load(ledger, device, model, out.time())) return true;
    if (presses && devices_[device.index()].pressed > out.time()) {
      wake_ = std::min(wake_, devices_[device.index()].pressed);
      return true;
    }
    const TimePoint end = saturating_add(loads_end(ledger, device, out.time()), load);
    const auto help = static_cast<double>(rescued(model, end, waiting, out));
    const double rate = this->rate(model, out.time());
    const double request_for = counts_for(model, out);
    const double worth = rate + help / request_for;
    auto there = room(device, model, worth,
                      presses    ? Need::presses
                      : help > 0 ? Need::helps
                                 : Need::asked,
                      waiting, out);
    ++tried;
    if (there) {
      const double cost = there->cost - help / request_for;
      if (!best || cost < best_cost) {
        best = device;
        best_cost = cost;
        best_room = std::move(*there);
      }
    }
    return tried < devices_tried;
  };
  if (open_.size() <= devices_tried) {
    for (const DeviceId device : open_) consider(device);
  } else {
    std::size_t seen = 0;
    work_.visit_by_load([&](DeviceId device) {
      if (++seen > devices_seen) return true;
      ++looked_at_;
      return open_.contains(device) && !consider(device);
    });
    // The least loaded are not to be told of another LOAD.
    for (auto at = open_.lower_bound(open_from_); seen > devices_seen && tried < devices_tried; ++at) {
      if (at == open_.end()) at = open_.begin();
      open_from_ = DeviceId{at->value + 1};
      consider(*at);
      if (++seen > 2 * devices_seen) break;
    }
  }
  if (!best) return false;
  if (presses) devices_[best->index()].pressed = saturating_add(out.time(), pressed_apart * load);
  make_room(*best, model, best_room, waiting, out);
  return true;
}

// How long the most hurried of the device's models can wait for it. Looked at ten times a second.
Duration Placing::others_wait(DeviceId device, const Orders& out) {
  Device& d = devices_[device.index()];
  if (out.time() < d.patience_until) return d.patience;
  if (d.next_patient == 0) d.next_patience = Duration::max();
  const Times times(out.ledger(), Class::normal);
  some_copies(d, [&](const Held& held) {
    const Duration wait = models_[held.model.index()].slack - times.alone(held.model);
    const bool used = saturating_add(out.ledger().device(device).copies[held.place].second.last_use,
                                     work_window) > out.time();
    if (used && wait > Duration{0}) d.next_patience = std::min(d.next_patience, wait);
    ++d.next_patient;
    return false;
  });
  d.patience = std::min(d.patience, d.next_patience);
  if (d.next_patient < d.copies.size()) return d.patience;
  d.next_patient = 0;
  d.patience = d.next_patience;
  d.patience_until = saturating_add(out.time(), patience_renewed);
  return d.patience;
}

// Who comes during a run has to wait for half of it on average.
bool Placing::others_can_wait(DeviceId device, ModelId model, const Orders& out) {
  return Times(out.ledger(), Class::normal).alone(model) / 2 <= others_wait(device, out);
}

// Requests wait for devices that have more to do than they can in time: another copy of their model, on the
// device for which least waits, in the place of copies that nobody waits for and nobody used of late.
void Placing::relieve(const Waiting& waiting, Orders& out) {
  if (!std::exchange(stirred_, false) || pressing_.wanted().empty() || open_.empty()) return;
  std::vector<std::pair<double, DeviceId>> order;
  order.reserve(std::min(open_.size(), devices_seen));
  if (open_.size() <= devices_seen) {
    for (const DeviceId device : open_) order.emplace_back(pressing_.device_load(device), device);
  } else {
    for (auto at = open_.lower_bound(open_from_); order.size() < devices_seen; ++at) {
      if (at == open_.end()) at = open_.begin();
      open_from_ = DeviceId{at->value + 1};
      order.emplace_back(pressing_.device_load(*at), *at);
    }
  }
  looked_at_ += order.size();
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), relieving_tried));
  std::partial_sort(order.begin(), last, order.end());
  for (auto at = order.begin(); at != last; ++at) relieve_on(at->second, waiting, out);
}

void Placing::relieve_on(DeviceId device, const Waiting& waiting, Orders& out) {
  const Ledger& ledger = out.ledger();
  std::size_t tried = 0, rooms = 0;
  for (const auto& [priority, model] : pressing_.wanted()) {
    if (++tried > relieved_tried) return;
    if (nowhere(ledger.model(model)) || models_[model.index()].room ||
        !may_load(ledger, device, model, out.time()) || !others_can_wait(device, model, out))
      continue;
    const TimePoint end = saturating_add(out.time(), ledger.model(model).info->load);
    const auto helped = static_cast<double>(rescued(model, end, waiting, out));
    if (helped == 0) continue;
    if (++rooms > rooms_tried) return;
    if (const auto there = room(device, model, helped / counts_for(model, out), Need::relieves, waiting, out))
      return make_room(device, model, *there, waiting, out);
  }
}

// On the device that is asked for least of those without one.
void Placing::another_copy(ModelId model, const Waiting& waiting, Orders& out) {
  const Ledger& ledger = out.ledger();
  const auto& known = ledger.model(model);
  if (!takes_pages(known) || nowhere(known) || models_[model.index()].room) return;
  const auto may = [&](DeviceId device) { return may_load(ledger, device, model, out.time()); };
  if (open_.size() <= few_open && std::ranges::none_of(open_, may)) return;
  std::size_t seen = 0;
  work_.visit_by_load([&](DeviceId device) {
    if (++seen > devices_seen) return true;
    ++looked_at_;
    if (!open_.contains(device) || !may(device)) return false;
    const double gain = work_.gain_of_copy(model, device);
    if (gain <= 0) return true;
    if (!others_can_wait(device, model, out)) return false;
    if (const auto there = room(device, model, gain * relieves, Need::asked, waiting, out))
      make_room(device, model, *there, waiting, out);
    return true;
  });
}

void Placing::make_room(DeviceId device, ModelId model, const Room& room, const Waiting& waiting,
                        Orders& out) {
  for (const ModelId victim : room.victims) {
    unload(device, victim, out);
    if (waiting.size(victim) > 0) list(victim, waiting, out);
  }
  if (free_pages(out.ledger(), device) >= out.ledger().model(model).info->pages)
    return load(device, model, out);
  devices_[device.index()].coming = model;
  going_on_.push_back(device);
  models_[model.index()].room = device;
  find_open(device, out);
}

void Placing::load_ahead(const LoadAhead& wanted, const Waiting& waiting, Orders& out) {
  const auto& [model, device, instead] = wanted;
  const Ledger& ledger = out.ledger();
  if (!takes_pages(ledger.model(model)) || model_of(model).room || !open(ledger, device) ||
      !may_load(ledger, device, model, out.time()))
    return;
  if (auto victims = room_ahead(ledger, wanted))
    make_room(device, model, {.victims = std::move(*victims)}, waiting, out);
}

void Placing::load(DeviceId device, ModelId model, Orders& out) {
  out.load(device, model, out.ledger().model(model).info->load);
  find_open(device, out);
  sync(device, model, out);
  unlist(model);
}

void Placing::unload(DeviceId device, ModelId model, Orders& out) {
  out.unload(device, model);
  sync(device, model, out);
}

// Room is being made: loads what it is for once the pages are free.
void Placing::go_on(DeviceId device, const Waiting& waiting, Orders& out) {
  const Ledger& ledger = out.ledger();
  const ModelId model = *devices_[device.index()].coming;
  const auto& known = ledger.model(model);
  const bool fits = known.served && free_pages(ledger, device) >= known.info->pages;
  if (!fits && known.served && ledger.device(device).freeing > 0) return;
  devices_[device.index()].coming.reset();
  models_[model.index()].room.reset();
  unfilled_.set(device.index());
  find_open(device, out);
  if (fits && may_load(ledger, device, model, out.time()))
    load(device, model, out);
  else
    list(model, waiting, out);
}

// Devices whose memory has room for more, and which have nothing else to load.
void Placing::fill(Orders& out) {
  std::size_t tries = fills_tried;
  unfilled_.visit(nullptr, [&](std::size_t i) {
    Device& d = devices_[i];
    ++looked_at_;
    const bool may =
        out.ledger().device(device_at(i)).alive && !d.coming && loads(out.ledger(), device_at(i)) == 0;
    if (may && !fill(device_at(i), tries, out)) return true;
    unfilled_.clear(i);
    return tries == 0;
  });
  if (tries == 0) wake_ = out.time();
}

// What has the fewest copies first, and of them what is asked for most. False: not all were tried.
bool Placing::fill(DeviceId device, std::size_t& tries, Orders& out) {
  const Ledger& ledger = out.ledger();
  Device& d = devices_[device.index()];
  const std::uint64_t room = free_pages(ledger, device);
  if (room == 0) return true;
  for (auto at = d.fill_from ? by_copies_.lower_bound(*d.fill_from) : by_copies_.begin();
       at != by_copies_.end(); ++at) {
    if (tries == 0) {
      d.fill_from = *at;
      return false;
    }
    --tries;
    ++looked_at_;
    const ModelId id = std::get<ModelId>(*at);
    if (ledger.model(id).info->pages > room || models_[id.index()].room ||
        !may_load(ledger, device, id, out.time()))
      continue;
    load(device, id, out);
    return true;
  }
  return true;
}

}  // namespace carillon::schedule::parts
