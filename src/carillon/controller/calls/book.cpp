#include "carillon/controller/calls/book.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

void count(StepStatistics& step, Duration d) {
  ++step.count;
  step.total += d;
}

void count_devices(ModelStatistics& of) {
  of.devices = of.held_by.size();
  of.loaded = of.devices > 0;
}

void count_batch(ModelStatistics& of, int size, Duration input, Duration infer, Duration output) {
  ++of.execution_count;
  auto at = std::ranges::lower_bound(of.batches, size, {}, &ModelStatistics::Batch::size);
  if (at == of.batches.end() || at->size != size) at = of.batches.insert(at, {.size = size});
  count(at->input, input);
  count(at->infer, infer);
  count(at->output, output);
}

}  // namespace

Book::Book() {
  pages_.reserve(worker::most_models);
  by_model_.reserve(worker::most_models);
}

void Book::add_model(std::string name, std::int64_t version, std::optional<Duration> slo) {
  CARILLON_ASSERT(by_model_.size() < worker::most_models);
  for (const auto& page : pages_) {
    const std::lock_guard lock(page->mutex);
    if (page->of.name != name || page->of.version != version) continue;
    page->of.slo = slo;
    by_model_.push_back(page.get());
    return;
  }
  auto page = std::make_unique<Page>();
  page->of.name = std::move(name);
  page->of.version = version;
  page->of.slo = slo;
  page->place = static_cast<std::uint32_t>(pages_.size());
  by_model_.push_back(page.get());
  pages_.push_back(std::move(page));
  pages_there_.store(pages_.size(), std::memory_order_release);
}

void Book::seed(ModelId model, const std::vector<schedule::BatchProfile>& batches) {
  Page& page = this->page(model);
  const std::lock_guard lock(page.mutex);
  page.takes.clear();
  for (const schedule::BatchProfile& batch : batches)
    page.takes.emplace_back(batch.batch, profile::RollingWindow(batch.exec));
}

void Book::reseed(ModelId model, const std::vector<schedule::BatchProfile>& before,
                  const std::vector<schedule::BatchProfile>& after) {
  Page& page = this->page(model);
  const std::lock_guard lock(page.mutex);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i].exec == before[i].exec) continue;
    for (auto& [batch, takes] : page.takes)
      if (batch == after[i].batch) takes = profile::RollingWindow(after[i].exec);
  }
}

Duration Book::expected(ModelId model, int rows, TimePoint now) const {
  constexpr Duration trusted = std::chrono::seconds{1};
  const Page& page = *by_model_[model.index()];
  const std::lock_guard lock(page.mutex);
  Duration out{0};
  for (int left = rows; left > 0 && !page.takes.empty();) {
    auto at = std::ranges::find_if(page.takes, [&](const auto& each) { return each.first >= left; });
    if (at == page.takes.end()) --at;
    auto& [size, window] = *at;
    if (window.newest_at() != TimePoint::min() && now - window.newest_at() > trusted)
      window.forget_outlier(now);
    const int runs = std::max(1, left / size);
    out += window.estimate() * runs;
    left -= runs * size;
  }
  return out;
}

void Book::add_device(std::string name) {
  devices_.push_back({.name = std::move(name)});
}

void Book::answered(ModelId model, Outcome outcome, int rows, TimePoint arrival, TimePoint now,
                    const CallSteps& steps) {
  Page& page = this->page(model);
  const Duration latency = std::max(Duration{0}, now - arrival);
  const std::lock_guard lock(page.mutex);
  ModelStatistics& of = page.of;
  of.rows += static_cast<std::uint64_t>(std::max(0, rows));
  of.last_inference_ms = static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, (now.time_since_epoch() + unix_offset_) / std::chrono::milliseconds{1}));
  switch (outcome) {
    case Outcome::on_time:
    case Outcome::late:
      ++(outcome == Outcome::on_time ? of.on_time : of.late);
      of.inference_count += static_cast<std::uint64_t>(rows);
      of.latency.add(latency);
      count(of.success, latency);
      count(of.queue, steps.queue);
      count(of.compute_input, steps.input);
      count(of.compute_infer, steps.infer);
      count(of.compute_output, steps.output);
      return;
    case Outcome::shed:
      ++of.shed;
      [[fallthrough]];
    case Outcome::refused:
      ++of.refused;
      break;
    case Outcome::cancelled:
      ++of.cancelled;
      break;
    case Outcome::invalid:
      ++of.invalid;
      [[fallthrough]];
    case Outcome::failed:
      ++of.failed;
      break;
  }
  count(of.fail, latency);
}

void Book::wasted(DeviceId device, Duration busy) {
  const std::lock_guard lock(mutex_);
  devices_[device.index()].exec_busy += busy;
}

Duration Book::exec_busy() const {
  const std::lock_guard lock(mutex_);
  Duration out{0};
  for (const DeviceStatistics& d : devices_) out += d.exec_busy;
  return out;
}

