#include "carillon/schedule/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "carillon/base/assert.h"

namespace carillon::schedule {

double Allowance::at(TimePoint now) const {
  return std::exp(level_ * std::exp2(-to_seconds(now - since_) / to_seconds(half_life)));
}

void Allowance::came_late(double room, TimePoint now) {
  const double is = at(now);
  if (room <= most) set(std::max(is, std::min(is * (1 + rise), room)), now);
}

void Allowance::turned_away(TimePoint now) {
  set(at(now) * (1 - rise * promised / (1 - promised)), now);
}

void Allowance::set(double level, TimePoint now) {
  level_ = std::log(std::clamp(level, least, most));
  since_ = now;
}

void Admission::Backlog::begin(Duration work, TimePoint now) {
  left = at(now) + work;
  sent += work;
  since = now;
}

void Admission::Backlog::end(Duration work, TimePoint now) {
  sent -= work;
  left = sent;
  since = now;
}

TimePoint Admission::decide(const Event& event, TimePoint now, Actions& out) {
  const auto* arrival = std::get_if<RequestArrived>(&event);
  if (arrival == nullptr) {
    heard(event, now);
    ask(event, now, out);
  } else if (const auto refusal = admit(arrival->request, now); !refusal) {
    ask(event, now, out);
  } else {
    const std::size_t seen = out.size();
    ask(RequestArrived{arrival->request, true}, now, out);
    // Unless the policy refused it itself.
    if (std::none_of(out.begin() + static_cast<std::ptrdiff_t>(seen), out.end(), [&](const Action& action) {
          const auto* own = std::get_if<Refuse>(&action);
          return own != nullptr && own->request == arrival->request.id;
        })) {
      ask(RequestCancelled{arrival->request.id, arrival->request.model}, now, out);
      out.emplace_back(*refusal);
    }
    if (!arrival->more) ask(AllArrived{}, now, out);
  }
  return asked_;
}

void Admission::ask(const Event& event, TimePoint now, Actions& out) {
  const std::size_t seen = out.size();
  asked_ = policy_->decide(event, now, out);
  for (std::size_t i = seen; i < out.size(); ++i) said(out[i], now);
}

// What it is refused by; else it waits from now on.
std::optional<Refuse> Admission::admit(const Request& request, TimePoint now) {
  Model& model = models_[request.model.index()];
  if (!model.info || alive() == 0) return std::nullopt;
  const Duration alone = model.times.of(*model.info, 0);
  // When its run would have to end, if it took no longer than expected: by all that the policy allows for
  // beside.
  TimePoint due = request.deadline;
  if (const auto allowed = policy_->environment())
    due = saturating_add(due, -(allowed->dispatch + allowed->span(alone) - alone));
  if (!DueWork::reaches(due, now)) return std::nullopt;
  const auto executors = static_cast<double>(alive());
  Waiting waits{.model = request.model, .weights = home_of(request.model), .due = due};
  waits.work = least_share(model, due - now);
  const TimePoint exec_from = start(&Device::exec, now);
  waits.room = execs_.room(due, waits.work, exec_from, executors, now) * ease_of(alone);
  if (turns_away(waits.room, exec_allowance_, saturating_add(exec_from, alone), due, now))
    return refusal_of(request, waits.room, exec_allowance_, now);

  Model& weights = models_[waits.weights.index()];
  const bool takes_pages = weights.info && weights.info->pages > 0;
  const TimePoint load_due = saturating_add(due, -alone);
  if (takes_pages && weights.loaded.empty() && weights.loading.empty() && DueWork::reaches(load_due, now)) {
    const bool asked = weights.load.due != TimePoint::max();  // by another request
    const TimePoint load_from = start(&Device::load, now);
    const Duration load = asked ? Duration{0} : weights.load_takes;
    const double room = loads_.room(load_due, load, load_from, executors, now);
    if (turns_away(room, load_allowance_, saturating_add(load_from, weights.load_takes), load_due, now))
      return refusal_of(request, room, load_allowance_, now);
    if (!asked) charge(loads_, weights.load, load_due, load, now);
    waits.judged = &load_allowance_;
    waits.room = room;
  }
  if (waits.judged == nullptr && (!takes_pages || !weights.loaded.empty())) waits.judged = &exec_allowance_;
  execs_.add(due, waits.work, now);
  ++weights.wanting;
  waiting_.insert(request.id, waits);
  return std::nullopt;
}

// What could not be on time by itself, ending at `alone`, is for the policy to refuse.
bool Admission::turns_away(double room, Allowance& allowance, TimePoint alone, TimePoint due, TimePoint now) {
  if (room >= allowance.at(now) || alone > due) return false;
  allowance.turned_away(now);
  return true;
}

// It would be in time with so many times the time as there is too little room.
Refuse Admission::refusal_of(const Request& request, double room, const Allowance& allowance, TimePoint now) {
  constexpr double least_room = 1e-3;
  const Duration left = request.deadline - now;
  const double times = allowance.at(now) / std::max(room, least_room);
  const Duration needed = std::max(left + Duration{1}, from_ns(static_cast<double>(left.count()) * times));
  return {request.id, Reason::cannot_finish, saturating_add(now, needed)};
}

void Admission::heard(const Event& event, TimePoint now) {
  if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    take(gone->request, now);
  } else if (const auto* ended = std::get_if<ActionDone>(&event)) {
    done(*ended, now);
  } else if (const auto* change = std::get_if<DeviceChanged>(&event)) {
    if (change->device.index() >= devices_.size()) devices_.resize(change->device.index() + 1);
    Device& device = devices_[change->device.index()];
    device = {.alive = change->alive, .life = device.life + 1};
    for (Model& model : models_) leave(model, change->device);
  } else if (const auto* comes = std::get_if<ModelChanged>(&event)) {
    if (comes->model.index() >= models_.size()) models_.resize(comes->model.index() + 1);
    Model& model = models_[comes->model.index()];
    charge(loads_, model.load, TimePoint::max(), Duration{0}, now);
    ++model.version;
    model.info = comes->info;
    model.load_takes = comes->info ? comes->info->load : Duration{0};
    model.times = {};
    model.loading.clear();
    model.loaded.clear();
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    Model& model = models_[times->model.index()];
    if (!model.info) return;
    model.times.change_seeds(model.info->batches, times->batches, now);
    auto info = std::make_shared<ModelInfo>(*model.info);
    info->batches = times->batches;
    model.info = std::move(info);
  }
}

