#include "carillon/schedule/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "carillon/ledger/chances.h"
#include "carillon/ledger/ledger.h"

namespace carillon::schedule {

double Allowance::at(TimePoint now) const {
  return std::exp(level_ * std::exp2(-to_seconds(now - since_) / to_seconds(half_life)));
}

void Allowance::came_late(double room, TimePoint now) {
  const double is = at(now);
  if (room <= most) set(std::max(is, std::min(is * (1 + rise), room)), now);
}

void Allowance::turned_away(TimePoint now) {
  lower(now);
}

void Allowance::ran(double room, TimePoint now) {
  if (room < hardly_more * at(now)) lower(now);
}

void Allowance::lower(TimePoint now) {
  set(at(now) * (1 - rise * late_ / (1 - late_)), now);
}

void Allowance::set(double level, TimePoint now) {
  level_ = std::log(std::clamp(level, least, most));
  since_ = now;
}

TimePoint Admission::decide(const Event& event, TimePoint now, Actions& out) {
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    if (auto refusal = admit(arrival->request, now)) {
      out.emplace_back(*refusal);
      return asked_;
    }
    more_ = more_ || arrival->more;
  } else if (std::holds_alternative<AllArrived>(event)) {
    if (!std::exchange(more_, false)) return asked_;
  } else {
    heard(event, now);
  }
  const std::size_t seen = out.size();
  asked_ = policy_->decide(event, now, out);
  for (std::size_t i = seen; i < out.size(); ++i) said(out[i], now);
  return asked_;
}

// The refusal; none where the request is admitted, or left to the policy.
std::optional<Refuse> Admission::admit(const Request& request, TimePoint now) {
  const Model& model = models_[request.model.index()];
  if (request.cls != Class::normal || !model.info || alive_ == 0 || !loaded(request.model))
    return std::nullopt;
  const Duration alone = takes(model, 0);
  // By then its run would have to end, if it took no longer than expected.
  const TimePoint due = saturating_add(request.deadline, -beside(alone));
  if (!DueWork::reaches(due, now)) return std::nullopt;
  const Duration work = least_share(model, due - now);
  const TimePoint from = start(now);
  double room = execs_.room(due, work, from, static_cast<double>(alive_), now) * ease_of(alone);
  // What waits is not in its way.
  if (policy_->favours(request, now)) room = std::numeric_limits<double>::infinity();
  const double needed = allowance_.at(now);
  // What would be late by itself is for the policy to refuse.
  if (room >= needed || saturating_add(from, alone) > due) {
    execs_.add(due, work, now);
    waiting_.insert(request.id, {.due = due, .work = work, .room = room});
    return std::nullopt;
  }
  allowance_.turned_away(now);
  policy_->turned_away(request, now);
  // As many times the time until then as there is too little room: at most the account's reach, beyond which
  // nothing is known.
  const auto left = static_cast<double>((due - from).count());
  const auto reach = static_cast<double>((DueWork::step * DueWork::steps).count());
  const Duration takes = from_ns(left * needed / std::max(room, left * needed / reach));
  const TimePoint ends = saturating_add(from, takes + (request.deadline - due));
  return Refuse{request.id, Reason::cannot_finish,
                std::max(ends, saturating_add(request.deadline, Duration{1}))};
}

void Admission::heard(const Event& event, TimePoint now) {
  if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    take(gone->request, now);
  } else if (const auto* ended = std::get_if<ActionDone>(&event)) {
    done(*ended, now);
  } else if (const auto* change = std::get_if<DeviceChanged>(&event)) {
    if (change->device.index() >= devices_.size()) devices_.resize(change->device.index() + 1);
    Device& device = devices_[change->device.index()];
    for (const ActionId id : device.flying) flights_.erase(id);
    device = {.alive = change->alive};
    alive_ = std::ranges::count(devices_, true, &Device::alive);
    for (Model& model : models_) std::erase(model.loaded, change->device);
    for (const ModelId model : change->held) models_[model.index()].loaded.push_back(change->device);
  } else if (const auto* comes = std::get_if<ModelChanged>(&event)) {
    if (comes->model.index() >= models_.size()) models_.resize(comes->model.index() + 1);
    Model& model = models_[comes->model.index()];
    model = {.info = comes->info, .version = model.version + 1};
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    Model& model = models_[times->model.index()];
    if (!model.info) return;
    ++model.times_changes;
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
  std::erase(device.flying, event.id);
  Model& model = models_[flight->model.index()];
  const bool success =
      event.status == ActionStatus::success && flight->version == model.version && model.info;
  if (flight->kind == ActionKind::load) {
    if (success) model.loaded.push_back(flight->device);
    return;
  }
  device.sent -= flight->expected;
  device.left = device.sent;
  device.since = now;
  if (success && flight->times_changes == model.times_changes && flight->batch < model.info->batches.size())
    model.times.add(*model.info, flight->batch, event.duration, now, stale_after, [](std::size_t) {});
}

