#include "carillon/schedule/fleet.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::schedule {

Fleet::Fleet(const Environment& environment)
    : mirror_({.by_device = false, .follows_reports = true}, environment),
      placement_(rate_window),
      pressing_(device_time) {}

void Fleet::model_changed(const ModelChanged& change, TimePoint now, Actions& out) {
  if (change.model.index() < models_.size()) {
    renew_model(change, now);
  } else {
    mirror_.model_changed(change);
    models_.emplace_back();
    placement_.add_model(change.info->batches.front().exec);
    pressing_.add_model();
    if (has_weights(change.model)) all_pages_ += change.info->pages;
  }
  if (mirror_.home(change.model) != change.model) return;
  find_scarce();
  if (change.info && change.info->pages > 0)
    for (std::size_t i = 0; i < devices_.size(); ++i)
      if (const DeviceId id{static_cast<std::uint32_t>(i)}; alive(id)) fill(id, now, out);
}

// All its copies are lost.
void Fleet::renew_model(const ModelChanged& change, TimePoint now) {
  const ModelId model = change.model;
  Model& m = models_[model.index()];
  if (mirror_.home(model) != model) {
    set_waiting(model, {});
    mirror_.model_changed(change);
    return;
  }
  if (served(model)) all_pages_ -= pages(model);
  for (std::size_t i = 0; scarce_ && i < devices_.size(); ++i) {
    const DeviceId id{static_cast<std::uint32_t>(i)};
    const Residence there = mirror_.residence(id, model);
    if (pages(model) > 0 && (there == Residence::loaded || there == Residence::loading))
      removed(model, id, now);
  }
  if (m.room_on != nowhere) {
    Device& d = devices_[m.room_on.index()];
    std::erase(d.coming, model);
    d.coming_pages -= pages(model);
  }
  set_wanted(model, false);
  pressing_.add_demand(model, -pressing_.demand(model));
  m = {};
  mirror_.model_changed(change);
  if (!change.info) return;
  all_pages_ += change.info->pages;
  placement_.renew_model(model, change.info->batches.front().exec);
}

void Fleet::times_changed(const TimesChanged& change, TimePoint now) {
  const Duration one = model(change.model).batches.front().exec;
  mirror_.times_changed(change, now);
  if (change.batches.front().exec != one) placement_.renew_model(change.model, change.batches.front().exec);
}

std::vector<Fleet::Flight> Fleet::device_changed(const DeviceChanged& change, TimePoint now, Actions& out) {
  const DeviceId id = change.device;
  if (devices_.size() == id.index()) {
    devices_.emplace_back();
    placement_.add_device();
    pressing_.add_device();
  }
  std::vector<ModelId> copies;
  for (std::uint32_t i = 0; id.index() < device_count() && i < models_.size(); ++i) {
    const Residence there = mirror_.residence(id, ModelId{i});
    if (has_weights(ModelId{i}) && (there == Residence::loaded || there == Residence::loading))
      copies.push_back(ModelId{i});
  }
  std::vector<Flight> lost;
  for (SentAction& infer : mirror_.device_changed(change, now))
    lost.push_back({.id = infer.id,
                    .device = id,
                    .model = infer.model,
                    .batch_index = infer.batch_index,
                    .batch = infer.batch,
                    .requests = std::move(infer.members),
                    .outdated = infer.outdated});
  for (const ModelId model : copies) left(model, id, now);
  Device& d = devices_[id.index()];
  for (const ModelId m : d.coming) models_[m.index()].room_on = nowhere;
  pressing_.set_alive(alive_count());
  d = Device{};
  const bool known = scarce_;  // else what is there is told where placement begins
  find_scarce();
  for (const ModelId model : change.held)
    if (known && scarce_) placed(model, id, now);
  if (alive(id)) fill(id, now, out);
  return lost;
}

// Of zero pages: on all devices, of which there is one.
bool Fleet::everywhere(ModelId model) const {
  return pages(model) == 0 && mirror_.can_hold(mirror_.home(model));
}

Duration Fleet::span(ModelId model, int batch_index) const {
  return environment().span(exec(model, batch_index));
}

int Fleet::batch_index(ModelId model, std::size_t requests) const {
  const auto& batches = mirror_.model(model).batches;
  // Often every size up to the largest has a plan.
  if (const std::size_t at = std::min(requests, batches.size()) - 1;
      static_cast<std::size_t>(batches[at].batch) == at + 1 &&
      (at + 1 == requests || at + 1 == batches.size()))
    return static_cast<int>(at);
  const auto above =
      std::upper_bound(batches.begin(), batches.end(), requests,
                       [](std::size_t n, const auto& b) { return n < static_cast<std::size_t>(b.batch); });
  CARILLON_ASSERT(above != batches.begin());
  return static_cast<int>(above - batches.begin()) - 1;
}

ActionId Fleet::send(DeviceId id, ModelId model, int batch_index, std::vector<Request> requests,
                     Window window, TimePoint now, Actions& out) {
  CARILLON_ASSERT(loaded(id, model));
  const auto size = static_cast<std::size_t>(batch_size(model, batch_index));
  CARILLON_ASSERT(requests.size() >= size);
  requests.resize(size);
  const Duration expected = exec(model, batch_index);
  std::vector<RequestId> ids;
  ids.reserve(size);
  for (const Request& r : requests) ids.push_back(r.id);
  const ActionId action = mirror_.begin_infer(id, model, batch_index, std::move(requests), window.earliest,
                                              expected, now, environment().dispatch, window.latest);
  out.emplace_back(Infer{action, id, model, std::move(ids), window, expected});
  return action;
}

void Fleet::stop(ActionId id, Actions& out) {
  if (const SentAction* infer = mirror_.sent(id)) out.emplace_back(Stop{id, infer->device});
}

Fleet::Report Fleet::finish(const ActionDone& done, TimePoint now, Actions& out) {
  auto sent = mirror_.finish(done, now);
  if (!sent) return {};
  if (sent->kind != ActionKind::infer) return moved(*sent, done, now, out);
  Report report{.flight = Flight{.id = done.id,
                                 .device = sent->device,
                                 .model = sent->model,
                                 .batch_index = sent->batch_index,
                                 .batch = sent->batch,
                                 .requests = std::move(sent->members),
                                 .outdated = sent->outdated,
                                 .other_times = sent->other_times,
                                 .estimates = sent->other_estimates},
                .loaded = {},
                .unloadable = {},
                .margins = sent->margins};
  if (sent->copy_lost) left(mirror_.home(sent->model), sent->device, now);
  if (done.status == ActionStatus::success && scarce_ && !sent->outdated && !sent->other_times &&
      pages(sent->model) > 0)
    placement_.served(mirror_.home(sent->model), report.flight->requests.size(), done.duration, now);
  if (!wanted_.empty()) load_next(sent->device, now, out);  // it may be evicted now
  return report;
}

void Fleet::doubt(const Request& request, TimePoint now) {
  doubted_ |= mirror_.doubt(request.model, request.deadline - request.arrival, now).margins;
}

}  // namespace carillon::schedule