void Admission::done(const ActionDone& event, TimePoint now) {
  const auto flight = flights_.erase(event.id);
  if (!flight) return;
  Device& device = devices_[flight->device.index()];
  Model& model = models_[flight->model.index()];
  const bool success = event.status == ActionStatus::success;
  if (flight->kind == ActionKind::load) {
    if (flight->life == device.life) device.load.end(flight->expected, now);
    if (flight->version == model.version && std::erase(model.loading, flight->device) > 0 && success)
      model.loaded.push_back(flight->device);
    return;
  }
  if (flight->life == device.life) device.exec.end(flight->expected, now);
  if (success && flight->version == model.version)
    model.times.add(*model.info, flight->batch, event.duration, now, stale_after, [](std::size_t) {});
}

void Admission::said(const Action& action, TimePoint now) {
  if (const auto* infer = std::get_if<Infer>(&action)) {
    for (const RequestId id : infer->requests) take(id, now);
    const Model& model = models_[infer->model.index()];
    CARILLON_ASSERT(model.info != nullptr);
    const auto size = std::ranges::find(model.info->batches, static_cast<int>(infer->requests.size()),
                                        &BatchProfile::batch);
    sent(infer->id,
         {.kind = ActionKind::infer,
          .device = infer->device,
          .model = infer->model,
          .batch = static_cast<std::size_t>(size - model.info->batches.begin()),
          .expected = infer->expected},
         now);
  } else if (const auto* load = std::get_if<Load>(&action)) {
    Model& model = models_[load->model.index()];
    charge(loads_, model.load, TimePoint::max(), Duration{0}, now);
    model.loading.push_back(load->device);
    model.load_takes = load->expected;
    sent(load->id,
         {.kind = ActionKind::load, .device = load->device, .model = load->model, .expected = load->expected},
         now);
  } else if (const auto* unload = std::get_if<Unload>(&action)) {
    leave(models_[unload->model.index()], unload->device);
  } else if (const auto* refusal = std::get_if<Refuse>(&action)) {
    if (const auto waited = take(refusal->request, now);
        waited && waited->judged != nullptr && refusal->reason == Reason::deadline_passed)
      waited->judged->came_late(waited->room, now);
  }
}

