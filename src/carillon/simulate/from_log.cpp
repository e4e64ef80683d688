#include "carillon/simulate/from_log.h"

#include <algorithm>
#include <variant>

#include "carillon/base/bytes.h"
#include "carillon/simulate/simulation.h"

namespace carillon::simulate {

FromLog::FromLog(std::string name, const schedule::Environment& environment, TimePoint until)
    : until_(until), preemption_(environment.preemption) {
  scenario_.name = std::move(name);
  scenario_.network_delay = Duration{0};
  scenario_.allowance = workload::Allowance{
      .dispatch = environment.dispatch, .answer = environment.answer, .overrun = environment.overrun};
}

void FromLog::add_model(const schedule::ModelInfo& info) {
  workload::ScenarioModel model{.name = info.name};
  model.cls = info.cls;
  model.max_batch = info.batches.back().batch;
  for (const auto& b : info.batches) {
    model.batch_sizes.push_back(b.batch);
    model.latency.table.emplace_back(b.batch, b.exec);
  }
  model.weights = mib(16) * info.pages;
  model.load = info.load;
  if (info.id.index() == scenario_.models.size()) {
    scenario_.models.push_back(std::move(model));
    return;
  }
  workload::ScenarioModel& before = scenario_.models[info.id.index()];
  model.arrivals = std::move(before.arrivals);
  before = std::move(model);
}

// What runs of before took, and will have taken, says nothing of what runs from now on.
void FromLog::change_times(const schedule::TimesChanged& times) {
  auto& table = scenario_.models[times.model.index()].latency.table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const schedule::BatchProfile& is = times.batches[i];
    if (table[i].second == is.exec) continue;
    table[i].second = is.exec;
    const std::pair size{times.model.value, is.batch};
    measured_.erase(size);
    std::erase_if(flights_, [&](const auto& flight) { return flight.second == size; });
  }
}

void FromLog::add(const schedule::Event& event, TimePoint now, const schedule::Actions& actions) {
  if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
    const Request& r = arrival->request;
    const bool again = refused_.erase(r.id.value) > 0;  // a queue policy delays it: the same request still
    if (now <= until_ && !again) {
      ++requests_;
      first_ = std::min(first_, now);
      last_ = std::max(last_, now);
      scenario_.models[r.model.index()].arrivals.push_back(
          {.at = now,
           .slo = r.deadline == TimePoint::max() ? Duration::max() : r.deadline - now,
           .cls = r.cls,
           .priority = r.priority,
           .app = r.app,
           .more = arrival->more});
    }
  } else if (const auto* model = std::get_if<schedule::ModelChanged>(&event)) {
    if (model->info) add_model(*model->info);
  } else if (const auto* times = std::get_if<schedule::TimesChanged>(&event)) {
    change_times(*times);
  } else if (const auto* change = std::get_if<schedule::DeviceChanged>(&event)) {
    devices_ = std::max(devices_, change->device.value + 1);
    pages_ = std::max(pages_, change->pages);
  } else if (const auto* done = std::get_if<schedule::ActionDone>(&event)) {
    const auto flight = flights_.find(done->id.value);
    if (flight != flights_.end()) {
      if (done->status == schedule::ActionStatus::success) {
        auto& [sum, count] = measured_[flight->second];
        sum += done->duration;
        ++count;
      }
      flights_.erase(flight);
    }
  }
  for (const schedule::Action& action : actions)
    if (const auto* infer = std::get_if<schedule::Infer>(&action))
      flights_[infer->id.value] = {infer->model.value, static_cast<int>(infer->requests.size())};
    else if (const auto* refuse = std::get_if<schedule::Refuse>(&action))
      refused_.insert(refuse->request.value);
}

workload::Scenario FromLog::scenario() {
  workload::Scenario& s = scenario_;
  s.devices = static_cast<int>(std::max(1U, devices_));
  std::uint64_t needed = 0;
  for (const auto& model : s.models) needed += model.weights.count / mib(16).count;
  if (needed > 0) s.memory = mib(16) * std::max<std::uint64_t>(1, pages_);
  if (any()) s.duration = last_ - first_ + 1s;
  for (std::size_t m = 0; m < s.models.size(); ++m) {
    auto& model = s.models[m];
    for (auto& planned : model.arrivals) planned.at = TimePoint{} + (planned.at - first_);
    for (auto& [batch, time] : model.latency.table)
      if (const auto found = measured_.find({static_cast<std::uint32_t>(m), batch}); found != measured_.end())
        time = found->second.first / found->second.second;
    model.slo = model.arrivals.empty() ? Duration{1s} : model.arrivals.front().slo;
  }
  return std::move(scenario_);
}

schedule::Environment FromLog::environment(const workload::Scenario& scenario) const {
  schedule::Environment out = simulate::environment(scenario);
  out.preemption = preemption_;
  return out;
}

}  // namespace carillon::simulate
