#include "carillon/schedule/baselines/nexus.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace carillon::schedule::baselines {
namespace {

// A backend while it is packed: its sessions share one duty cycle.
struct Node {
  Backend sessions;
  double cycle = 0;  // seconds
  double busy = 0;   // of the cycle
};

// What a session takes of a cycle: the batch that comes together in it, and its time; infinite where that
// does not do.
double time_in(const Session& session, double cycle, Duration slo, const symphony::ModelMachine& machine,
               int& batch) {
  batch = std::max(1, static_cast<int>(std::ceil(cycle * session.rate - 1e-9)));
  if (batch > machine.batch_size(machine.batch_count() - 1)) return INFINITY;
  const double time = to_seconds(machine.span(machine.index_for(static_cast<std::size_t>(batch))));
  return cycle + time > to_seconds(slo) + 1e-12 ? INFINITY : time;
}

// The largest place whose batch size `fits`; 0 where none does.
template <typename Fits>
int largest_index(const symphony::ModelMachine& machine, Fits&& fits) {
  int best = 0;
  for (int i = 0; i < machine.batch_count(); ++i)
    if (fits(i)) best = i;
  return best;
}

}  // namespace

std::vector<Backend> squishy_bin_packing(const std::vector<double>& rates, const std::vector<Duration>& slos,
                                         const std::vector<symphony::ModelMachine>& machines,
                                         std::size_t limit) {
  std::vector<Backend> backends;
  std::vector<Node> residual;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (rates[i] <= 0) continue;
    const ModelId model{static_cast<std::uint32_t>(i)};
    const auto& machine = machines[i];
    const int full = largest_index(machine, [&](int k) { return 2 * machine.span(k) <= slos[i]; });
    const int size = machine.batch_size(full);
    const double throughput = size / to_seconds(machine.exec(full));
    double rate = rates[i];
    while (rate >= throughput) {
      backends.push_back({{model, size, throughput}});
      rate -= throughput;
      if (backends.size() > limit) return backends;
    }
    if (rate <= 1e-9) continue;
    const int index = largest_index(machine, [&](int k) {
      return to_seconds(machine.span(k)) + machine.batch_size(k) / rate <= to_seconds(slos[i]);
    });
    const int batch = machine.batch_size(index);
    // A lone request may not wait longer than its SLO allows, however seldom they come.
    const double most = std::max(1e-6, to_seconds(slos[i] - machine.span(index)));
    Node node{.sessions = {{model, batch, rate}}, .cycle = std::min(batch / rate, most)};
    node.busy = to_seconds(machine.exec(index)) / node.cycle;
    residual.push_back(std::move(node));
  }
  std::stable_sort(residual.begin(), residual.end(),
                   [](const Node& a, const Node& b) { return a.busy > b.busy; });
  std::vector<Node> nodes;
  for (Node& next : residual) {
    Node* best = nullptr;
    double best_busy = 0;
    for (Node& node : nodes) {
      const double cycle = std::min(node.cycle, next.cycle);
      double time = 0;
      for (const Backend* from : {&node.sessions, &next.sessions})
        for (auto session = from->begin(); session != from->end() && time <= cycle; ++session) {
          const std::size_t m = session->model.index();
          int batch = 0;
          time += time_in(*session, cycle, slos[m], machines[m], batch);
        }
      if (time > cycle || time / cycle > 1) continue;
      if (best == nullptr || time / cycle > best_busy) {
        best = &node;
        best_busy = time / cycle;
      }
    }
    if (best == nullptr) {
      nodes.push_back(std::move(next));
      if (backends.size() + nodes.size() > limit) break;
      continue;
    }
    best->cycle = std::min(best->cycle, next.cycle);
    best->busy = best_busy;
    best->sessions.insert(best->sessions.end(), next.sessions.begin(), next.sessions.end());
    for (Session& session : best->sessions) {
      const std::size_t m = session.model.index();
      time_in(session, best->cycle, slos[m], machines[m], session.batch);
    }
  }
  for (Node& node : nodes) backends.push_back(std::move(node.sessions));
  return backends;
}

