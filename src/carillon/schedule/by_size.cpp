#include "carillon/schedule/by_size.h"

#include <algorithm>
#include <set>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::schedule {

TimePoint BySize::decide(const Event& event, TimePoint now, Actions& out) {
  const std::size_t before = out.size();
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    const Model& model = models_[arrival->request.model.index()];
    if (model.inner == arrival->request.model && !model.tells_apart(arrival->request))
      ask(event, now, out);  // as it is
    else
      arrived(*arrival, now, out);
  } else if (const auto* change = std::get_if<ModelChanged>(&event)) {
    model_changed(*change, now, out);
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    times_changed(*times, now, out);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    RequestCancelled inner = *gone;
    const Open* open = open_.find(gone->request);
    inner.model = open != nullptr ? open->inner : models_[gone->model.index()].inner;
    close(gone->request);
    ask(inner, now, out);
  } else if (const auto* sample = std::get_if<RequestProfiled>(&event)) {
    RequestProfiled inner = *sample;
    inner.model = models_[sample->model.index()].inner;
    ask(inner, now, out);
  } else if (const auto* device = std::get_if<DeviceChanged>(&event)) {
    device_changed(device->device);
    DeviceChanged inner = *device;
    for (ModelId& model : inner.held) model = models_[model.index()].inner;
    ask(inner, now, out);
  } else {
    if (const auto* report = std::get_if<ActionDone>(&event)) done(*report);
    ask(event, now, out);
  }
  name_anew(before, out);
  return wake_;
}

bool BySize::load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) {
  const std::size_t before = out.size();
  LoadAhead inner = wanted;
  inner.model = models_[wanted.model.index()].inner;
  for (ModelId& model : inner.instead) model = models_[model.index()].inner;
  const bool does = Around::load_ahead(inner, now, out);
  name_anew(before, out);
  return does;
}

// Orders from that place on are in the policy's names of models.
void BySize::name_anew(std::size_t from, Actions& out) {
  for (std::size_t i = from; i < out.size(); ++i) {
    if (auto* infer = std::get_if<Infer>(&out[i])) {
      follow(*infer);
    } else if (auto* load = std::get_if<Load>(&out[i])) {
      load->model = origins_[load->model.index()].model;
    } else if (auto* unload = std::get_if<Unload>(&out[i])) {
      unload->model = origins_[unload->model.index()].model;
    } else if (auto* profile = std::get_if<Profile>(&out[i])) {
      profile->model = origins_[profile->model.index()].model;
    } else if (const auto* refuse = std::get_if<Refuse>(&out[i])) {
      close(refuse->request);
    }
  }
}

void BySize::ask(const Event& event, TimePoint now, Actions& out) {
  wake_ = policy_->decide(event, now, out);
}

void BySize::model_changed(const ModelChanged& change, TimePoint now, Actions& out) {
  const bool comes_first = change.model.index() == models_.size();
  if (comes_first) {
    models_.push_back({.info = nullptr,
                       .inner = ModelId{static_cast<std::uint32_t>(origins_.size())},
                       .fit = {},
                       .classes = {}});
    origins_.push_back({change.model});
  }
  Model& model = models_[change.model.index()];
  model.info = change.info;
  ++model.version;
  if (!change.info) {
    ask(ModelChanged{model.inner, nullptr}, now, out);
    for (const SizeClass& each : model.classes) ask(ModelChanged{each.inner, nullptr}, now, out);
    return;
  }
  model.fit = {};
  model.times.assign(change.info->batches.size(), 0);
  learn_seeds(model);
  ModelInfo info = *change.info;
  info.id = model.inner;
  info.sizes.clear();
  ask(model_comes(info), now, out);
  for (SizeClass& each : model.classes) {
    each.ran = false;
    tell(model, each, now, out);
  }
}