void Admission::said(const Action& action, TimePoint now) {
  if (const auto* infer = std::get_if<Infer>(&action)) {
    for (const RequestId id : infer->requests) {
      const auto waited = take(id, now);
      if (waited && policy_->by_chance()) allowance_.ran(waited->room, now);
    }
    if (infer->cls != Class::normal) return;  // the policy has them take turns
    const auto& info = models_[infer->model.index()].info;
    std::size_t batch = 0;
    while (info && batch < info->batches.size() &&
           static_cast<std::size_t>(info->batches[batch].batch) < infer->requests.size())
      ++batch;
    Device& device = devices_[infer->device.index()];
    device.left = device.left_at(now) + infer->expected;
    device.sent += infer->expected;
    device.since = now;
    sent(infer->id, {.kind = ActionKind::infer,
                     .device = infer->device,
                     .model = infer->model,
                     .batch = batch,
                     .expected = infer->expected});
  } else if (const auto* load = std::get_if<Load>(&action)) {
    sent(load->id, {.kind = ActionKind::load, .device = load->device, .model = load->model});
  } else if (const auto* unload = std::get_if<Unload>(&action)) {
    std::erase(models_[unload->model.index()].loaded, unload->device);
  } else if (const auto* refusal = std::get_if<Refuse>(&action)) {
    const auto waited = take(refusal->request, now);
    if (waited && refusal->reason == Reason::deadline_passed) allowance_.came_late(waited->room, now);
  }
}

void Admission::sent(ActionId id, Flight flight) {
  const Model& model = models_[flight.model.index()];
  flight.version = model.version;
  flight.times_changes = model.times_changes;
  devices_[flight.device.index()].flying.push_back(id);
  flights_.insert(id, flight);
}

// It waits no more.
std::optional<Admission::Waiting> Admission::take(RequestId id, TimePoint now) {
  auto waited = waiting_.erase(id);
  if (waited) execs_.remove(waited->due, waited->work, now);
  return waited;
}

// What a batch takes: the longest of its last runs, or their median under a policy that goes by chances.
Duration Admission::takes(const Model& model, std::size_t index) const {
  return policy_->by_chance() ? model.times.usual(*model.info, index) : model.times.of(*model.info, index);
}

// What passes of a request's time before and after EXEC, and by how much EXEC may outlast `exec`.
Duration Admission::beside(Duration exec) const {
  if (policy_->by_chance() && ledger_ != nullptr) return ledger_->chances(Class::normal).least_beside();
  const auto allowed = policy_->environment();
  return allowed ? allowed->dispatch + allowed->span(exec) - exec : Duration{0};
}

// What one more request takes at the least: what it adds to the largest batch that ends within `left`.
Duration Admission::least_share(const Model& model, Duration left) const {
  const auto& batches = model.info->batches;
  const Duration one = takes(model, 0);
  std::size_t index = 0;
  while (index + 1 < batches.size() && takes(model, index + 1) <= left) ++index;
  if (index == 0) return one / batches.front().batch;
  return std::clamp((takes(model, index) - one) / (batches[index].batch - batches.front().batch), Duration{0},
                    one);
}

// How many times its room counts. Never less than once: what takes long is not shut out by what is cheap.
double Admission::ease_of(Duration alone) {
  constexpr double weight = 1.0 / 256, most = 4;
  const double takes = std::max(1.0, static_cast<double>(alone.count()));
  usual_ = usual_ == 0 ? takes : usual_ + weight * (takes - usual_);
  return std::clamp(usual_ / takes, 1.0, most);
}

bool Admission::loaded(ModelId model) const {
  const auto& info = models_[model.index()].info;
  const Model& weights = models_[(info && info->weights_of ? *info->weights_of : model).index()];
  return weights.info && (weights.info->pages == 0 || !weights.loaded.empty());
}

// When devices begin with what waits, on their average.
TimePoint Admission::start(TimePoint now) const {
  Duration left{0};
  for (const Device& device : devices_)
    if (device.alive) left += device.left_at(now);
  return saturating_add(now, left / std::max<std::int64_t>(1, alive_));
}

}  // namespace carillon::schedule