void Nexus::add_model(const ModelInfo& model) {
  if (model.id.index() == models_.size()) {
    machines_.emplace_back(model, fleet_.environment());
    models_.emplace_back();
    return;
  }
  auto& machine = machines_[model.id.index()];
  machine = symphony::ModelMachine(model, fleet_.environment());
  const int largest = machine.batch_size(machine.batch_count() - 1);
  for (const std::uint32_t i : models_[model.id.index()].slots) {
    slots_[i].machine = machine;
    slots_[i].machine.set_target(std::min(slots_[i].session.batch, largest));
  }
}

void Nexus::device_changed(DeviceId, TimePoint now) {
  // What is planned for a device that went, or before one came, no longer holds.
  if (last_plan_ == TimePoint::min()) {
    next_plan_ = std::max(next_plan_, now + first_);
    install({}, now);
  } else {
    plan(now);
  }
}

// Batch sizes are planned anew at the next epoch.
void Nexus::times_changed(ModelId model, TimePoint) {
  auto& machine = machines_[model.index()];
  for (int i = 0; i < machine.batch_count(); ++i) {
    const Duration exec = fleet_.exec(model, i);
    machine.set_exec(i, exec);
    for (const std::uint32_t slot : models_[model.index()].slots) slots_[slot].machine.set_exec(i, exec);
  }
}

void Nexus::margins_changed() {
  for (auto& machine : machines_) machine.set_environment(fleet_.environment());
  for (Slot& slot : slots_) slot.machine.set_environment(fleet_.environment());
}

void Nexus::plan(TimePoint now) {
  const double seconds =
      to_seconds(last_plan_ == TimePoint::min() ? std::max<Duration>(first_, 1ms)
                                                : std::max<Duration>(now - last_plan_, 1ms));
  std::vector<double> rates;
  std::vector<Duration> slos;
  double total = 0;
  for (std::size_t m = 0; m < models_.size(); ++m) {
    // A model that was not asked for keeps a small place, so that it can be.
    const bool served = fleet_.served(ModelId{static_cast<std::uint32_t>(m)});
    rates.push_back(served ? std::max(0.5, static_cast<double>(models_[m].arrived)) / seconds : 0);
    slos.push_back(models_[m].slo > Duration{0} ? models_[m].slo : Duration{1s});
    total += static_cast<double>(models_[m].arrived);
    for (int i = 0; i < machines_[m].batch_count(); ++i)
      machines_[m].set_exec(i, fleet_.exec(ModelId{static_cast<std::uint32_t>(m)}, i));
  }
  if (total == 0 && last_plan_ != TimePoint::min() && now - last_plan_ < epoch_) {
    // Too soon to know better: the old rates on the devices there are.
    for (std::size_t m = 0; m < models_.size(); ++m) {
      if (rates[m] == 0) continue;
      rates[m] = 0.5;
      for (const std::uint32_t slot : models_[m].slots) rates[m] += slots_[slot].session.rate;
    }
  }
  const std::size_t devices = fleet_.alive_count();
  const auto scaled = [&](double scale) {
    std::vector<double> r = rates;
    for (double& rate : r) rate *= scale;
    return r;
  };
  const auto fits = [&](double scale) {
    return squishy_bin_packing(scaled(scale), slos, machines_, devices).size() <= devices;
  };
  double low = 1e-4, high = 1;
  while (high < 1e4 && fits(high)) high *= 2;
  for (int i = 0; i < 16; ++i) {
    const double middle = std::sqrt(low * high);
    (fits(middle) ? low : high) = middle;
  }
  std::vector<Backend> backends = squishy_bin_packing(scaled(low), slos, machines_);
  if (devices > 0 &&
      backends.size() > devices) {  // more models than devices can be dealt by duty cycles: share
    for (std::size_t i = devices; i < backends.size(); ++i)
      for (const Session& session : backends[i]) backends[i % devices].push_back(session);
    backends.resize(devices);
  }
  last_plan_ = now;  // from now on requests go where they are planned
  next_plan_ = now + epoch_;
  install(backends, now);
  for (Model& m : models_) m.arrived = 0;
}

