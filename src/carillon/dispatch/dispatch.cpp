#include "carillon/dispatch/dispatch.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/wire/application.h"

namespace carillon::dispatch {

using ledger::Ledger;
using schedule::ActionKind;
using schedule::ActionStatus;

Dispatch::Dispatch(schedule::Scheduler& scheduler, Options options, wire::Calls& calls, Notes& notes)
    : scheduler_(scheduler),
      options_(std::move(options)),
      calls_(calls),
      notes_(notes),
      revivals_(options_.revivals) {
  CARILLON_ASSERT(options_.full_queue_pause > Duration{0});
  scheduler_.reads(ledger_);
}

void Dispatch::add_device(wire::DeviceLink& link, bool there) {
  CARILLON_ASSERT(!started_ || !there);
  devices_.push_back({.link = &link, .there = there});
  revivals_.add_device(there);
}

void Dispatch::add_model(schedule::ModelInfo info) {
  CARILLON_ASSERT(!started_);
  know(std::move(info));
}

void Dispatch::know(schedule::ModelInfo info) {
  CARILLON_ASSERT(info.id.index() == models_.size() && !info.batches.empty());
  const Duration exec = info.batches.front().exec;
  models_.push_back({.info = std::move(info), .exec = exec});
}

void Dispatch::start(TimePoint now) {
  CARILLON_ASSERT(!started_ && !stopped_);
  started_ = true;
  for (const Model& model : models_) feed(schedule::model_comes(model.info), now);
  for (std::uint32_t i = 0; i < devices_.size(); ++i)
    if (devices_[i].there) comes(DeviceId{i}, now);
}

void Dispatch::come(schedule::ModelInfo info, TimePoint now) {
  CARILLON_ASSERT(started_);
  know(std::move(info));
  if (!stopped_) feed(schedule::model_comes(models_.back().info), now);
}

void Dispatch::renew(schedule::ModelInfo info, TimePoint now) {
  CARILLON_ASSERT(started_ && info.id.index() < models_.size());
  Model& model = models_[info.id.index()];
  CARILLON_ASSERT(schedule::same_sizes(model.info.batches, info.batches));
  model.info = std::move(info);
  if (!stopped_) feed(schedule::model_comes(model.info), now);
}

void Dispatch::go(ModelId id, TimePoint now) {
  CARILLON_ASSERT(started_ && id.index() < models_.size());
  if (!stopped_) feed(schedule::ModelChanged{id, nullptr}, now);
}

void Dispatch::change_times(ModelId id, std::vector<schedule::BatchProfile> batches, TimePoint now) {
  CARILLON_ASSERT(started_ && id.index() < models_.size());
  if (stopped_) return;
  Model& model = models_[id.index()];
  CARILLON_ASSERT(schedule::same_sizes(model.info.batches, batches));
  if (batches.front() != model.info.batches.front()) model.exec = batches.front().exec;
  model.info.batches = batches;
  feed(schedule::TimesChanged{id, std::move(batches)}, now);
}

bool Dispatch::on_devices(ModelId id) const {
  return id.index() < ledger_.models() && (ledger_.model(id).under_way > 0 || ledger_.model(id).held > 0);
}

std::size_t Dispatch::actions_in_flight() const {
  std::size_t unsent = deferred_.size();
  for (const Device& device : devices_) unsent += device.unloads.size();
  return ledger_.actions_under_way() - unsent;
}

// --- What calls say

AppId Dispatch::application(std::string_view name, const std::optional<Alike>& told, TimePoint now) {
  std::optional<Alike> alike = told;
  const bool tenants = scheduler_.tells_tenants();
  name = tenants ? wire::tenant_of(name) : wire::without_key(name);
  if (tenants) alike.reset();
  if (name.empty() && !alike) return AppId{0};
  Application key{name, alike};
  if (const auto found = applications_.find(key); found != applications_.end()) return found->second;
  // Names come from outside: beyond the cap they are not told apart, but lengths are.
  const bool named = !name.empty();
  if (named && named_ >= options_.max_applications) {
    if (!alike) return AppId{0};
    key.first.clear();
    if (const auto found = applications_.find(key); found != applications_.end()) return found->second;
  } else if (named) {
    ++named_;
  }
  const AppId id{static_cast<std::uint32_t>(applications_.size()) + 1};
  applications_.emplace(std::move(key), id);
  // What is known of a length is known from the first request on.
  // It was measured when the server started: as good as so many samples.
  constexpr int measured_as = 8;
  if (!alike) return id;
  const auto& solos = models_[alike->model.index()].info.solos;
  if (alike->length < solos.size())
    for (int i = 0; i < measured_as; ++i)
      feed(schedule::RequestProfiled{alike->model, id, solos[alike->length]}, now);
  return id;
}

void Dispatch::offer(const Request& row, bool more, TimePoint now) {
  if (stopped_) return;
  if (deciding_)
    pending_.push_back(schedule::RequestArrived{row, more});
  else
    feed(schedule::RequestArrived{row, more}, now);
}

void Dispatch::all_arrived(TimePoint now) {
  pending_.emplace_back(schedule::AllArrived{});
  drain(nullptr, now);
}

void Dispatch::withdraw(RequestId row, ModelId model) {
  if (!stopped_) pending_.push_back(schedule::RequestCancelled{row, model});
}

// --- What devices say

void Dispatch::on_report(const wire::Report& report, TimePoint now) {
  const DeviceId from = report.device;
  if (report.life != devices_[from.index()].life) return;  // that was over before this came
  if (report.device_lost && !stopped_) {
    devices_[from.index()].why = report.error;
    return feed(schedule::DeviceChanged{from, false}, now);
  }
  const auto place = ledger_.place_of(report.id);
  // A device answers an action once; what it says beyond that is counted, and changes nothing.
  if (!place || !ledger_.at(*place).taken || ledger_.at(*place).device != from)
    return notes_.odd_report(from);
  const Ledger::Action& action = ledger_.at(*place);
  Device& device = devices_[from.index()];
  if (std::ranges::count(device.unloads, report.id, &schedule::Unload::id) > 0)
    return notes_.odd_report(from);
  --count(device.has, action.kind);
  while (!stopped_ && !device.unloads.empty() &&
         pass_on(*ledger_.place_of(device.unloads.front().id), device.unloads.front()))
    device.unloads.erase(device.unloads.begin());
  notes_.ended(*place, action, report, ledger_.holds(from, action.model), now);
  if (action.kind == ActionKind::infer && report.status == ActionStatus::success)
    notes_.kept(action, ledger_.kept(action, now));
  const bool success = report.status == ActionStatus::success;
  // The scheduler hears of the report before it hears of withdrawals that follow from it. The time of a batch
  // with bad data is not told: such data could teach the scheduler whatever they like.
  const schedule::Event done =
      schedule::ActionDone{.id = report.id,
                           .status = report.status,
                           .start = report.times.exec_start,
                           .end = report.times.exec_end,
                           .duration = success && report.odd_time ? action.expected : report.times.ran(),
                           .threads = success && !report.odd_time ? report.times.threads : 0};
  const bool next = pending_.empty();
  if (!stopped_ && !next) pending_.push_back(done);
  if (action.profiled && (asides_[*place].forget || !schedule::made_way(report.status)))
    forget(*action.profiled, *place);
  for (std::size_t i = 0; i < action.requests.size(); ++i) {
    const auto bad = std::ranges::find(report.bad_rows, static_cast<int>(i), &wire::BadRow::row);
    if (bad == report.bad_rows.end())
      calls_.ended(action.requests[i], report, now);
    else
      calls_.turned_down(action.requests[i], bad->error);
  }
  if (stopped_)
    ledger_.apply(done, now);
  else
    drain(next ? &done : nullptr, now);
}

void Dispatch::on_probe(const wire::ProbeReport& report, TimePoint now) {
  const DeviceId from = report.device;
  Device& device = devices_[from.index()];
  if (stopped_ || device_alive(from) || report.life != device.life) return;
  revivals_.probed(from, report.found.has_value(), now);
  if (!report.found) return;
  notes_.device_back(from);
  comes(from, now);
}

void Dispatch::comes(DeviceId id, TimePoint now) {
  // Schedulers hear of devices in order: those before it that never came are not there.
  for (auto i = static_cast<std::uint32_t>(ledger_.devices()); i < id.value; ++i)
    feed(schedule::DeviceChanged{DeviceId{i}, false}, now);
  devices_[id.index()].there = true;
  const wire::DeviceLink& link = *devices_[id.index()].link;
  feed(schedule::DeviceChanged{id, true, link.pages(), link.best_effort(), link.held()}, now);
}

TimePoint Dispatch::wake_at() const {
  if (stopped_) return TimePoint::max();
  const TimePoint at = std::min(scheduler_wake_, revivals_.wake_at());
  return deferred_.empty() ? at : std::min(at, told_at(deferred_.front()));
}

void Dispatch::wake(TimePoint now) {
  if (stopped_) return;
  for (const DeviceId id : revivals_.due(now)) devices_[id.index()].link->probe();
  // What feed() adds is due later than now: this ends.
  while (!deferred_.empty() && told_at(deferred_.front()) <= now) {
    const schedule::ActionDone done = deferred_.front();
    deferred_.erase(deferred_.begin());
    feed(done, now);
  }
  if (scheduler_wake_ <= now) {
    scheduler_wake_ = TimePoint::max();
    feed(schedule::Wake{.excuses = excuses(now)}, now);
  }
}

void Dispatch::nudge(TimePoint now) {
  if (!stopped_) feed(schedule::Wake{}, now);
}

void Dispatch::stop() {
  stopped_ = true;
  pending_.clear();
}

// Of devices that have had an action for long, and may look as if they hang.
std::vector<schedule::Excuse> Dispatch::excuses(TimePoint now) {
  std::vector<schedule::Excuse> out;
  // The scheduler may be woken thousands of times a second.
  if (saturating_add(sought_slow_, options_.slow_after / 8) > now) return out;
  sought_slow_ = now;
  const auto look = [&](DeviceId id, schedule::Lane lane) {
    Device& device = devices_[id.index()];
    TimePoint& looked = device.looked[static_cast<std::size_t>(lane)];
    if (saturating_add(looked, options_.slow_after) > now) return;
    looked = now;
    schedule::Excuse excuse = device.link->slowness(lane);
    excuse.device = id;
    if (excuse.starved > Duration{0} || excuse.moved) out.push_back(excuse);
  };
  visit_taken([&](std::uint32_t place) {
    const Ledger::Action& action = ledger_.at(place);
    if (now - action.sent < options_.slow_after) return;
    look(action.device, action.lane);
    // It waits for runs, of whatever class.
    if (action.kind == ActionKind::unload)
      for (const auto lane : {schedule::Lane::exec, schedule::Lane::real_time, schedule::Lane::best_effort})
        look(action.device, lane);
  });
  return out;
}

// --- Deciding

void Dispatch::feed(const schedule::Event& event, TimePoint now) {
  if (pending_.empty()) return drain(&event, now);
  pending_.push_back(event);
  drain(nullptr, now);
}

// Gives the scheduler the first event, where there is one, the pending ones, and those that come of them,
// until it has nothing more to say. Only then may buffers be given away: until the scheduler has heard of a
// withdrawal, it may still use the row.
void Dispatch::drain(const schedule::Event* first, TimePoint now) {
  CARILLON_ASSERT(!deciding_);
  deciding_ = true;
  const auto decide = [&](const schedule::Event& event) {
    orders_.clear();
    ledger_.apply(event, now);
    if (const auto* change = std::get_if<schedule::DeviceChanged>(&event);
        change != nullptr && !change->alive && devices_[change->device.index()].there)
      lose(change->device, devices_[change->device.index()].why, now);
    scheduler_wake_ = scheduler_.decide(event, now, orders_);
    if (!orders_.empty() || !ledger_.changes().refused.empty()) apply(now);
  };
  if (first != nullptr) decide(*first);
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const schedule::Event next = std::move(pending_[i]);
    decide(next);
  }
  pending_.clear();
  deciding_ = false;
  if (options_.on_decided) options_.on_decided();
  if (options_.on_leisure) tell_leisure(false);
}