void Book::executed(DeviceId device, ModelId model, int batch, const worker::ActionTimes& times,
                    Duration predicted) {
  const Duration measured = times.ran();
  {
    Page& page = this->page(model);
    const std::lock_guard lock(page.mutex);
    count_batch(page.of, batch, times.input_end - times.input_start, measured,
                times.output_end - times.output_start);
    page.of.exec.add(measured);
    page.of.prediction_error.add(measured < predicted ? predicted - measured : measured - predicted);
    page.of.preemptions += static_cast<std::uint64_t>(times.preemptions);
    page.of.preemption_lost += times.lost;
    page.of.padded += times.padded;
    if (times.preempts) page.of.preemption_latency.add(times.exec_start - times.received);
    for (auto& [size, window] : page.takes)
      if (size == batch) window.add(measured, times.exec_end);
  }
  const std::lock_guard lock(mutex_);
  DeviceStatistics& d = devices_[device.index()];
  ++d.executions;
  d.exec_busy += measured;
}

void Book::kept(ModelId model, const ledger::Ledger::Kept& kept) {
  Page& page = this->page(model);
  const std::lock_guard lock(page.mutex);
  page.of.promised += kept.answers;
  page.of.promised_late += kept.late;
  page.of.avoidable_late += kept.avoidable;
  page.of.expected_late += kept.expected;
}

void Book::executed_whole(ModelId ensemble, int rows, const CallSteps& steps) {
  Page& page = this->page(ensemble);
  const std::lock_guard lock(page.mutex);
  count_batch(page.of, rows, steps.input, steps.infer, steps.output);
}

void Book::refused(ModelId model, schedule::Reason reason) {
  Page& page = this->page(model);
  const std::lock_guard lock(page.mutex);
  ++page.of.reasons[static_cast<std::size_t>(reason)];
}

void Book::profiled(ModelId model) {
  Page& page = this->page(model);
  const std::lock_guard lock(page.mutex);
  ++page.of.profiled;
}

void Book::loaded(DeviceId device, ModelId model, Duration took, bool again) {
  {
    Page& page = this->page(model);
    const std::lock_guard lock(page.mutex);
    ++page.of.loads;
    auto& held_by = page.of.held_by;
    if (!again) held_by.insert(std::ranges::lower_bound(held_by, device), device);
    count_devices(page.of);
  }
  const std::lock_guard lock(mutex_);
  devices_[device.index()].load_busy += took;
}

void Book::unloaded(DeviceId device, ModelId model) {
  Page& page = this->page(model);
  const std::lock_guard lock(page.mutex);
  ++page.of.unloads;
  // Versions of one name and number come and go: of two that a device holds, one stays.
  const auto at = std::ranges::find(page.of.held_by, device);
  if (at != page.of.held_by.end()) page.of.held_by.erase(at);
  count_devices(page.of);
}

void Book::device_lost(DeviceId device) {
  for (std::size_t i = 0; i < pages_there_.load(std::memory_order_acquire); ++i) {
    const std::lock_guard lock(pages_[i]->mutex);
    std::erase(pages_[i]->of.held_by, device);
    count_devices(pages_[i]->of);
  }
  const std::lock_guard lock(mutex_);
  DeviceStatistics& d = devices_[device.index()];
  d.alive = false;
  ++d.lost;
}

void Book::device_back(DeviceId device) {
  const std::lock_guard lock(mutex_);
  devices_[device.index()].alive = true;
}

void Book::odd_report(DeviceId device) {
  const std::lock_guard lock(mutex_);
  ++devices_[device.index()].odd_reports;
}

void Book::set_open_requests(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  open_requests_ = count;
}

void Book::waits(ModelId model, bool waiting) {
  std::atomic<std::uint64_t>& count = page(model).waiting;
  const std::uint64_t was = count.load(std::memory_order_relaxed);
  count.store(waiting ? was + 1 : was - 1, std::memory_order_relaxed);
}

ServerStatistics Book::snapshot() const {
  ServerStatistics out;
  const std::size_t there = pages_there_.load(std::memory_order_acquire);
  out.models.reserve(there);
  for (std::size_t i = 0; i < there; ++i) {
    const std::lock_guard lock(pages_[i]->mutex);
    out.models.push_back(pages_[i]->of);
    out.models.back().waiting = pages_[i]->waiting.load(std::memory_order_relaxed);
  }
  const std::lock_guard lock(mutex_);
  out.open_requests = open_requests_;
  out.devices = devices_;
  for (const ModelStatistics& model : out.models)
    for (const DeviceId device : model.held_by) ++out.devices[device.index()].models;
  for (const DeviceStatistics& d : devices_) {
    out.exec_busy += d.exec_busy;
    out.load_busy += d.load_busy;
  }
  return out;
}

}  // namespace carillon::controller