// Puts the backends onto the devices that are alive, and what waits onto the backends. Without any, the
// models come onto the devices as they are asked for.
void Nexus::install(const std::vector<Backend>& backends, TimePoint now) {
  std::vector<Request> waiting;
  for (Slot& slot : slots_)
    waiting.insert(waiting.end(), slot.machine.queue().begin(), slot.machine.queue().end());
  expiry_ = {};
  slots_.clear();
  busy_.clear();
  for (Model& m : models_) {
    m.slots.clear();
    m.waiting.clear();
  }
  backends_.assign(fleet_.device_count(), {});
  std::size_t next = 0;
  for (std::uint32_t d = 0; d < backends_.size() && next < backends.size(); ++d) {
    if (!fleet_.alive(DeviceId{d})) continue;
    for (const Session& session : backends[next])
      slots_[add_slot(d, session)].machine.set_target(session.batch);
    ++next;
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const Request& a, const Request& b) { return a.id < b.id; });
  for (const Request& request : waiting) {
    --models_[request.model.index()].arrived;
    enqueue(request, now);
  }
}

std::uint32_t Nexus::add_slot(std::uint32_t device, const Session& session) {
  const auto index = static_cast<std::uint32_t>(slots_.size());
  auto& place = backends_[device].slots;
  slots_.push_back({.device = device,
                    .place = static_cast<std::uint32_t>(place.size()),
                    .session = session,
                    .machine = machines_[session.model.index()]});
  place.push_back(index);
  models_[session.model.index()].slots.push_back(index);
  return index;
}

// The backend that the next request of the model goes to.
std::uint32_t Nexus::choose_slot(ModelId id) {
  Model& model = models_[id.index()];
  const auto on = [&](std::uint32_t device) {
    // In turn, a device's place is mostly its own.
    if (device < model.slots.size() && slots_[model.slots[device]].device == device)
      return model.slots[device];
    for (const std::uint32_t i : model.slots)
      if (slots_[i].device == device) return i;
    const auto& machine = machines_[id.index()];
    const std::uint32_t added = add_slot(device, {id, machine.batch_size(machine.batch_count() - 1), 1});
    slots_[added].machine.set_target(slots_[added].session.batch);
    return added;
  };
  if (last_plan_ == TimePoint::min()) {  // in turn
    const auto count = static_cast<std::uint32_t>(backends_.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t device = (model.next_device + i) % count;
      if (!fleet_.loaded(DeviceId{device}, id)) continue;
      model.next_device = device + 1;
      return on(device);
    }
  }
  // Smooth weighted round robin; a device that lacks the weights only where none has them.
  std::optional<std::uint32_t> best;
  bool best_loaded = false;
  double total = 0;
  for (const std::uint32_t i : model.slots) {
    Slot& slot = slots_[i];
    slot.credit += slot.session.rate;
    total += slot.session.rate;
    const bool loaded = fleet_.loaded(DeviceId{slot.device}, id);
    if (!best || (loaded && !best_loaded) || (loaded == best_loaded && slot.credit > slots_[*best].credit)) {
      best = i;
      best_loaded = loaded;
    }
  }
  if (!best_loaded) {  // the plan put it where it is not: a device that has it serves it meanwhile
    std::uint32_t d = 0;
    while (d < backends_.size() && !fleet_.loaded(DeviceId{d}, id)) ++d;
    if (d < backends_.size())
      best = add_slot(d, {id, 1, 1e-3});
    else if (!best)  // nor is it anywhere: it waits here until it is, or Central refuses it
      best = add_slot(0, {id, 1, 1e-3});
  }
  slots_[*best].credit -= total;
  return *best;
}

void Nexus::enqueue(const Request& request, TimePoint) {
  Model& model = models_[request.model.index()];
  ++model.arrived;
  if (request.deadline < TimePoint::max()) model.slo = request.deadline - request.arrival;
  const std::uint32_t slot = choose_slot(request.model);
  slots_[slot].machine.enqueue(request);
  queue_changed(slot);
}

// Lists the slot as its queue is now.
void Nexus::queue_changed(std::uint32_t index) {
  Slot& slot = slots_[index];
  const auto& queue = slot.machine.queue();
  Device& device = backends_[slot.device];
  Model& model = models_[slot.session.model.index()];
  const TimePoint since = queue.empty() ? TimePoint::max() : queue.front().arrival;
  if (since != slot.since) {
    if (slot.since != TimePoint::max()) model.waiting.erase({slot.since, index});
    if (since != TimePoint::max()) model.waiting.insert({since, index});
    slot.since = since;
  }
  if (queue.empty()) {
    expiry_.remove(index);
    device.waiting.erase(slot.place);
    if (device.waiting.empty()) busy_.erase(slot.device);
  } else {
    expiry_.set(index, queue.front().deadline);
    device.waiting.insert(slot.place);
    busy_.insert(slot.device);
  }
}

