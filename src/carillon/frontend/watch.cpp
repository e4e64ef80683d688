#include "carillon/frontend/watch.h"

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
                       .reason = view.reason,
                       .engine = view.config.engine,
                       .cls = view.config.model_class,
                       .slo = view.config.slo,
                       .held_by = {},
                       .total = {},
                       .minute = {},
                       .rate = {}};
  if (view.ready && model.engine.empty()) model.engine = "carillon";
  return model;
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

std::shared_ptr<const Picture> Watch::picture() {
  {
    const std::lock_guard lock(mutex_);
    if (last_ != nullptr) return last_;
  }
  auto picture = look();
  const std::lock_guard lock(mutex_);
  if (last_ == nullptr) last_ = std::move(picture);
  return last_;
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
    if (m.slo) model.slo = m.slo;
    model.total = recent_.total(found->second);
    model.minute = recent_.model(found->second).value_or(RecentModel{});
    model.rate = recent_.rate(found->second);
  }
  return out;
}

}  // namespace carillon::frontend