void Admission::sent(ActionId id, const Flight& flight, TimePoint now) {
  Device& device = devices_[flight.device.index()];
  (flight.kind == ActionKind::load ? device.load : device.exec).begin(flight.expected, now);
  Flight kept = flight;
  kept.life = device.life;
  kept.version = models_[flight.model.index()].version;
  flights_.insert(id, kept);
}

// It waits no more.
std::optional<Admission::Waiting> Admission::take(RequestId id, TimePoint now) {
  const auto waited = waiting_.erase(id);
  if (!waited) return std::nullopt;
  execs_.remove(waited->due, waited->work, now);
  Model& weights = models_[waited->weights.index()];
  if (--weights.wanting == 0) charge(loads_, weights.load, TimePoint::max(), Duration{0}, now);
  return waited;
}

// The charge is so much from now on, due then.
void Admission::charge(DueWork& account, Charge& charge, TimePoint due, Duration work, TimePoint now) {
  if (charge.due == due && charge.work == work) return;
  if (charge.due != TimePoint::max()) account.remove(charge.due, charge.work, now);
  charge = {due, work};
  if (due != TimePoint::max()) account.add(due, work, now);
}

// What one more request takes at the least: what it adds to the largest batch that ends within `left`.
Duration Admission::least_share(const Model& model, Duration left) {
  const auto& batches = model.info->batches;
  const Duration one = model.times.of(*model.info, 0);
  std::size_t index = 0;
  while (index + 1 < batches.size() && model.times.of(*model.info, index + 1) <= left) ++index;
  if (index == 0) return one / batches.front().batch;
  return std::clamp(
      (model.times.of(*model.info, index) - one) / (batches[index].batch - batches.front().batch),
      Duration{0}, one);
}

double Admission::ease_of(Duration alone) {
  constexpr double weight =
      1.0 / 256;  // a second or so of requests, where an overload is one of a small model
  const double takes = std::max(1.0, static_cast<double>(alone.count()));
  usual_ = usual_ == 0 ? takes : usual_ + weight * (takes - usual_);
  // Bounded, so that no client can shut others out by what it sends.
  return std::clamp(usual_ / takes, 0.25, 4.0);
}

void Admission::leave(Model& model, DeviceId device) {
  std::erase(model.loading, device);
  std::erase(model.loaded, device);
}

ModelId Admission::home_of(ModelId model) const {
  const auto& info = models_[model.index()].info;
  return info && info->weights_of ? *info->weights_of : model;
}

// When an executor begins with what waits, on the average of the devices.
TimePoint Admission::start(Backlog Device::*executor, TimePoint now) const {
  Duration left{0};
  for (const Device& device : devices_)
    if (device.alive) left += (device.*executor).at(now);
  return saturating_add(now, left / static_cast<std::int64_t>(std::max<std::size_t>(1, alive())));
}

std::size_t Admission::alive() const {
  return static_cast<std::size_t>(std::ranges::count(devices_, true, &Device::alive));
}

}  // namespace carillon::schedule