// What a device is wanted for is not sent before whoever has it was told; that it is free, not before all
// that was heard of is decided.
void Dispatch::tell_leisure(bool wanted_alone) {
  told_leisure_.resize(std::max(told_leisure_.size(), ledger_.devices()));
  for (std::uint32_t i = 0; std::optional<TimePoint> & told : told_leisure_) {
    const DeviceId device{i++};
    const auto until = ledger_.idle(device) ? std::optional(scheduler_wake_) : std::nullopt;
    if (until == told || (wanted_alone && until)) continue;
    told = until;
    options_.on_leisure(device, until);
  }
}

void Dispatch::apply(TimePoint now) {
  // Work first, as it is urgent; refusals after it, so that a refused call's rows in this same list are seen
  // as under way.
  for (const schedule::Action& order : orders_) {
    ledger_.book(order, now);
    if (options_.on_leisure) tell_leisure(true);
    std::visit(
        [&](const auto& what) {
          using T = std::decay_t<decltype(what)>;
          if constexpr (!std::is_same_v<T, schedule::Refuse>) send(what, now);
        },
        order);
  }
  // A row that was withdrawn and that no device has is not among them.
  for (const auto& [refusal, model, cls] : ledger_.changes().refused)
    calls_.refused({refusal, prospect(model)}, now);
}

