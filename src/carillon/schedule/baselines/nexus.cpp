#include "carillon/schedule/baselines/nexus.h"

#include <algorithm>
#include <cmath>

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
                                         const std::vector<symphony::ModelMachine>& machines) {
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
      if (backends.size() > 1'000'000) return backends;
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
    Node best_merged;
    for (Node& node : nodes) {
      Node merged{.cycle = std::min(node.cycle, next.cycle)};
      double time = 0;
      for (const Backend* from : {&node.sessions, &next.sessions})
        for (Session session : *from) {
          const std::size_t m = session.model.index();
          time += time_in(session, merged.cycle, slos[m], machines[m], session.batch);
          merged.sessions.push_back(session);
        }
      merged.busy = time / merged.cycle;
      if (merged.busy > 1) continue;
      if (best == nullptr || merged.busy > best_merged.busy) {
        best = &node;
        best_merged = std::move(merged);
      }
    }
    if (best != nullptr)
      *best = std::move(best_merged);
    else
      nodes.push_back(std::move(next));
  }
  for (Node& node : nodes) backends.push_back(std::move(node.sessions));
  return backends;
}

void Nexus::add_model(const ModelInfo& model) {
  Central::add_model(model);
  machines_.emplace_back(model, fleet_.environment());
  models_.emplace_back();
}

void Nexus::device_changed(TimePoint now) {
  // What is planned for a device that went, or before one came, no longer holds.
  if (last_plan_ == TimePoint::min()) {
    next_plan_ = std::max(next_plan_, now + first_);
    std::vector<Backend> all(fleet_.alive_count());
    for (Backend& backend : all)
      for (std::size_t m = 0; m < machines_.size(); ++m) {
        const auto& machine = machines_[m];
        backend.push_back(
            {ModelId{static_cast<std::uint32_t>(m)}, machine.batch_size(machine.batch_count() - 1), 1});
      }
    install(all, now);
  } else {
    plan(now);
  }
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
    rates.push_back(std::max(0.5, static_cast<double>(models_[m].arrived)) / seconds);
    slos.push_back(models_[m].slo > Duration{0} ? models_[m].slo : Duration{1s});
    total += static_cast<double>(models_[m].arrived);
    for (int i = 0; i < machines_[m].batch_count(); ++i)
      machines_[m].set_exec(i, fleet_.exec(ModelId{static_cast<std::uint32_t>(m)}, i));
  }
  if (total == 0 && last_plan_ != TimePoint::min() && now - last_plan_ < epoch_) {
    // Too soon to know better: the old rates on the devices there are.
    for (std::size_t m = 0; m < models_.size(); ++m) {
      rates[m] = 0.5;
      for (const std::uint32_t slot : models_[m].slots) rates[m] += slots_[slot].session.rate;
    }
  }
  const std::size_t devices = fleet_.alive_count();
  const auto packed = [&](double scale) {
    std::vector<double> scaled = rates;
    for (double& r : scaled) r *= scale;
    return squishy_bin_packing(scaled, slos, machines_);
  };
  double low = 1e-4, high = 1;
  while (high < 1e4 && packed(high).size() <= devices) high *= 2;
  for (int i = 0; i < 16; ++i) {
    const double middle = std::sqrt(low * high);
    (packed(middle).size() <= devices ? low : high) = middle;
  }
  std::vector<Backend> backends = packed(low);
  if (devices > 0 &&
      backends.size() > devices) {  // more models than devices can be dealt by duty cycles: share
    for (std::size_t i = devices; i < backends.size(); ++i)
      for (const Session& session : backends[i]) backends[i % devices].push_back(session);
    backends.resize(devices);
  }
  install(backends, now);
  for (Model& m : models_) m.arrived = 0;
  last_plan_ = now;
  next_plan_ = now + epoch_;
}

