#include "carillon/schedule/classes.h"

#include <algorithm>
#include <tuple>

#include "carillon/base/assert.h"
#include "carillon/schedule/parts/tries.h"

namespace carillon::schedule {
namespace {

constexpr std::uint32_t no_copy = ~std::uint32_t{0};
// LOADs of a pinned model that may fail before what the policy sends to the device waits for it no more.
constexpr std::uint32_t patience = 3;
constexpr Duration first_retry = 10ms, last_retry = 1s;

DeviceId device_of(std::uint32_t place) {
  return DeviceId{place};
}
ModelId model_of(std::uint32_t place) {
  return ModelId{place};
}

}  // namespace

TimePoint Classed::decide(const Event& event, TimePoint now, Actions& actions) {
  Orders out(*ledger_, next_own_, now, actions);
  if (!begun_) {
    if (const auto* change = std::get_if<ModelChanged>(&event)) {
      before_.push_back(*change);
      return TimePoint::max();
    }
    if (const auto* times = std::get_if<TimesChanged>(&event)) {
      const auto last =
          std::ranges::find(before_.rbegin(), before_.rend(), times->model, &ModelChanged::model);
      if (last != before_.rend() && last->info) {
        auto info = std::make_shared<ModelInfo>(*last->info);
        info->batches = times->batches;
        last->info = std::move(info);
      }
      return TimePoint::max();
    }
    begin(event, out);
  }
  std::visit([&](const auto& what) { on(what, out); }, event);
  if (const auto* arrival = std::get_if<RequestArrived>(&event); arrival && arrival->more) return asked_;
  settle(out);
  if (std::holds_alternative<Wake>(event)) asked_ = TimePoint::max();
  // A Wake that was asked for and is late has yet to come.
  const TimePoint wake = std::min(policy_wake_, wakes_at());
  return asked_ = wake <= now ? std::min(wake, asked_) : wake;
}

// Pinned models are loaded on every device as it is, and make no room.
bool Classed::load_ahead(const LoadAhead& wanted, TimePoint now, Actions& actions) {
  if (!begun_ || pinned(wanted.model)) return true;
  LoadAhead policys = wanted;
  std::erase_if(policys.instead, [&](ModelId model) { return pinned(model); });
  Orders out(*ledger_, next_own_, now, actions);
  said_.clear();
  const bool does = Around::load_ahead(policys, now, said_);
  for (Action& each : said_)
    if (heed(each, now)) pass(std::move(each), out);
  return does;
}

// The models that came before anything else, with what is pinned of them.
void Classed::begin(const Event& event, Orders& out) {
  begun_ = true;
  for (const ModelChanged& each : before_) {
    if (each.model.index() >= models_.size()) models_.resize(each.model.index() + 1);
    Model& m = models_[each.model.index()];
    if (each.info) m.info = each.info;
    m.served = each.info != nullptr;
  }
  if (const auto* device = std::get_if<DeviceChanged>(&event); device != nullptr && device->alive) {
    chosen_ = true;
    for (const ModelId model : choose_pins(device->pages)) models_[model.index()].pinned = follows_ = true;
  }
  for (const ModelChanged& each : before_) {
    const Model& m = models_[each.model.index()];
    if (m.pinned && each.info == m.info)
      tell(each.model, out);
    else
      ask(each, out);
  }
  before_.clear();
}

void Classed::ask(const Event& event, Orders& out) {
  said_.clear();
  policy_wake_ = policy_->decide(event, out.time(), said_);
  for (Action& each : said_)
    if (heed(each, out.time())) pass(std::move(each), out);
}

// What the policy wants; false where it is held back, or has come to nothing.
bool Classed::heed(const Action& action, TimePoint now) {
  const auto held_back = [&](DeviceId id) {
    Device& d = devices_[id.index()];
    if (!must_wait(action, d.held)) return false;
    d.held.push_back(action);
    ++held_;
    return true;
  };
  if (const auto* infer = std::get_if<Infer>(&action)) {
    if (!follows_) follows_from_ = infer->id.value + 1;
    if (!follows_ && held_ == 0) return true;
    if (held_back(infer->device)) return false;
    if (in_vain(*infer)) {
      refused(infer->id, ActionStatus::not_loaded, now);
      return false;
    }
  } else if (const auto* load = std::get_if<Load>(&action)) {
    if (held_back(load->device)) return false;
  } else if (const auto* unload = std::get_if<Unload>(&action)) {
    if (held_back(unload->device)) {
      reside(unload->device, unload->model, Residence::leaving);
      return false;
    }
  } else if (const auto* refusal = std::get_if<Refuse>(&action)) {
    take_back(refusal->request);
  } else if (held_ > 0) {
    ActionId ends{};
    DeviceId on{};
    if (const auto* stop = std::get_if<Stop>(&action))
      std::tie(ends, on) = std::pair(stop->id, stop->device);
    else if (const auto* preempt = std::get_if<Preempt>(&action))
      std::tie(ends, on) = std::pair(preempt->id, preempt->device);
    else
      return true;
    Device& d = devices_[on.index()];
    const auto found = std::ranges::find_if(d.held, [&](const Action& held) {
      const auto* held_infer = std::get_if<Infer>(&held);
      return held_infer != nullptr && held_infer->id == ends;
    });
    if (found == d.held.end()) return true;
    if (std::holds_alternative<Stop>(action)) {
      refused(ends, ActionStatus::stopped, now);
      d.held.erase(found);
      --held_;
    }
    return false;
  }
  return true;
}

// What came of it all, until nothing more does.
void Classed::settle(Orders& out) {
  const auto take = [](auto& from) {
    auto taken = from.back();
    from.pop_back();
    return taken;
  };
  while (true) {
    if (!untended_.empty()) {
      const auto [device, model] = take(untended_);
      tend(device, model, out);
    } else if (!returned_.empty()) {
      ask(take(returned_), out);
    } else if (!unfilled_.empty()) {
      const DeviceId device = take(unfilled_);
      send_urgent(device, out);
      send_patient(device, out);
    } else if (!unhanded_.empty()) {
      hand_over(take(unhanded_), out);
    } else if (wakes_at() <= out.time()) {
      expire(out);
    } else {
      return;
    }
  }
}

// --- What happens

void Classed::on(const RequestArrived& event, Orders& out) {
  const Request& request = event.request;
  if (request.cls == Class::normal) return ask(event, out);
  const std::uint32_t index = kept_.take();
  kept_[index] = {.request = request, .due = request.deadline, .device = {}};
  kept_by_id_.insert(request.id, index);
  if (request.cls == Class::best_effort) return wait_patiently(index, Reason::cannot_finish, out);
  follows_ = true;
  if (!kept_[index].has_deadline()) kept_[index].due = saturating_add(out.time(), options_.longest_wait);
  place(index, Reason::cannot_finish, out);
}

void Classed::on(const RequestCancelled& event, Orders& out) {
  if (const std::uint32_t* found = kept_by_id_.find(event.request)) {
    const std::uint32_t index = *found;
    if (ledger_->request(event.request) != nullptr) return;  // a device has it
    unqueue(index);
    return forget(index);
  }
  take_back(event.request);
  if (held_ > 0)
    return_held(event.model, out.time(), [&](const Infer* infer) {
      return infer != nullptr && std::ranges::find(infer->requests, event.request) != infer->requests.end();
    });
  ask(event, out);
}

void Classed::on(const ActionDone& event, Orders& out) {
  const bool own = owns(event.id), success = event.status == ActionStatus::success;
  ActionDone told = event;
  // Else it comes twice, or its device has gone.
  for (const std::uint32_t at : ledger_->changes().ended) {
    const auto& action = ledger_->at(at);
    const DeviceId id = action.device;
    switch (action.kind) {
      case ActionKind::load:
        loaded(action, success);
        if (own && !success) {
          Copy& c = copy(id, action.model);
          c.retry =
              saturating_add(out.time(), std::min(last_retry, first_retry * (1 << std::min(c.failures, 7U))));
          ++c.failures;
        }
        break;
      case ActionKind::unload:
        reside(id, action.model, Residence::absent);
        break;
      case ActionKind::infer: {
        if (own) {
          ended(event, at, out);
          break;
        }
        if (action.profiled) break;
        Device& d = devices_[id.index()];
        // The report of its LOAD may be lost, and then the model comes to be nowhere again with its device.
        if (success)
          for (const RequestId request : action.requests) take_back(request);
        if (event.status == ActionStatus::not_loaded &&
            ledger_->residence(id, action.model) == Residence::absent)
          lacks(id, action.model, out.time());
        if (!follows(action.id)) break;
        --d.normal;
        if (std::exchange(d.full, false)) {
          update_room(id);
          unfilled_.push_back(id);
        }
        update_urgent(id);
        if (action.uses_copy && users(id, action.model, Class::normal) == 0)
          untended_.emplace_back(id, action.model);
        if (const double share = ledger_->device(id).urgent_share; share > 0)
          told.duration = ledger::BusyShare::stretched(event.duration, share);
        break;
      }
    }
  }
  if (!own) ask(told, out);
}

void Classed::on(const Wake& event, Orders& out) {
  if (policy_wake_ <= out.time()) ask(event, out);
}

void Classed::expire(Orders& out) {
  while (late_.top_at() <= out.time()) {
    const DeviceId device = device_of(late_.top());
    drop_late(device, out);
    update_urgent(device);
  }
  while (cold_.top_at() <= out.time()) {
    const ModelId model = model_of(cold_.top());
    update_cold(model);  // margins and estimates may be others by now
    if (cold_.top_at() > out.time()) continue;
    const std::uint32_t index = *kept_by_id_.find(models_[model.index()].cold.front().id);
    if (kept_[index].has_deadline())
      expired(index, out.time() + margins_->worst().dispatch + urgent_time(model), out);
    else
      refuse_waiting(index, Reason::no_device, TimePoint::max(), out);
  }
  while (patient_.top_at() <= out.time()) {
    const ModelId model = model_of(patient_.top());
    update_patient(model);
    if (patient_.top_at() > out.time()) continue;
    const std::uint32_t index = *kept_by_id_.find(models_[model.index()].patient.front().id);
    expired(index, out.time() + margins_->worst().dispatch + patient_time(model), out);
  }
  while (retries_.top_at() <= out.time()) {
    const DeviceId device = device_of(retries_.top());
    retries_.remove(device.value);
    for (const auto& [model, c] : devices_[device.index()].copies)
      if (c.retry > TimePoint{}) untended_.emplace_back(device, model);
  }
}

void Classed::on(const DeviceChanged& event, Orders& out) {
  const DeviceId id = event.device;
  if (id.index() >= devices_.size()) devices_.resize(id.index() + 1);
  // What it had is nowhere any more.
  std::vector<std::uint32_t> lost = lost_with(id), waited;
  Device& d = devices_[id.index()];
  d.urgent.visit([&](const EdfQueue::Item& item) {
    waited.push_back(*kept_by_id_.find(item.id));
    return true;
  });
  for (const std::uint32_t index : waited) unqueue(index);
  for (const auto& [model, c] : d.copies) {
    std::erase(models_[model.index()].places, id);
    unhanded_.push_back(model);
  }
  held_ -= d.held.size();
  d = Device{.alive = event.alive, .pages = event.pages, .best_effort = event.best_effort};
  retries_.remove(id.value);
  update_room(id);
  update_urgent(id);
  if (d.alive) {
    if (!std::exchange(chosen_, true)) {
      const std::vector<ModelId> pins = choose_pins(event.pages);
      for (const ModelId model : pins) d.reserved += models_[model.index()].info->pages;
      for (const ModelId model : pins) change({model, models_[model.index()].info}, true, out);
    } else {
      // A smaller device than those before: the last that were pinned are no more.
      const std::vector<ModelId> fitting = choose_pins(event.pages);
      for (std::uint32_t m = 0; m < models_.size(); ++m)
        if (models_[m].pinned && std::ranges::find(fitting, model_of(m)) == fitting.end())
          change({model_of(m), models_[m].info}, false, out);
    }
    devices_[id.index()].reserved = pinned_pages();
  }
  DeviceChanged told = event;
  if (event.alive) told.pages -= devices_[id.index()].reserved;
  bring(told);
  ask(told, out);
  // The last that is put there is loaded first.
  for (const Class cls : {Class::best_effort, Class::real_time})
    for (std::size_t m = models_.size(); event.alive && m-- > 0;)
      if (models_[m].pinned && models_[m].info->cls == cls)
        untended_.emplace_back(id, model_of(static_cast<std::uint32_t>(m)));
  for (std::uint32_t m = 0; event.alive && m < models_.size(); ++m)
    if (models_[m].served && models_[m].info->pages == 0) requeue(model_of(m), out);
  for (const std::uint32_t index : lost) give_back(index, Reason::device_failed, out);
  for (const std::uint32_t index : waited) place(index, Reason::device_failed, out);
  if (ledger_->alive() > 0) {
    unfilled_.push_back(id);
    return;
  }
  for (std::uint32_t m = 0; m < models_.size(); ++m)
    for (const auto where : {Kept::Where::cold, Kept::Where::patient})
      for (const std::uint32_t index : waiting(where, model_of(m)))
        refuse_waiting(index, Reason::no_device, TimePoint::max(), out);
}

void Classed::on(const ModelChanged& event, Orders& out) {
  change(event, true, out);
}

void Classed::on(const TimesChanged& event, Orders& out) {
  const ModelId model = event.model;
  Model& m = models_[model.index()];
  const std::vector<BatchProfile> before = m.info->batches;
  CARILLON_ASSERT(same_sizes(before, event.batches));
  auto info = std::make_shared<ModelInfo>(*m.info);
  info->batches = event.batches;
  m.info = std::move(info);
  if (before.front().exec != event.batches.front().exec)
    for (std::uint32_t i = 0; i < devices_.size(); ++i) retime_urgent(device_of(i), model);
  update_cold(model);
  update_patient(model);
  ask(event, out);
}

// --- Real-time requests

// It comes, or comes again from where it cannot be: to a device that can have it in time, or it is refused.
void Classed::place(std::uint32_t index, Reason otherwise, Orders& out) {
  const ModelId model = kept_[index].request.model;
  Model& m = models_[model.index()];
  if (!m.served) return refuse(index, Reason::no_model, TimePoint::max(), out);
  if (ledger_->alive() == 0) return refuse(index, Reason::no_device, TimePoint::max(), out);
  if (somewhere(m)) {
    TimePoint would_finish = TimePoint::max();
    if (!admit(index, would_finish, out)) refuse(index, otherwise, would_finish, out);
    return;
  }
  Kept& k = kept_[index];
  if (!m.pinned) {
    Request request = k.request;
    request.cls = Class::normal;
    forget(index);
    return ask(RequestArrived{request}, out);
  }
  const Environment& worst = margins_->worst();
  if (k.has_deadline()) {
    k.due = saturating_add(k.request.deadline, -worst.answer);
    const TimePoint end = out.time() + worst.dispatch + urgent_time(model);
    if (end > k.due) return refuse(index, otherwise, end + worst.answer, out);
  }
  k.where = Kept::Where::cold;
  m.cold.insert({k.due, k.request.id});
  update_cold(model);
}

template <typename Visit>
void Classed::visit_devices(ModelId model, Visit&& visit) const {
  const Model& m = models_[model.index()];
  if (m.info->pages == 0)
    loads_.visit_first(looked_at, TimePoint::max(), [&](std::uint32_t device) { visit(device_of(device)); });
  else
    for (const DeviceId device : m.places) visit(device);
}

bool Classed::admit(std::uint32_t index, TimePoint& would_finish, Orders& out) {
  Kept& k = kept_[index];
  const ModelId model = k.request.model;
  for (int attempt = 0;; ++attempt) {
    const Duration exec = urgent_time(model);
    std::optional<std::tuple<TimePoint, int, int, DeviceId>> best;
    would_finish = TimePoint::max();
    visit_devices(model, [&](DeviceId id) {
      const Device& d = devices_[id.index()];
      const Duration answer = margins_->at(id).answer, time = with_overrun(id, exec);
      const TimePoint due = k.has_deadline() ? saturating_add(k.request.deadline, -answer) : k.due;
      const TimePoint start = free_at(id, out.time());
      const auto [before, latest] = d.urgent.place(due, k.request.id);
      const TimePoint end = start + before + time;
      would_finish = std::min(would_finish, start + d.urgent.total() + time + answer);
      if (end > due || saturating_add(latest, -(before + time)) < start) return;
      const auto found = std::tuple(end, d.normal, runs(id, Class::best_effort), id);
      best = best ? std::min(*best, found) : found;
    });
    if (best) {
      const DeviceId id = std::get<3>(*best);
      if (k.has_deadline()) k.due = saturating_add(k.request.deadline, -margins_->at(id).answer);
      k.where = Kept::Where::urgent;
      k.device = id;
      devices_[id.index()].urgent.insert({k.due, k.request.id, with_overrun(id, exec)});
      update_urgent(id);
      unfilled_.push_back(id);
      return true;
    }
    if (attempt > 0) return false;
    // What a slow spell has taught must not keep out for ever what is not measured then.
    const Duration left = k.has_deadline() ? k.request.deadline - out.time() : Duration{0};
    if (!out.doubt(model, Class::real_time, left)) return false;
  }
}

Duration Classed::with_overrun(DeviceId device, Duration exec) const {
  return margins_->at(device).with_overrun(exec);
}

// When what is sent now can start.
TimePoint Classed::free_at(DeviceId id, TimePoint now) const {
  const Device& d = devices_[id.index()];
  const Duration dispatch = margins_->at(id).dispatch;
  TimePoint free = now;
  const auto& sent = under_way(id, Class::real_time);
  for (std::size_t i = 0; i < d.urgent_runs.size(); ++i)
    free = i == 0 ? std::max(free, d.urgent_runs[i].end)
                  : std::max(free, ledger_->at(sent[i]).sent + dispatch) + d.urgent_runs[i].takes;
  return std::max(free, now + dispatch);
}

void Classed::drop_late(DeviceId id, Orders& out) {
  Device& d = devices_[id.index()];
  while (!d.urgent.empty()) {
    const std::uint32_t index = *kept_by_id_.find(d.urgent.front().id);
    const Kept& k = kept_[index];
    const TimePoint end = free_at(id, out.time()) + urgent_time(k.request.model);
    if (!k.has_deadline() || end <= k.due) return;
    expired(index, end, out);
  }
}

void Classed::send_urgent(DeviceId id, Orders& out) {
  while (devices_[id.index()].alive) {
    drop_late(id, out);
    Device& d = devices_[id.index()];
    if (d.urgent.empty() || d.full || d.urgent_runs.size() >= options_.in_flight) break;
    const std::uint32_t first = *kept_by_id_.find(d.urgent.front().id);
    const ModelId model = kept_[first].request.model;
    if (!usable(d, model)) {
      unqueue(first);
      place(first, Reason::deadline_passed, out);
      continue;
    }
    // Those of its model that follow it may go with it, where that ends it in time and the others no later.
    const auto& batches = models_[model.index()].info->batches;
    gathered_.clear();
    d.urgent.visit([&](const EdfQueue::Item& item) {
      if (gathered_.size() == static_cast<std::size_t>(batches.back().batch) ||
          kept_[*kept_by_id_.find(item.id)].request.model != model)
        return false;
      gathered_.push_back(item.id);
      return true;
    });
    const TimePoint start = free_at(id, out.time()), due = d.urgent.front().due;
    const Duration alone = with_overrun(id, urgent_time(model));
    std::size_t batch = 0;
    for (std::size_t i = 1; i < batches.size(); ++i) {
      if (static_cast<std::size_t>(batches[i].batch) > gathered_.size()) break;
      const Duration time = with_overrun(id, urgent_time(model, i));
      if (time <= batches[i].batch * alone && start + time <= due) batch = i;
    }
    const Duration exec = urgent_time(model, batch);
    gathered_.resize(static_cast<std::size_t>(batches[batch].batch));
    batch_ = gathered_;
    TimePoint latest = TimePoint::max();
    for (const RequestId request : batch_) {
      const std::uint32_t index = *kept_by_id_.find(request);
      if (kept_[index].has_deadline()) latest = std::min(latest, saturating_add(kept_[index].due, -exec));
      unqueue(index);
    }
    send(id, model, Class::real_time, {TimePoint::min(), latest}, exec, out);
  }
  update_urgent(id);
}

// Those of a model that wait there take another time. O(waiting).
void Classed::retime_urgent(DeviceId id, ModelId model) {
  Device& d = devices_[id.index()];
  if (!d.alive) return;
  std::vector<EdfQueue::Item> items;
  d.urgent.visit([&](const EdfQueue::Item& item) {
    if (kept_[*kept_by_id_.find(item.id)].request.model == model) items.push_back(item);
    return true;
  });
  for (EdfQueue::Item& item : items) {
    d.urgent.erase(item.due, item.id);
    item.takes = with_overrun(id, urgent_time(model));
    d.urgent.insert(item);
  }
  update_urgent(id);
}

// How busy the device is, and when the first that waits there is late.
void Classed::update_urgent(DeviceId id) {
  const Device& d = devices_[id.index()];
  if (!d.alive) {
    loads_.remove(id.value);
    late_.remove(id.value);
    return;
  }
  // Of those that have none of it, first those that run nothing else either.
  const TimePoint end = !d.urgent_runs.empty() ? d.urgent_runs.back().end
                        : d.urgent.empty()     ? TimePoint::min() + Duration{d.normal}
                                               : TimePoint{};
  loads_.set(id.value, saturating_add(end, d.urgent.total()));
  if (d.urgent.empty()) return late_.remove(id.value);
  const Kept& first = kept_[*kept_by_id_.find(d.urgent.front().id)];
  if (!first.has_deadline()) return late_.remove(id.value);
  const Duration least = margins_->at(id).dispatch + urgent_time(first.request.model);
  late_.set(id.value, saturating_add(first.due, -least + 1ns));
}

void Classed::update_cold(ModelId model) {
  const Model& m = models_[model.index()];
  if (m.cold.empty()) return cold_.remove(model.value);
  const Kept& first = kept_[*kept_by_id_.find(m.cold.front().id)];
  const Duration least = margins_->worst().dispatch + urgent_time(model);
  cold_.set(model.value, first.has_deadline() ? saturating_add(first.due, -least + 1ns) : first.due);
}

// --- Best effort

void Classed::wait_patiently(std::uint32_t index, Reason otherwise, Orders& out) {
  Kept& k = kept_[index];
  const ModelId model = k.request.model;
  Model& m = models_[model.index()];
  if (!m.served) return refuse(index, Reason::no_model, TimePoint::max(), out);
  if (ledger_->alive() == 0) return refuse(index, Reason::no_device, TimePoint::max(), out);
  if (k.has_deadline()) {
    const Environment& worst = margins_->worst();
    const auto end = [&] { return out.time() + worst.dispatch + patient_time(model); };
    k.due = saturating_add(k.request.deadline, -worst.answer);
    if (end() > k.due) out.doubt(model, Class::best_effort, k.request.deadline - out.time());
    if (end() > k.due) return refuse(index, otherwise, end() + worst.answer, out);
  }
  k.where = Kept::Where::patient;
  if (m.patient.empty()) m.turn = std::max(m.turn, turn_);  // what it did not ask for it is not owed
  m.patient.insert({k.due, k.request.id});
  update_patient(model);
  offer(model);
}

// Some device may have room for it, or it has to be loaded.
void Classed::offer(ModelId model) {
  const Model& m = models_[model.index()];
  if (m.patient.empty()) return;
  if (!somewhere(m)) return unhanded_.push_back(model);
  if (m.info->pages == 0) {
    if (!rooms_.empty()) unfilled_.push_back(device_of(rooms_.top()));
    return;
  }
  std::optional<DeviceId> best;
  for (const DeviceId id : m.places) {
    if (has_room(id) && (!best || runs(id, Class::best_effort) < runs(*best, Class::best_effort))) best = id;
  }
  if (best) unfilled_.push_back(*best);
}

void Classed::send_patient(DeviceId id, Orders& out) {
  while (has_room(id) && !turns_.empty()) {
    // Mostly one of the first is there.
    std::optional<ModelId> next;
    for (std::size_t most = 4; !next; most = turns_.size()) {
      turns_.visit_first(most, TimePoint::max(), [&](std::uint32_t model) {
        if (!next && usable(devices_[id.index()], model_of(model))) next = model_of(model);
      });
      if (most >= turns_.size()) break;
    }
    if (!next) return;
    send_patient(id, *next, out);
  }
}

void Classed::send_patient(DeviceId id, ModelId model, Orders& out) {
  Model& m = models_[model.index()];
  const auto& batches = m.info->batches;
  const TimePoint due = m.patient.front().due;
  const Duration longest = std::max(patient_time(model), options_.longest_batch);
  // Of the sizes that there are requests for, the one that serves most by time.
  std::size_t batch = 0;
  for (std::size_t i = 1; i < batches.size(); ++i) {
    if (static_cast<std::size_t>(batches[i].batch) > m.patient.size()) break;
    const Duration time = patient_time(model, i);
    if (time <= longest && saturating_add(out.time() + margins_->at(id).dispatch, time) <= due &&
        time * batches[batch].batch < patient_time(model, batch) * batches[i].batch)
      batch = i;
  }
  const Duration exec = patient_time(model, batch);
  batch_.clear();
  while (batch_.size() < static_cast<std::size_t>(batches[batch].batch)) {
    const std::uint32_t index = *kept_by_id_.find(m.patient.front().id);
    batch_.push_back(kept_[index].request.id);
    unqueue(index);
  }
  const TimePoint latest = due == TimePoint::max() ? due : std::max(out.time(), saturating_add(due, -exec));
  turn_ = m.turn;
  m.turn += exec;
  update_patient(model);
  send(id, model, Class::best_effort, {out.time(), latest}, exec, out);
}

// Nobody has the model: the policy is to load it.
void Classed::hand_over(ModelId model, Orders& out) {
  Model& m = models_[model.index()];
  if (m.patient.empty() || m.handed || !m.served || m.pinned || ledger_->alive() == 0 || somewhere(m)) return;
  const std::uint32_t index = *kept_by_id_.find(m.patient.front().id);
  Request request = kept_[index].request;
  request.cls = Class::normal;
  unqueue(index);
  forget(index);
  m.handed = request.id;
  handed_.insert(request.id, model);
  ask(RequestArrived{request}, out);
}

// The model is somewhere: what was handed over is a request as any.
void Classed::unhand(Model& m) {
  if (m.handed) handed_.erase(*std::exchange(m.handed, std::nullopt));
}

// What was handed over has come to its outcome: the next of its model may be, where it was.
void Classed::take_back(RequestId request) {
  if (handed_.size() == 0) return;
  const auto model = handed_.erase(request);
  if (!model) return;
  models_[model->index()].handed.reset();
  unhanded_.push_back(*model);
}

void Classed::update_room(DeviceId id) {
  if (has_room(id))
    rooms_.set(id.value, TimePoint{Duration{runs(id, Class::best_effort)}});
  else
    rooms_.remove(id.value);
}

void Classed::update_patient(ModelId model) {
  const Model& m = models_[model.index()];
  if (m.patient.empty()) {
    turns_.remove(model.value);
    return patient_.remove(model.value);
  }
  turns_.set(model.value, TimePoint{m.turn});
  const TimePoint due = m.patient.front().due;
  if (due == TimePoint::max()) return patient_.remove(model.value);
  const Duration least = margins_->worst().dispatch + patient_time(model);
  patient_.set(model.value, saturating_add(due, -least + 1ns));
}

// A run came to nothing: its model is owed the time that it was to have.
void Classed::give_turn_back(ModelId model, Duration expected) {
  models_[model.index()].turn -= expected;
  update_patient(model);
}

// --- Both

// An INFER of the requests in batch_.
void Classed::send(DeviceId id, ModelId model, Class cls, Window window, Duration expected, Orders& out) {
  const TimePoint free = free_at(id, out.time());
  const ActionId action{next_own_++};
  out.give(Infer{action, id, model, batch_, window, expected, cls});
  if (cls == Class::real_time) {
    const Duration takes = with_overrun(id, expected);
    devices_[id.index()].urgent_runs.push_back({action, takes, free + takes});
  } else {
    update_room(id);
  }
}

// One of our own INFERs, which is under way no more.
void Classed::ended(const ActionDone& done, std::uint32_t at, Orders& out) {
  const auto& run = ledger_->at(at);
  const DeviceId id = run.device;
  const ModelId model = run.model;
  Device& d = devices_[id.index()];
  Model& m = models_[model.index()];
  const bool is_current = current(run);
  const bool ran = done.status == ActionStatus::success || done.status == ActionStatus::failed ||
                   done.status == ActionStatus::stopped;
  if (run.cls == Class::real_time) {
    const auto found = std::ranges::find(d.urgent_runs, run.id, &Run::id);
    const bool first = found == d.urgent_runs.begin();
    d.urgent_runs.erase(found);
    if (first && !d.urgent_runs.empty()) {
      const TimePoint sent = ledger_->at(under_way(id, Class::real_time).front()).sent;
      const TimePoint free = std::min(ran ? done.end : out.time(), out.time());
      d.urgent_runs.front().end =
          std::max(free, sent + margins_->at(id).dispatch) + d.urgent_runs.front().takes;
    }
  } else if (is_current && ran) {
    m.turn += done.duration - run.expected;
    update_patient(model);
  } else if (is_current) {
    give_turn_back(model, run.expected);
  }
  if (run.uses_copy) {
    if (own_users(id, model) == 0) untended_.emplace_back(id, model);
    if (done.status == ActionStatus::not_loaded && is_current) lacks(id, model, out.time());
  }
  // What is under way gives room when it has ended; where nothing is, there will never be any.
  d.full = done.status == ActionStatus::no_memory &&
           (d.normal > 0 || runs(id, Class::best_effort) > 0 || !d.urgent_runs.empty());
  update_room(id);
  const Reason reason = done.status == ActionStatus::too_late ? Reason::rejected_late : Reason::device_failed;
  for (std::size_t i = 0; i < ledger_->at(at).requests.size(); ++i) {
    const std::uint32_t index = *kept_by_id_.find(ledger_->at(at).requests[i]);
    kept_[index].without_room += d.full ? 1 : 0;
    give_back(index, reason, out);
  }
  unfilled_.push_back(id);
}

// Its INFER is over.
void Classed::give_back(std::uint32_t index, Reason reason, Orders& out) {
  const Kept& k = kept_[index];
  const auto* const open = ledger_->request(k.request.id);
  if (open == nullptr) return forget(index);  // it was answered, or its client has gone
  ledger::Ledger::Tries tries = open->tries;
  tries.failed -= k.without_room;
  if (parts::tried_enough(tries)) return refuse(index, reason, TimePoint::max(), out);
  if (k.request.cls == Class::real_time)
    place(index, reason, out);
  else
    wait_patiently(index, reason, out);
}

void Classed::refuse(std::uint32_t index, Reason reason, TimePoint would_finish, Orders& out) {
  out.give(Refuse{kept_[index].request.id, reason, would_finish});
  forget(index);
}

void Classed::refuse_waiting(std::uint32_t index, Reason reason, TimePoint would_finish, Orders& out) {
  unqueue(index);
  refuse(index, reason, would_finish, out);
}

// One that waits and whose run would end at `end`, which is too late.
void Classed::expired(std::uint32_t index, TimePoint end, Orders& out) {
  const Kept& k = kept_[index];
  refuse_waiting(index, Reason::deadline_passed, end + (k.request.deadline - k.due), out);
}

void Classed::forget(std::uint32_t index) {
  kept_by_id_.erase(kept_[index].request.id);
  kept_.give_back(index);
}

// From where it waits.
void Classed::unqueue(std::uint32_t index) {
  const Kept& k = kept_[index];
  const ModelId model = k.request.model;
  switch (k.where) {
    case Kept::Where::urgent:
      devices_[k.device.index()].urgent.erase(k.due, k.request.id);
      update_urgent(k.device);
      break;
    case Kept::Where::cold:
      models_[model.index()].cold.erase(k.due, k.request.id);
      update_cold(model);
      break;
    case Kept::Where::patient:
      models_[model.index()].patient.erase(k.due, k.request.id);
      update_patient(model);
      break;
  }
}

// Those that wait so, in their order.
std::vector<std::uint32_t> Classed::waiting(Kept::Where where, ModelId model) const {
  const Model& m = models_[model.index()];
  std::vector<std::uint32_t> found;
  (where == Kept::Where::cold ? m.cold : m.patient).visit([&](const EdfQueue::Item& item) {
    found.push_back(*kept_by_id_.find(item.id));
    return true;
  });
  return found;
}

// The model has come to be somewhere: those that waited for that.
void Classed::requeue(ModelId model, Orders& out) {
  for (const std::uint32_t index : waiting(Kept::Where::cold, model)) {
    unqueue(index);
    place(index, Reason::deadline_passed, out);
  }
  offer(model);
}

// --- Residence

const Classed::Copy* Classed::find(const Device& d, ModelId model) const {
  if (model.index() >= d.copy_of.size() || d.copy_of[model.index()] == no_copy) return nullptr;
  return &d.copies[d.copy_of[model.index()]].second;
}

Classed::Copy& Classed::copy(DeviceId id, ModelId model) {
  Device& d = devices_[id.index()];
  if (model.index() >= d.copy_of.size()) d.copy_of.resize(models_.size(), no_copy);
  std::uint32_t& at = d.copy_of[model.index()];
  if (at == no_copy) {
    at = static_cast<std::uint32_t>(d.copies.size());
    d.copies.emplace_back(model, Copy{});
  }
  return d.copies[at].second;
}

bool Classed::usable(const Device& d, ModelId model) const {
  const Model& m = models_[model.index()];
  if (!d.alive || !m.served) return false;
  if (m.info->pages == 0) return true;
  const Copy* c = find(d, model);
  return c != nullptr && c->residence == Residence::loaded;
}

void Classed::reside(DeviceId id, ModelId model, Residence residence) {
  Device& d = devices_[id.index()];
  Model& m = models_[model.index()];
  Copy& c = copy(id, model);
  const Residence before = std::exchange(c.residence, residence);
  if (residence == Residence::absent && std::exchange(c.pin, false)) {
    d.taken -= c.pages;
    // There is room for another.
    for (const auto& [other, each] : d.copies)
      if (models_[other.index()].pinned && each.residence == Residence::absent)
        untended_.emplace_back(id, other);
  }
  untended_.emplace_back(id, model);
  if ((before == Residence::loaded) == (residence == Residence::loaded)) return;
  if (residence == Residence::loaded) {
    m.places.push_back(id);
    c.failures = 0;
    c.retry = TimePoint{};
    unhand(m);
  } else {
    std::erase(m.places, id);
    unhanded_.push_back(model);
  }
  unfilled_.push_back(id);
}

// What the device comes with. The policy is told of what it may have loaded there itself; what has no room
// beside that, or beside what is pinned, leaves.
void Classed::bring(DeviceChanged& told) {
  Device& d = devices_[told.device.index()];
  std::uint64_t room = told.pages;
  std::erase_if(told.held, [&](ModelId model) {
    const std::uint64_t pages = models_[model.index()].info->pages;
    const bool pinned = models_[model.index()].pinned;
    const bool policys = !pinned && pages <= room;
    if (policys) {
      room -= pages;
    } else {
      Copy& c = copy(told.device, model);
      c.pin = true;
      c.pages = pages;
      d.taken += pages;
    }
    reside(told.device, model, pinned || policys ? Residence::loaded : Residence::leaving);
    return !policys;
  });
}

// The device knows better.
void Classed::lacks(DeviceId id, ModelId model, TimePoint now) {
  Copy& c = copy(id, model);
  if (c.residence != Residence::loaded) return;
  c.retry = saturating_add(now, first_retry);
  reside(id, model, Residence::absent);
}

// A LOAD has ended.
void Classed::loaded(const ledger::Ledger::Action& load, bool success) {
  const bool keeps = current(load) && models_[load.model.index()].served;
  reside(load.device, load.model,
         !success ? Residence::absent
         : keeps  ? Residence::loaded
                  : Residence::leaving);
}

// Loads or unloads where the layer is to, and lets go what has waited for that.
void Classed::tend(DeviceId id, ModelId model, Orders& out) {
  Device& d = devices_[id.index()];
  if (!d.alive) return;
  const Model& m = models_[model.index()];
  if (m.info->pages > 0 || find(d, model) != nullptr) {
    Copy& c = copy(id, model);
    const std::uint64_t pages = m.info->pages;
    if (c.pin && c.residence == Residence::leaving && own_users(id, model) == 0 &&
        users(id, model, Class::normal) == 0) {
      c.residence = Residence::unloading;
      out.unload(id, model);
    } else if (m.pinned && c.residence == Residence::absent && d.taken + pages <= d.reserved) {
      if (out.time() < c.retry) {
        if (!retries_.contains(id.value) || c.retry < retries_.at(id.value)) retries_.set(id.value, c.retry);
      } else {
        c.pin = true;
        c.pages = pages;
        d.taken += pages;
        c.residence = Residence::loading;
        out.load(id, model, m.info->load);
      }
    } else if (c.residence == Residence::loaded) {
      requeue(model, out);
    }
  }
  if (held_ > 0) release(id, out);
}

// What the policy sends to a device is held back where that would make nonsense:
// - an INFER of a pinned model that is not there yet, as at a device's start: the policy takes it to be;
// - an UNLOAD of a model that requests use which are kept from the policy;
// - a LOAD of a model while a copy is there that was pinned;
// - a LOAD while a copy leaves that a device came with and has no room for;
// - what follows a LOAD or UNLOAD of its model that is held back.
// Where the LOADs of a pinned model fail, its INFERs are not held back for ever, but refused: see in_vain().
bool Classed::must_wait(const Action& action, std::span<const Action> before) const {
  const auto held = [&](ModelId model) {
    return std::ranges::any_of(before, [&](const Action& each) {
      if (const auto* load = std::get_if<Load>(&each)) return load->model == model;
      if (const auto* unload = std::get_if<Unload>(&each)) return unload->model == model;
      return false;
    });
  };
  if (const auto* infer = std::get_if<Infer>(&action)) {
    const Model& m = models_[infer->model.index()];
    if (m.info->pages == 0) return false;
    if (held(infer->model)) return true;
    if (!m.pinned) return false;
    const Copy* c = find(devices_[infer->device.index()], infer->model);
    return c == nullptr || (c->residence != Residence::loaded && c->failures < patience);
  }
  if (const auto* load = std::get_if<Load>(&action)) {
    const Device& d = devices_[load->device.index()];
    const Copy* c = find(d, load->model);
    return d.taken > d.reserved || held(load->model) || (c != nullptr && c->residence != Residence::absent);
  }
  if (const auto* unload = std::get_if<Unload>(&action)) {
    return held(unload->model) || own_users(unload->device, unload->model) > 0;
  }
  return false;
}

// An INFER of a pinned model whose LOADs fail there: the device would refuse it.
bool Classed::in_vain(const Infer& infer) const {
  const Model& m = models_[infer.model.index()];
  if (!m.pinned || m.info->pages == 0) return false;
  const Copy* c = find(devices_[infer.device.index()], infer.model);
  return c == nullptr || (c->residence != Residence::loaded && c->residence != Residence::loading);
}

// What the policy sent will not be: to it, the device says so.
void Classed::refused(ActionId action, ActionStatus status, TimePoint now) {
  returned_.push_back({.id = action, .status = status, .start = now, .end = now, .duration = {}});
}

void Classed::release(DeviceId id, Orders& out) {
  Device& d = devices_[id.index()];
  std::size_t kept = 0;
  for (std::size_t i = 0; i < d.held.size(); ++i) {
    if (must_wait(d.held[i], std::span(d.held).first(kept))) {
      if (kept != i) std::swap(d.held[kept], d.held[i]);
      ++kept;
      continue;
    }
    --held_;
    if (const auto* infer = std::get_if<Infer>(&d.held[i]); infer != nullptr && in_vain(*infer)) {
      refused(infer->id, ActionStatus::not_loaded, out.time());
      continue;
    }
    pass(std::move(d.held[i]), out);
  }
  d.held.erase(d.held.begin() + static_cast<std::ptrdiff_t>(kept), d.held.end());
}

// What is held back of the model's and will not be sent: as if the device had refused it.
template <typename Which>
void Classed::return_held(ModelId model, TimePoint now, Which&& which) {
  for (Device& d : devices_)
    std::erase_if(d.held, [&](const Action& held) {
      const auto* infer = std::get_if<Infer>(&held);
      const auto* load = std::get_if<Load>(&held);
      if (infer == nullptr && load == nullptr) return false;
      if ((infer != nullptr ? infer->model : load->model) != model || !which(infer)) return false;
      refused(infer != nullptr ? infer->id : load->id, ActionStatus::too_late, now);
      --held_;
      return true;
    });
}

// The policy's order is on its way.
void Classed::pass(Action order, Orders& out) {
  const Action& given = out.give(std::move(order));
  if (const auto* infer = std::get_if<Infer>(&given); infer != nullptr && follows(infer->id)) {
    ++devices_[infer->device.index()].normal;
    update_urgent(infer->device);
  } else if (const auto* load = std::get_if<Load>(&given))
    reside(load->device, load->model, Residence::loading);
  else if (const auto* unload = std::get_if<Unload>(&given))
    reside(unload->device, unload->model, Residence::unloading);
}

bool Classed::current(const ledger::Ledger::Action& action) const {
  const Copy* c = find(devices_[action.device.index()], action.model);
  return action.version == ledger_->model(action.model).version &&
         (c == nullptr || !c->pin || models_[action.model.index()].pinned);
}

// The requests of our own INFERs that went with a device, by their ids.
std::vector<std::uint32_t> Classed::lost_with(DeviceId device) {
  std::vector<std::uint32_t> lost;
  for (const std::uint32_t at : ledger_->changes().lost) {
    const auto& run = ledger_->at(at);
    if (run.device != device || !owns(run.id)) continue;
    for (const RequestId request : run.requests) lost.push_back(*kept_by_id_.find(request));
    if (run.cls == Class::best_effort && current(run)) give_turn_back(run.model, run.expected);
  }
  std::ranges::sort(lost, {}, [&](std::uint32_t index) { return kept_[index].request.id; });
  return lost;
}

std::uint64_t Classed::pinned_pages() const {
  std::uint64_t pages = 0;
  for (const Model& m : models_)
    if (m.pinned) pages += m.info->pages;
  return pages;
}

// Beside those that are pinned, in what every device keeps for that.
bool Classed::fits(const Model& model) const {
  if (!pinnable(model) || !chosen_) return false;
  const std::uint64_t pages = pinned_pages() + model.info->pages;
  return std::ranges::all_of(devices_, [&](const Device& d) { return !d.alive || pages <= d.reserved; });
}

// Which models are best pinned where the smallest device has so many pages: see the class's comment.
std::vector<ModelId> Classed::choose_pins(std::uint64_t pages) const {
  std::vector<ModelId> chosen;
  std::vector<bool> is_chosen(models_.size());
  std::uint64_t taken = 0;
  for (const Class cls : {Class::real_time, Class::best_effort})
    for (std::uint32_t i = 0; i < models_.size(); ++i) {
      const Model& m = models_[i];
      if (!pinnable(m) || m.info->cls != cls) continue;
      std::uint64_t largest = 0, normal = 0;
      for (std::uint32_t j = 0; j < models_.size(); ++j) {
        const Model& other = models_[j];
        if (j == i || is_chosen[j] || !other.served) continue;
        largest = std::max(largest, other.info->pages);
        normal += other.info->cls == Class::normal ? other.info->pages : 0;
      }
      const std::uint64_t beside = cls == Class::best_effort ? std::max(normal, largest) : largest;
      if (taken + m.info->pages + beside > pages) continue;
      taken += m.info->pages;
      is_chosen[i] = true;
      chosen.push_back(model_of(i));
    }
  return chosen;
}

void Classed::tell(ModelId model, Orders& out) {
  const Model& m = models_[model.index()];
  ModelChanged told{model, m.served ? m.info : nullptr};
  if (m.pinned) {
    ModelInfo info = *m.info;
    info.pages = 0;
    info.load = Duration{0};
    told.info = std::make_shared<const ModelInfo>(std::move(info));
  }
  ask(told, out);
}

// O(devices, and where it goes also requests).
void Classed::change(const ModelChanged& change, bool may_be_pinned, Orders& out) {
  const ModelId model = change.model;
  if (model.index() >= models_.size()) models_.resize(model.index() + 1);
  Model& m = models_[model.index()];
  m.served = change.info != nullptr;
  if (change.info) m.info = change.info;
  m.pinned = false;
  m.pinned = may_be_pinned && fits(m);
  m.places.clear();
  follows_ = follows_ || m.pinned;
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    if (!devices_[i].alive) continue;
    if (const Copy* c = find(devices_[i], model); c != nullptr && c->residence == Residence::loaded)
      copy(device_of(i), model).residence = Residence::leaving;
    untended_.emplace_back(device_of(i), model);
    unfilled_.push_back(device_of(i));
  }
  return_held(model, out.time(), [](const Infer*) { return true; });
  tell(model, out);
  if (!m.served) {
    std::vector<std::uint32_t> refused;
    for (std::uint32_t i = 0; i < kept_.size(); ++i) {
      const Kept& k = kept_[i];
      const std::uint32_t* found = kept_by_id_.find(k.request.id);
      if (found != nullptr && *found == i && k.request.model == model &&
          ledger_->request(k.request.id)->action == ledger::Ledger::none)
        refused.push_back(i);
    }
    std::ranges::sort(refused, {}, [&](std::uint32_t index) { return kept_[index].request.id; });
    for (const std::uint32_t index : refused) refuse_waiting(index, Reason::no_model, TimePoint::max(), out);
    return;
  }
  if (somewhere(m)) unhand(m);
  // What waits waits for this version.
  update_cold(model);
  update_patient(model);
  if (somewhere(m) || !m.pinned) requeue(model, out);
}

}  // namespace carillon::schedule