// The device that an order is for. Null: it was given up after the order, in the same decision.
wire::DeviceLink* Dispatch::link(DeviceId id) {
  CARILLON_ASSERT(id.index() < ledger_.devices());
  return ledger_.device(id).alive ? devices_[id.index()].link : nullptr;
}

// An order was booked, and is about to be handed to its device. Its place.
std::uint32_t Dispatch::begin(ActionId id) {
  const std::uint32_t place = *ledger_.place_of(id);
  CARILLON_ASSERT(ledger_.at(place).model.index() < models_.size());
  if (place >= asides_.size()) asides_.resize(place + 1);
  asides_[place] = {.action = id, .forget = false, .entry = notes_.begun(place, ledger_.at(place))};
  return place;
}

// To its device. False: the device has no credit for it.
template <typename Order>
bool Dispatch::pass_on(std::uint32_t place, const Order& order) {
  const Ledger::Action& action = ledger_.at(place);
  Device& device = devices_[order.device.index()];
  wire::Credit credit = device.link->credit();
  std::size_t& has = count(device.has, action.kind);
  if (has >= count(credit, action.kind)) return false;
  ++has;
  device.link->send(order);
  if (action.kind != ActionKind::unload) notes_.taken(place, action);
  return true;
}

// The scheduler hears a little later that the action did not run: told at once, the scheduler could try again
// at once, for ever.
void Dispatch::not_taken(std::uint32_t place, TimePoint now) {
  const Ledger::Action& action = ledger_.at(place);
  for (const RequestId row : action.requests) calls_.came_back(row);
  notes_.not_taken(place, now);
  deferred_.push_back(
      {.id = action.id, .status = ActionStatus::too_late, .start = now, .end = now, .duration = Duration{0}});
  ledger_.apply(ledger::NotTaken{action.id}, now);
}