// Puts the backends onto the devices that are alive, and what waits onto the backends.
void Nexus::install(const std::vector<Backend>& backends, TimePoint now) {
  std::vector<Request> waiting;
  for (Slot& slot : slots_)
    waiting.insert(waiting.end(), slot.machine.queue().begin(), slot.machine.queue().end());
  for (std::uint32_t i = 0; i < slots_.size(); ++i) expiry_.remove(i);
  slots_.clear();
  for (Model& m : models_) m.slots.clear();
  backends_.assign(fleet_.device_count(), {});
  turn_.assign(fleet_.device_count(), 0);
  std::size_t next = 0;
  for (std::uint32_t d = 0; d < backends_.size() && next < backends.size(); ++d) {
    if (!fleet_.alive(DeviceId{d})) continue;
    for (const Session& session : backends[next]) {
      Slot slot{.device = d, .session = session, .machine = machines_[session.model.index()]};
      slot.machine.set_target(session.batch);
      const auto index = static_cast<std::uint32_t>(slots_.size());
      slots_.push_back(std::move(slot));
      backends_[d].push_back(index);
      models_[session.model.index()].slots.push_back(index);
    }
    ++next;
  }
  // A model without a backend would never run.
  for (std::size_t m = 0; m < models_.size(); ++m) {
    if (!models_[m].slots.empty()) continue;
    for (std::uint32_t d = 0; d < backends_.size(); ++d) {
      if (!fleet_.alive(DeviceId{d})) continue;
      const auto index = static_cast<std::uint32_t>(slots_.size());
      slots_.push_back({.device = d,
                        .session = {ModelId{static_cast<std::uint32_t>(m)}, 1, 1e-3},
                        .machine = machines_[m]});
      backends_[d].push_back(index);
      models_[m].slots.push_back(index);
      break;
    }
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const Request& a, const Request& b) { return a.id < b.id; });
  for (const Request& request : waiting) {
    --models_[request.model.index()].arrived;
    enqueue(request, now);
  }
}

void Nexus::enqueue(const Request& request, TimePoint) {
  Model& model = models_[request.model.index()];
  ++model.arrived;
  if (request.deadline < TimePoint::max()) model.slo = request.deadline - request.arrival;
  // Smooth weighted round robin; a device that lacks the weights only where none has them.
  std::uint32_t best = 0;
  bool found = false, best_loaded = false;
  double total = 0;
  for (const std::uint32_t i : model.slots) {
    Slot& slot = slots_[i];
    slot.credit += slot.session.rate;
    total += slot.session.rate;
    const bool loaded = fleet_.loaded(DeviceId{slot.device}, request.model);
    if (!found || (loaded && !best_loaded) || (loaded == best_loaded && slot.credit > slots_[best].credit)) {
      best = i;
      best_loaded = loaded;
      found = true;
    }
  }
  if (!found || !best_loaded) {  // the plan put it where it is not: a device that has it serves it meanwhile
    for (std::uint32_t d = 0; d < backends_.size(); ++d) {
      if (!fleet_.loaded(DeviceId{d}, request.model)) continue;
      best = static_cast<std::uint32_t>(slots_.size());
      slots_.push_back(
          {.device = d, .session = {request.model, 1, 1e-3}, .machine = machines_[request.model.index()]});
      backends_[d].push_back(best);
      model.slots.push_back(best);
      found = true;
      break;
    }
  }
  if (!found) {  // no device is alive; Central refuses it when that is sure
    best = static_cast<std::uint32_t>(slots_.size());
    slots_.push_back(
        {.device = 0, .session = {request.model, 1, 1e-3}, .machine = machines_[request.model.index()]});
    model.slots.push_back(best);
    if (!backends_.empty()) backends_[0].push_back(best);
  }
  slots_[best].credit -= total;
  slots_[best].machine.enqueue(request);
  expiry_.set(best, slots_[best].machine.queue().front().deadline);
}

