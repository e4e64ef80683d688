#include "carillon/frontend/telemetry/watch.h"

#include <algorithm>
#include <map>

#include <pthread.h>

#include "carillon/base/cpu_time.h"

namespace carillon::frontend {
namespace {

using NameAndVersion = std::pair<std::string, std::int64_t>;

Picture::Model model_of(const controller::ModelView& view) {
  Picture::Model model{.name = view.name,
                       .version = view.version,
                       .ready = view.ready,
                       .left_out = view.left_out,
                       .coming = view.coming,
                       .reason = view.reason,
                       .engine = view.config.engine,
                       .cls = view.config.model_class,
                       .slo = view.config.slo,
                       .held_by = {},
                       .total = {},
                       .minute = {},
                       .rate = {}};
  model.ensemble = view.ensemble != nullptr;
  if (view.ready && model.engine.empty()) model.engine = "carillon";
  return model;
}

// Of ensembles not: their steps' models count their requests.
Trend::Totals totals_of(const controller::ServerStatistics& statistics) {
  Trend::Totals out{.exec = statistics.exec_busy, .load = statistics.load_busy};
  for (const controller::ModelStatistics& m : statistics.models) {
    if (m.ensemble) continue;
    out.on_time += m.on_time;
    out.late += m.late;
    out.refused += m.refused;
    out.cancelled += m.cancelled;
    out.failed += m.failed;
    out.invalid += m.invalid;
  }
  return out;
}

}  // namespace

void Watch::start() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable() || ended_) return;
  thread_ = std::thread([this] { run(); });
}

void Watch::stop() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Watch::run() {
  pthread_setname_np(pthread_self(), "carillon-watch");
  std::unique_lock lock(mutex_);
  while (!ended_) {
    lock.unlock();
    const Duration began = thread_cpu_time();
    auto picture = look();
    const Duration took = thread_cpu_time() - began;
    lock.lock();
    last_ = std::move(picture);
    wake_.wait_for(lock, std::clamp<Duration>(100 * took, 1s, 30s), [this] { return ended_; });
  }
}

void Watch::look_now() {
  auto picture = look();
  const std::lock_guard lock(mutex_);
  last_ = std::move(picture);
}

std::shared_ptr<const Picture> Watch::picture() {
  {
    const std::lock_guard lock(mutex_);
    if (last_ != nullptr && last_->ready == service_.ready() && last_->loading == service_.loading())
      return last_;
  }
  look_now();
  const std::lock_guard lock(mutex_);
  return last_;
}

std::pair<std::vector<Trend::Sample>, std::uint64_t> Watch::trend(std::uint64_t since) {
  const std::lock_guard lock(looking_);
  // A number that is not there yet is of a server before this one.
  return {trend_.samples(since > trend_.next() ? 0 : since), trend_.next()};
}

std::shared_ptr<const Picture> Watch::look() {
  const std::lock_guard lock(looking_);
  auto out = std::make_shared<Picture>();
  const controller::ServerStatistics statistics = service_.statistics();
  out->at = service_.now();
  recent_.look(out->at, statistics);
  out->ready = service_.ready();
  out->loading = service_.loading();
  out->open_requests = statistics.open_requests;
  out->minute = recent_.span();
  for (std::size_t i = 0; i < statistics.devices.size(); ++i)
    out->devices.push_back({statistics.devices[i], recent_.busy(i)});
  out->device_time = recent_.device_time();
  out->margin = statistics.margin;
  if (memory_) out->memory = memory_(statistics);
  trend_.look(out->at, totals_of(statistics), statistics.devices.size(),
              out->memory ? out->memory->resident : Bytes{});
  std::map<NameAndVersion, std::size_t> places;
  for (std::size_t i = 0; i < statistics.models.size(); ++i) {
    const controller::ModelStatistics& m = statistics.models[i];
    places.emplace(NameAndVersion{m.name, m.version}, i);
    // Those of ensembles move back as models come, and no device does anything for them.
    if (!m.ensemble) out->places.emplace_back(m.name, m.version);
  }
  for (const controller::ModelView& view : service_.models()) {
    Picture::Model& model = out->models.emplace_back(model_of(view));
    const auto found = places.find({view.name, view.version});
    if (found == places.end()) continue;
    const controller::ModelStatistics& m = statistics.models[found->second];
    model.held_by = m.held_by;
    model.ensemble = model.ensemble || m.ensemble;
    if (m.slo) model.slo = m.slo;
    model.total = recent_.total(found->second);
    model.minute = recent_.model(found->second).value_or(RecentModel{});
    model.rate = recent_.rate(found->second);
  }
  return out;
}

}  // namespace carillon::frontend