void Dispatch::send(const schedule::Stop& order, TimePoint) {
  if (wire::DeviceLink* const to = link(order.device)) to->stop(order.id);
}

void Dispatch::send(const schedule::Preempt& order, TimePoint) {
  if (wire::DeviceLink* const to = link(order.device)) to->preempt(order.id, order.order);
}

// Of a LOAD or a Profile: no row of a call that waits is in it.
template <typename Order>
void Dispatch::send(const Order& order, TimePoint now) {
  if (link(order.device) == nullptr) return;
  const std::uint32_t place = begin(order.id);
  notes_.complete(place);
  if (!pass_on(place, order)) not_taken(place, now);
}

// An UNLOAD waits for credit: the device holds the weights until then, and nobody would ask again.
void Dispatch::send(const schedule::Unload& order, TimePoint) {
  if (link(order.device) == nullptr) return;
  if (!pass_on(begin(order.id), order)) devices_[order.device.index()].unloads.push_back(order);
}

void Dispatch::send(const schedule::Infer& order, TimePoint now) {
  if (link(order.device) == nullptr) return;
  CARILLON_ASSERT(!order.requests.empty());
  const std::uint32_t place = begin(order.id);
  Model& model = models_[order.model.index()];
  if (order.requests.size() == static_cast<std::size_t>(model.info.batches.front().batch))
    model.exec = order.expected;
  for (const RequestId row : order.requests)
    if (const std::uint64_t call = calls_.sent(row, order.model, asides_[place].entry); call != 0)
      notes_.with(place, call);
  notes_.complete(place);
  if (!pass_on(place, order)) not_taken(place, now);
}