bool Nexus::remove(RequestId id, ModelId model) {
  for (const auto& [since, i] : models_[model.index()].waiting) {
    if (!slots_[i].machine.remove(id)) continue;
    queue_changed(i);
    return true;
  }
  return false;
}

void Nexus::take_all(ModelId model, std::vector<Request>& taken) {
  for (const std::uint32_t i : models_[model.index()].slots) {
    const auto& queue = slots_[i].machine.queue();
    taken.insert(taken.end(), queue.begin(), queue.end());
    slots_[i].machine.clear();
    queue_changed(i);
  }
}

TimePoint Nexus::waiting_since(ModelId model) const {
  const auto& waiting = models_[model.index()].waiting;
  return waiting.empty() ? TimePoint::max() : waiting.begin()->first;
}

void Nexus::reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint) {
  if (done.status != ActionStatus::success || flight.outdated) return;
  const Duration exec = fleet_.exec(flight.model, flight.batch_index);
  auto& machine = machines_[flight.model.index()];
  if (machine.exec(flight.batch_index) == exec) return;
  machine.set_exec(flight.batch_index, exec);
  for (const std::uint32_t i : models_[flight.model.index()].slots)
    slots_[i].machine.set_exec(flight.batch_index, exec);
}

void Nexus::step(TimePoint now, Actions& out) {
  if (now >= next_plan_ && fleet_.alive_count() > 0) plan(now);
  while (expiry_.top_at() <= now) {
    const std::uint32_t i = expiry_.top();
    const Request head = slots_[i].machine.queue().front();
    slots_[i].machine.remove(head.id);
    queue_changed(i);
    refuse(head, now, out);
    tell_waiting(head.model);
  }
  // Devices that are ready and have something to do.
  for (std::uint32_t d = 0;;) {
    const auto ready = ready_devices().lower_bound(DeviceId{d});
    const auto busy = busy_.lower_bound(d);
    if (ready == ready_devices().end() || busy == busy_.end()) break;
    d = std::max(ready->value, *busy);
    if (ready->value != *busy) continue;
    run(d, now, out);
    ++d;
  }
}

// Once round from where it left off, as long as the device is ready.
void Nexus::run(std::uint32_t d, TimePoint now, Actions& out) {
  const DeviceId device{d};
  Device& backend = backends_[d];
  const auto first = static_cast<std::uint32_t>(backend.turn % backend.slots.size());
  bool wrapped = false;
  for (std::uint32_t from = first; ready(device, now);) {
    auto place = backend.waiting.lower_bound(from);
    if (place == backend.waiting.end() && !wrapped) {
      wrapped = true;
      place = backend.waiting.begin();
    }
    if (place == backend.waiting.end() || (wrapped && *place >= first)) {  // all had their turn
      backend.turn = first;
      return;
    }
    from = *place + 1;
    backend.turn = from % backend.slots.size();
    const std::uint32_t i = backend.slots[*place];
    const ModelId model = slots_[i].session.model;
    if (!fleet_.loaded(device, model)) {
      // Elsewhere, if it is there.
      std::uint32_t other = 0;
      while (other < backends_.size() && !fleet_.loaded(DeviceId{other}, model)) ++other;
      if (other == backends_.size()) continue;
      const std::vector<Request> moving(slots_[i].machine.queue().begin(), slots_[i].machine.queue().end());
      slots_[i].machine.clear();
      queue_changed(i);
      for (const Request& request : moving) {
        --models_[model.index()].arrived;
        enqueue(request, now);
      }
      continue;
    }
    dropped_.clear();
    auto batch = slots_[i].machine.granted(now, fleet_.free_at(device, now), dropped_);
    queue_changed(i);
    for (const Request& request : dropped_) refuse(request, now, out);
    if (batch) {
      const TimePoint earliest = std::max(now, batch->exec_at - fleet_.environment().dispatch);
      send(device, model, batch->index, std::move(batch->requests),
           {earliest, std::max(earliest, batch->latest)}, now, out);
    }
    tell_waiting(model);
  }
}

TimePoint Nexus::wake_at(TimePoint) const {
  if (expiry_.empty()) return TimePoint::max();  // nobody waits: the next arrival plans, if it is due
  return std::min({expiry_.top_at(), next_plan_, next_ready_at()});
}

}  // namespace carillon::schedule::baselines
