#include "carillon/controller/workloads.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

// A ticket names the service, too.
constexpr int service_bits = 20;
std::uint64_t ticket_of(std::uint64_t inner, std::size_t workload, int service) {
  return (inner << service_bits) | (workload << 1) | static_cast<std::uint64_t>(service);
}

void merge(const StepStatistics& more, StepStatistics& into) {
  into.count += more.count;
  into.total += more.total;
}

void merge(const ModelStatistics& more, ModelStatistics& into) {
  into.last_inference_ms = std::max(into.last_inference_ms, more.last_inference_ms);
  for (const auto member : {&ModelStatistics::inference_count, &ModelStatistics::execution_count,
                            &ModelStatistics::on_time, &ModelStatistics::late, &ModelStatistics::refused,
                            &ModelStatistics::shed, &ModelStatistics::cancelled, &ModelStatistics::failed,
                            &ModelStatistics::invalid, &ModelStatistics::loads, &ModelStatistics::unloads,
                            &ModelStatistics::profiled, &ModelStatistics::rows, &ModelStatistics::waiting})
    into.*member += more.*member;
  for (std::size_t i = 0; i < into.reasons.size(); ++i) into.reasons[i] += more.reasons[i];
  into.held_by.insert(into.held_by.end(), more.held_by.begin(), more.held_by.end());
  for (const auto member :
       {&ModelStatistics::success, &ModelStatistics::fail, &ModelStatistics::queue,
        &ModelStatistics::compute_input, &ModelStatistics::compute_infer, &ModelStatistics::compute_output})
    merge(more.*member, into.*member);
  for (const auto member :
       {&ModelStatistics::latency, &ModelStatistics::exec, &ModelStatistics::prediction_error})
    (into.*member).merge(more.*member);
  into.loaded = into.loaded || more.loaded;
  for (const ModelStatistics::Batch& batch : more.batches) {
    auto at = std::ranges::lower_bound(into.batches, batch.size, {}, &ModelStatistics::Batch::size);
    if (at == into.batches.end() || at->size != batch.size)
      at = into.batches.insert(at, {.size = batch.size});
    merge(batch.input, at->input);
    merge(batch.infer, at->infer);
    merge(batch.output, at->output);
  }
}

std::string share_text(const std::string& what, double share_pct) {
  return fmt::format("{}: {:g}% of the device", what, share_pct);
}

}  // namespace

void Workloads::add(const WorkloadSpec& spec, std::unique_ptr<Service> serving,
                    std::unique_ptr<Service> standby) {
  CARILLON_ASSERT(serving != nullptr && workloads_.size() < (std::size_t{1} << (service_bits - 1)));
  Workload& added = workloads_.emplace_back(spec);
  added.services = {std::move(serving), std::move(standby)};
  for (std::size_t i = 0; i < added.services.size(); ++i) {
    if (added.services[i] == nullptr) continue;
    const std::vector<ModelView> views = added.services[i]->models();
    CARILLON_ASSERT(views.size() == 1 && views.front().ready);
    added.models[i] = views.front().id;
    if (i > 0) continue;
    ModelView view = views.front();
    view.id = {static_cast<std::uint32_t>(workloads_.size() - 1)};
    directory_.put(std::move(view));
  }
}

void Workloads::add_unready(ModelView view) {
  view.ready = false;
  directory_.put(std::move(view));
}

bool Workloads::ready() const {
  for (const Workload& workload : workloads_)
    for (const auto& service : workload.services)
      if (service != nullptr && !service->ready()) return false;
  return true;
}

void Workloads::observe(Workload& workload, const InferAnswer& answer, TimePoint arrival,
                        TimePoint own_deadline) {
  const Duration slo = workload.spec.watch.slo;
  if (!answer.status) {
    const ErrorCode code = answer.status.error().code;
    if (code == ErrorCode::cancelled || code == ErrorCode::invalid_argument || code == ErrorCode::unavailable)
      return;
  }
  Duration latency = answer.status ? answer.finished - arrival : Duration::max();
  if (own_deadline != TimePoint::max()) {
    // Clients send what is left of the deadline when they send: a little less than the SLO is the SLO.
    const Duration asked = own_deadline - arrival;
    if (asked < slo - slo / 5) return;
    if (asked > slo && answer.status && answer.finished <= own_deadline) latency = std::min(latency, slo);
  }
  const std::lock_guard lock(workload.mutex);
  workload.watch.answered(latency);
  if (!workload.watch.look(clock_.now())) return;
  workload.active.store(1);
  if (on_takeover_) on_takeover_(workload.spec);
}