void Dispatch::send(const schedule::Keep& order, TimePoint) {
  if (order.keep)
    calls_.keep(order.request);
  else
    forget(order.request);
}

void Dispatch::send(const schedule::GiveUp& order, TimePoint now) {
  CARILLON_ASSERT(devices_[order.device.index()].there);
  lose(order.device, "it hangs: it reports nothing any more", now);
}

// A request's rows stay kept while an action runs the request again. The action that ended just now does not
// count.
void Dispatch::forget(RequestId request, std::optional<std::uint32_t> ended) {
  bool runs = false;
  visit_taken([&](std::uint32_t place) {
    if (ledger_.at(place).profiled == request && place != ended) runs = asides_[place].forget = true;
  });
  if (!runs) calls_.forget(request);
}

// The device is gone for the ledger. Requests that the device had go back to the scheduler, which may try
// them elsewhere.
void Dispatch::lose(DeviceId id, std::string_view why, TimePoint now) {
  Device& device = devices_[id.index()];
  device.there = false;
  device.link->retire(++device.life);
  device.has = {.infers = 0, .loads = 0};
  device.unloads.clear();
  notes_.device_lost(id);
  for (const std::uint32_t place : ledger_.changes().lost) {
    const Ledger::Action& action = ledger_.at(place);
    const bool begun = place < asides_.size() && asides_[place].action == action.id;
    if (action.device != id || !begun ||
        std::erase_if(deferred_, [&](const auto& d) { return d.id == action.id; }))
      continue;
    notes_.lost(place, now);
    for (const RequestId request : action.requests) calls_.lost(request, why);
    if (action.profiled && asides_[place].forget) forget(*action.profiled);
  }
  revivals_.down(id, now);
  notes_.device_lost_over(id, why);
}

wire::Prospect Dispatch::prospect(ModelId id) const {
  const Model& model = models_[id.index()];
  wire::Prospect out{.exec = model.exec,
                     .batch = model.info.batches.front().batch,
                     .devices = static_cast<std::uint32_t>(ledger_.alive()),
                     .loading = ledger_.model(id).loading > 0,
                     .device = {}};
  for (std::uint32_t i = 0; const Ledger::Device& device : ledger_.all_devices()) {
    const DeviceId at{i++};
    if (!device.alive) continue;
    const bool holds = model.info.pages == 0 || ledger_.holds(at, id);
    out.holding += holds ? 1 : 0;
    if (out.device && (holds == out.holds ? device.busy >= out.busy : out.holds)) continue;
    out.device = at;
    out.holds = holds;
    out.runs = device.runs;
    out.busy = device.busy;
  }
  return out;
}

}  // namespace carillon::dispatch