// Of the sizes whose seed changed, the times that were measured before are taken to have changed alike, and
// what ran of them is forgotten; classes are told what is predicted now.
void BySize::times_changed(const TimesChanged& change, TimePoint now, Actions& out) {
  Model& model = models_[change.model.index()];
  if (!model.info) return;
  const std::vector<BatchProfile>& before = model.info->batches;
  CARILLON_ASSERT(same_sizes(before, change.batches));
  auto info = std::make_shared<ModelInfo>(*model.info);
  info->batches = change.batches;
  std::vector<bool> changed(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Duration was = before[i].exec, is = change.batches[i].exec;
    changed[i] = was != is;
    if (!changed[i]) continue;
    ++model.times[i];
    model.fit.forget(before[i].batch);
    for (SizeTime& size : info->sizes) {
      if (size.batch != before[i].batch) continue;
      const double factor = static_cast<double>(is.count()) / static_cast<double>(was.count());
      size.exec = was > Duration{0} ? from_ns(static_cast<double>(size.exec.count()) * factor) : is;
      learn_seed(model, size);
    }
  }
  model.info = std::move(info);
  ask(TimesChanged{model.inner, change.batches}, now, out);
  for (SizeClass& each : model.classes) {
    std::vector<BatchProfile> seeds = predicted(model, each);
    for (std::size_t i = 0; i < seeds.size(); ++i)
      if (!changed[i]) seeds[i] = each.seeds[i];
    each.seeds = seeds;
    ask(TimesChanged{each.inner, std::move(seeds)}, now, out);
  }
}

std::uint64_t BySize::times_of(const Model& model, int rows) {
  if (!model.info) return 0;
  const auto found = std::ranges::find(model.info->batches, rows, &BatchProfile::batch);
  return found == model.info->batches.end()
             ? 0
             : model.times[static_cast<std::size_t>(found - model.info->batches.begin())];
}

void BySize::learn_seeds(Model& model) {
  for (const SizeTime& seed : model.info->sizes) learn_seed(model, seed);
}

void BySize::learn_seed(Model& model, const SizeTime& seed) {
  Effort effort;
  for (int i = 0; i < seed.batch; ++i) effort += seed.row;
  if (seed.exec > Duration{0}) model.fit.add({.runs = 1, .rows = seed.batch, .effort = effort}, seed.exec);
}

// The times that are predicted for a class. What rows of one size take as one run is told: a batch of several
// takes longer, and is measured.
std::vector<BatchProfile> BySize::predicted(const Model& model, const SizeClass& as) {
  std::vector<BatchProfile> batches = model.info->batches;
  for (BatchProfile& b : batches) {
    Effort effort;
    for (int i = 0; i < b.batch; ++i) effort += as.effort;
    const Duration exec = model.fit.expected({.runs = 1, .rows = b.batch, .effort = effort});
    if (exec > Duration{0}) b.exec = exec;
  }
  return batches;
}

// The class as a model.
void BySize::tell(const Model& model, SizeClass& as, TimePoint now, Actions& out) {
  as.told = model.fit.measurements();
  as.seeds = predicted(model, as);
  ModelInfo info = *model.info;
  info.id = as.inner;
  info.weights_of = model.inner;
  info.sizes.clear();
  info.batches = as.seeds;
  ask(model_comes(info), now, out);
}