std::uint64_t Workloads::submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) {
  CARILLON_ASSERT(call != nullptr && call->model.index() < workloads_.size());
  const std::size_t index = call->model.index();
  Workload& workload = workloads_[index];
  const int active = workload.active.load();
  const auto service = static_cast<std::size_t>(active);
  call->model = workload.models[service];
  AnswerHandler watched = std::move(on_answer);
  const ModelId model{static_cast<std::uint32_t>(index)};
  auto answered = [this, &workload, model, watch = active == 0 && workload.services[1] != nullptr,
                   arrival = call->arrival, own = call->deadline,
                   then = std::move(watched)](InferAnswer answer) mutable {
    if (watch) observe(workload, answer, arrival, own);
    if (answer.call != nullptr) answer.call->model = model;
    then(std::move(answer));
  };
  return ticket_of(workload.services[service]->submit(std::move(call), std::move(answered)), index, active);
}

// All of them write into one.
const Journal* Workloads::journal() const {
  return workloads_.empty() ? nullptr : workloads_.front().services[0]->journal();
}

void Workloads::cancel(std::uint64_t ticket) {
  const std::uint64_t place = ticket & ((std::uint64_t{1} << service_bits) - 1);
  const std::size_t index = place >> 1;
  if (index >= workloads_.size()) return;
  const auto& service = workloads_[index].services[place & 1];
  if (service != nullptr) service->cancel(ticket >> service_bits);
}

Duration Workloads::expected(ModelId model, int rows) const {
  if (model.index() >= workloads_.size()) return Duration{0};
  const Workload& workload = workloads_[model.index()];
  const auto service = static_cast<std::size_t>(workload.active.load());
  return workload.services[service]->expected(workload.models[service], rows);
}

ServerStatistics Workloads::statistics() const {
  ServerStatistics out;
  for (const Workload& workload : workloads_) {
    std::optional<ModelStatistics> own;
    for (std::size_t i = 0; i < workload.services.size(); ++i) {
      const auto& service = workload.services[i];
      if (service == nullptr) continue;
      ServerStatistics told = service->statistics();
      const auto first_device = static_cast<std::uint32_t>(out.devices.size());
      for (DeviceStatistics& device : told.devices) {
        device.name = i == 0 ? share_text(workload.spec.id, workload.spec.share_pct)
                             : share_text(workload.spec.id + ", standby", workload.spec.standby_share_pct);
        out.devices.push_back(std::move(device));
      }
      for (ModelStatistics& model : told.models)
        for (DeviceId& device : model.held_by) device.value += first_device;
      out.open_requests += told.open_requests;
      out.sizes += told.sizes;
      out.waiting_for_size += told.waiting_for_size;
      out.sizes_made += told.sizes_made;
      out.sizes_bytes += told.sizes_bytes;
      out.pages_total += told.pages_total;
      out.pages_free += told.pages_free;
      out.exec_busy += told.exec_busy;
      out.load_busy += told.load_busy;
      // The largest, as of one policy's devices.
      if (told.margin && (!out.margin || told.margin->of({}) > out.margin->of({}))) out.margin = told.margin;
      for (const ModelStatistics& model : told.models) {
        if (own)
          merge(model, *own);
        else
          own = model;
      }
    }
    if (!own) continue;
    const bool standby = workload.active.load() == 1;
    own->share_pct = standby ? workload.spec.standby_share_pct : workload.spec.share_pct;
    own->on_standby = standby;
    out.models.push_back(*std::move(own));
  }
  return out;
}

bool Workloads::responds(Duration longest) {
  const TimePoint until = clock_.now() + longest;
  for (Workload& workload : workloads_)
    for (const auto& service : workload.services)
      if (service != nullptr && !service->responds(std::max(Duration{0}, until - clock_.now()))) return false;
  return true;
}

std::vector<TimelinePart> Workloads::timelines() const {
  std::vector<TimelinePart> out;
  std::uint32_t device = 0;
  std::uint32_t model = 0;
  for (const Workload& workload : workloads_) {
    for (const auto& service : workload.services) {
      if (service == nullptr) continue;
      for (TimelinePart part : service->timelines()) {
        part.first_device += device;
        part.first_model += model;
        out.push_back(part);
      }
      ++device;  // that each has, in statistics()
    }
    ++model;
  }
  return out;
}

}  // namespace carillon::controller