bool Nexus::remove(RequestId id, ModelId model) {
  for (const std::uint32_t i : models_[model.index()].slots) {
    if (!slots_[i].machine.remove(id)) continue;
    const auto& queue = slots_[i].machine.queue();
    queue.empty() ? expiry_.remove(i) : expiry_.set(i, queue.front().deadline);
    return true;
  }
  return false;
}

void Nexus::take_all(ModelId model, std::vector<Request>& taken) {
  for (const std::uint32_t i : models_[model.index()].slots) {
    const auto& queue = slots_[i].machine.queue();
    taken.insert(taken.end(), queue.begin(), queue.end());
    slots_[i].machine.clear();
    expiry_.remove(i);
  }
}

TimePoint Nexus::waiting_since(ModelId model) const {
  TimePoint since = TimePoint::max();
  for (const std::uint32_t i : models_[model.index()].slots)
    if (!slots_[i].machine.queue().empty())
      since = std::min(since, slots_[i].machine.queue().front().arrival);
  return since;
}

void Nexus::step(TimePoint now, Actions& out) {
  if (now >= next_plan_ && fleet_.alive_count() > 0) plan(now);
  while (expiry_.top_at() <= now) {
    const std::uint32_t i = expiry_.top();
    const Request head = slots_[i].machine.queue().front();
    remove(head.id, head.model);
    refuse(head, now, out);
    fleet_.set_waiting(head.model, waiting_since(head.model));
  }
  // Only devices with something to do are looked at: those of the slots that wait.
  for (std::uint32_t d = 0; d < backends_.size(); ++d)
    if (ready(DeviceId{d}, now)) run(d, now, out);
}

void Nexus::run(std::uint32_t d, TimePoint now, Actions& out) {
  const DeviceId device{d};
  const auto& backend = backends_[d];
  for (std::size_t k = 0; k < backend.size() && ready(device, now); ++k) {
    const std::uint32_t i = backend[turn_[d] % backend.size()];
    turn_[d] = (turn_[d] + 1) % backend.size();
    Slot& slot = slots_[i];
    const ModelId model = slot.session.model;
    if (slot.machine.queue().empty()) continue;
    if (!fleet_.loaded(device, model)) {
      // Elsewhere, if it is there.
      for (std::uint32_t other = 0; other < backends_.size(); ++other)
        if (fleet_.loaded(DeviceId{other}, model)) {
          moved_.assign(slot.machine.queue().begin(), slot.machine.queue().end());
          slot.machine.clear();
          expiry_.remove(i);
          const std::vector<Request> moving = moved_;
          for (const Request& request : moving) {
            --models_[model.index()].arrived;
            enqueue(request, now);
          }
          break;
        }
      continue;
    }
    dropped_.clear();
    auto batch = slot.machine.granted(now, fleet_.free_at(device, now), dropped_);
    for (const Request& request : dropped_) refuse(request, now, out);
    if (slot.machine.queue().empty())
      expiry_.remove(i);
    else
      expiry_.set(i, slot.machine.queue().front().deadline);
    if (batch) {
      const TimePoint earliest = std::max(now, batch->exec_at - fleet_.environment().dispatch);
      fleet_.send(device, model, batch->index, std::move(batch->requests),
                  {earliest, std::max(earliest, batch->latest)}, now, out);
    }
    fleet_.set_waiting(model, waiting_since(model));
  }
}

TimePoint Nexus::wake_at(TimePoint now) const {
  TimePoint at = expiry_.top_at();
  if (expiry_.empty()) return TimePoint::max();  // nobody waits: the next arrival plans, if it is due
  at = std::min(at, next_plan_);
  if (fleet_.environment().dispatch > Duration{0})
    for (std::uint32_t d = 0; d < backends_.size(); ++d)
      if (!backends_[d].empty()) at = std::min(at, ready_at(DeviceId{d}, now));
  return at;
}

}  // namespace carillon::schedule::baselines