BySize::SizeClass& BySize::class_of(Model& model, const Effort& effort, TimePoint now, Actions& out) {
  const int step = profile::size_step(effort);
  auto& classes = model.classes;
  auto found = std::ranges::find(classes, step, &SizeClass::step);
  if (found == classes.end() && classes.size() < options_.classes) {
    const ModelId outer = origins_[model.inner.index()].model;
    classes.push_back(
        {.inner = ModelId{static_cast<std::uint32_t>(origins_.size())}, .step = step, .effort = effort});
    origins_.push_back({outer, classes.size()});
    found = std::prev(classes.end());
    tell(model, *found, now, out);
  }
  if (found == classes.end()) {
    // The one that was used the longest ago, of those that nothing uses.
    for (auto each = classes.begin(); each != classes.end(); ++each)
      if (each->open == 0 && each->flying == 0 && (found == classes.end() || each->used < found->used))
        found = each;
    if (found != classes.end()) {
      found->step = step;
      found->effort = effort;
      found->ran = false;
      tell(model, *found, now, out);
    } else {
      // All are in use: the next above it, which expects too much of it, else the largest.
      for (auto each = classes.begin(); each != classes.end(); ++each) {
        const bool above = each->step >= step;
        const bool best_above = found != classes.end() && found->step >= step;
        if (found == classes.end() || (above && (!best_above || each->step < found->step)) ||
            (!above && !best_above && each->step > found->step))
          found = each;
      }
    }
  }
  if (effort.size() > found->effort.size()) found->effort = effort;
  found->used = ++uses_;
  return *found;
}

void BySize::arrived(RequestArrived arrival, TimePoint now, Actions& out) {
  Request& request = arrival.request;
  Model& model = models_[request.model.index()];
  request.model = model.inner;
  if (model.tells_apart(request)) {
    SizeClass& as = class_of(model, request.effort, now, out);
    const bool unused = as.open == 0 && as.flying == 0;
    if (!as.ran && unused && as.told != model.fit.measurements()) tell(model, as, now, out);
    ++as.open;
    request.model = as.inner;
    open_.insert(request.id, {.inner = as.inner, .effort = request.effort});
  }
  ask(arrival, now, out);
}

void BySize::follow(Infer& infer) {
  const Origin origin = origins_[infer.model.index()];
  if (origin.size_class > 0) {
    Flight flight{.inner = infer.model, .device = infer.device, .requests = infer.requests, .run = {}};
    flight.run.rows = static_cast<int>(infer.requests.size());
    std::set<Effort> sizes;
    for (const RequestId id : infer.requests) {
      const Open* open = open_.find(id);
      if (open == nullptr) continue;
      flight.run.effort += open->effort;
      sizes.insert(open->effort);
    }
    flight.run.runs = std::max(1, static_cast<int>(sizes.size()));
    ++models_[origin.model.index()].classes[origin.size_class - 1].flying;
    flight.version = models_[origin.model.index()].version;
    flight.times = times_of(models_[origin.model.index()], flight.run.rows);
    flights_.emplace(infer.id, std::move(flight));
  }
  infer.planned_as = std::exchange(infer.model, origin.model);
}

void BySize::done(const ActionDone& done) {
  const auto found = flights_.find(done.id);
  if (found == flights_.end()) return;
  const Flight flight = std::move(found->second);
  flights_.erase(found);
  const Origin origin = origins_[flight.inner.index()];
  Model& model = models_[origin.model.index()];
  SizeClass& as = model.classes[origin.size_class - 1];
  --as.flying;
  if (done.status != ActionStatus::success) return;
  // One of a version of before, or of plans of before, says nothing of this one.
  const bool current = flight.version == model.version && flight.times == times_of(model, flight.run.rows);
  as.ran = as.ran || current;
  if (current && model.sized() && done.duration > Duration{0}) model.fit.add(flight.run, done.duration);
  for (const RequestId id : flight.requests) close(id);
}

// What it had is not reported any more.
void BySize::device_changed(DeviceId device) {
  for (auto each = flights_.begin(); each != flights_.end();) {
    const Origin origin = origins_[each->second.inner.index()];
    const bool gone = each->second.device == device;
    if (gone) --models_[origin.model.index()].classes[origin.size_class - 1].flying;
    each = gone ? flights_.erase(each) : std::next(each);
  }
}

// The request has its outcome.
void BySize::close(RequestId request) {
  const auto open = open_.erase(request);
  if (!open) return;
  const Origin origin = origins_[open->inner.index()];
  --models_[origin.model.index()].classes[origin.size_class - 1].open;
}

}  // namespace carillon::schedule
