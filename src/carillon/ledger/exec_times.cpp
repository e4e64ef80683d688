#include "carillon/ledger/exec_times.h"

#include <algorithm>

#include "carillon/base/assert.h"

namespace carillon::ledger {

void ExecTimes::model_changed(const ModelChanged& change) {
  if (change.model.index() >= models_.size()) models_.resize(change.model.index() + 1);
  Model& m = models_[change.model.index()];
  const bool comes_first = m.info == nullptr;
  m.served = change.info != nullptr;
  if (change.info) m.info = change.info;
  if (m.info == nullptr) return;
  if (!comes_first) {
    ++m.version;
    m.times_changes.clear();
    m.alike = {};
    for (OnDevice& on : m.on) on = {.device = on.device, .times = {}};
    ++m.row_version;
    ++m.others_version;
  }
  find_bounds(m);
}

void ExecTimes::times_changed(const TimesChanged& change, TimePoint now) {
  if (change.model.index() >= models_.size()) return;
  Model& m = models_[change.model.index()];
  if (m.info == nullptr) return;
  const std::vector<BatchProfile>& before = m.info->batches;
  CARILLON_ASSERT(same_sizes(before, change.batches));
  m.times_changes.resize(before.size());
  for (std::size_t i = 0; i < before.size(); ++i)
    if (before[i].exec != change.batches[i].exec) ++m.times_changes[i];
  m.alike.change_seeds(before, change.batches, now);
  for (OnDevice& on : m.on) {
    on.times.change_seeds(before, change.batches, now);
    if (before.front().exec != change.batches.front().exec) on.trials = 0;
  }
  auto info = std::make_shared<ModelInfo>(*m.info);
  info->batches = change.batches;
  m.info = std::move(info);
  find_bounds(m);
  ++m.row_version;
  ++m.others_version;
}

ExecTimes::Run ExecTimes::run(ModelId model, std::size_t rows) const {
  if (model.index() >= models_.size() || models_[model.index()].info == nullptr || rows == 0)
    return {.model = model, .index = unknown};
  const Model& m = models_[model.index()];
  const auto& batches = m.info->batches;
  // Often every size up to the largest has a plan.
  std::size_t index = std::min(rows, batches.size()) - 1;
  if (static_cast<std::size_t>(batches[index].batch) != rows) {
    const auto found = std::ranges::lower_bound(batches, static_cast<int>(rows), {}, &BatchProfile::batch);
    if (found == batches.end() || found->batch != static_cast<int>(rows))
      return {.model = model, .index = unknown};
    index = static_cast<std::size_t>(found - batches.begin());
  }
  return {.model = model,
          .index = static_cast<std::uint32_t>(index),
          .version = m.version,
          .times = m.times_changes.empty() ? 0 : m.times_changes[index]};
}

ExecTimes::OnDevice& ExecTimes::get(Model& m, DeviceId device) {
  if (device.index() >= m.on_at.size()) m.on_at.resize(device.index() + 1, none);
  std::uint32_t& at = m.on_at[device.index()];
  if (at != none) return m.on[at];
  at = static_cast<std::uint32_t>(m.on.size());
  return m.on.emplace_back(OnDevice{.device = device, .times = {}});
}

void ExecTimes::add(DeviceId device, const Run& run, Duration took, TimePoint now) {
  Model& m = models_[run.model.index()];
  if (!by_device_) {
    m.alike.add(*m.info, run.index, took, now, stale_after,
                [&](std::size_t i) { m.others_version += i != run.index ? 1 : 0; });
    return;
  }
  OnDevice& on = get(m, device);
  if (run.index == 0 && took <= 2 * m.info->batches[0].exec) on.trials = 0;
  on.times.add(*m.info, run.index, took, now, Duration{0}, [&](std::size_t i) {
    m.others_version += i != run.index ? 1 : 0;
    bound(m, i, on.times.all()[i]);
  });
  if (++m.reports >= bounds_hold) find_bounds(m);
}

void ExecTimes::begin_other_pace(DeviceId device, const Run& run, Duration took, double ratio,
                                 TimePoint now) {
  const double most = 2 * ratio;
  const auto of = [&](Model& m) -> MeasuredTimes& { return by_device_ ? get(m, device).times : m.alike; };
  std::vector<double> paces;
  for (Model& m : models_)
    if (m.served && !of(m).all().empty()) paces.push_back(of(m).pace(*m.info));
  double usual = 1;
  if (!paces.empty()) {
    const auto middle = paces.begin() + static_cast<std::ptrdiff_t>((paces.size() - 1) / 2);
    std::ranges::nth_element(paces, middle);
    usual = *middle;
  }
  const Duration seed = models_[run.model.index()].info->batches[run.index].exec;
  const double speed = std::clamp(MeasuredTimes::times_seed(took, seed), usual / most, usual * most);
  for (Model& m : models_) {
    if (!m.served) continue;
    MeasuredTimes& own = of(m);
    const double pace = own.pace(*m.info);
    own.rescale(*m.info, std::clamp(speed, pace / most, pace * most), now);
    ++m.others_version;
    if (!by_device_) continue;
    find_bounds(m);
    ++m.row_version;
  }
}

void ExecTimes::bound(Model& m, std::size_t index, Duration estimate) {
  m.longest[index] = std::max(m.longest[index], estimate);
  if (index > 0) return;
  m.shortest = std::min(m.shortest, estimate);
  ++m.row_version;
}

// O(batch sizes x devices where it ran).
void ExecTimes::find_bounds(Model& m) {
  const auto& batches = m.info->batches;
  m.longest.clear();
  for (const BatchProfile& b : batches) m.longest.push_back(b.exec);
  m.shortest = batches.front().exec;
  m.reports = 0;
  for (const OnDevice& on : m.on) {
    const auto estimates = on.times.all();
    if (estimates.empty()) continue;
    for (std::size_t i = 0; i < batches.size(); ++i) m.longest[i] = std::max(m.longest[i], estimates[i]);
    m.shortest = std::min(m.shortest, estimates.front());
  }
}

bool ExecTimes::doubt_all(ModelId model, TimePoint now) {
  Model& m = models_[model.index()];
  const Duration before = m.alike.of(*m.info, 0);
  m.alike.reset_stale(*m.info, now);
  ++m.others_version;
  return m.alike.of(*m.info, 0) != before;
}

}  // namespace carillon::ledger
