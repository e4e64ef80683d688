#include "carillon/cli/interference/cpu_probe.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "carillon/cli/interference/sensors.h"
#include "carillon/controller/models/model_loader.h"
#include "carillon/graph/bounded.h"

namespace carillon::cli {
namespace {

// measure_exec() blocks until it has its times: nobody waits for results.
class NoResults final : public worker::ResultSink {
 public:
  void on_result(const worker::ActionResult&) override {}
};

// One model at one share.
struct Lane {
  NoResults nobody;
  std::shared_ptr<engine::Engine> engine;
  controller::PreparedModel model;
  std::unique_ptr<worker::Worker> worker;  // goes first: it runs the engine's plans
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Of one request; the tensors are those of a plan.
double bytes_of(std::span<const graph::TensorSpec> tensors, int batch) {
  double bytes = 0;
  for (const auto& each : tensors)
    bytes += static_cast<double>(graph::memory_of(each.type, each.shape).count);
  return bytes / batch;
}

class CpuProbe final : public InterferenceProbe {
 public:
  CpuProbe(CpuProbeOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}

  Result<> open(std::vector<repository::RepositoryEntry> entries,
                const std::function<void(const std::string&)>& tell) {
    for (repository::RepositoryEntry& entry : entries) {
      const std::string name = entry.name;
      entries_.emplace(name, std::move(entry));
    }
    for (const auto& [name, entry] : entries_) {
      auto lane = make_lane(name, 100);
      if (!lane) {
        tell("left out: " + name + ": " + lane.error().message);
        continue;
      }
      const auto& compiled = *(*lane)->model.compiled.front();
      if (compiled.time_varies()) {
        tell("left out: " + name + ": its time depends on the input");
        continue;
      }
      ModelFacts facts{.name = name, .batch_sizes = {}};
      facts.batch_sizes.assign(compiled.batch_sizes().begin(), compiled.batch_sizes().end());
      const engine::Plan& plan = *compiled.plan(facts.batch_sizes.front());
      facts.load_bytes = bytes_of(plan.inputs(), plan.batch());
      facts.feedback_bytes = bytes_of(plan.outputs(), plan.batch());
      facts.kernels = plan.kernels();
      models_.push_back(std::move(facts));
    }
    if (models_.empty())
      return fail(ErrorCode::not_found, "there is no model whose interference can be measured");
    return {};
  }

  DeviceFacts device() override {
    DeviceFacts facts{.name = description_, .missing = sensors_.missing()};
    facts.max_frequency_mhz = sensors_.max_frequency_mhz();
    facts.max_power_w = sensors_.power_cap_w();
    // Copies of 64 MiB, the best of five; and what a streaming thread misses.
    std::vector<std::byte> from(std::size_t{64} << 20, std::byte{1}), to(from.size());
    sensors_.start(clock_.now());
    double best = 1e18;
    for (int i = 0; i < 5; ++i) {
      const TimePoint start = clock_.now();
      std::memcpy(to.data(), from.data(), from.size());
      best = std::min(best, to_ms(clock_.now() - start));
      from[static_cast<std::size_t>(i)] = to[from.size() - 1];
    }
    if (const auto misses = sensors_.stop(clock_.now()).misses_per_second) streaming_ = *misses;
    facts.copy_bytes_per_ms = static_cast<double>(from.size()) / std::max(1e-3, best);
    // Idle, as far as the machine is.
    sensors_.start(clock_.now());
    std::this_thread::sleep_for(options_.at_least);
    facts.idle_power_w = sensors_.stop(clock_.now()).power_w;
    return facts;
  }

  std::vector<ModelFacts> models() override { return models_; }

  Result<Seen> run(std::span<const Placed> placed) override {
    if (auto ready = make_lanes(placed); !ready) return std::unexpected(ready.error());
    // Each runs in chunks until all have enough; what is counted ends before the first of them stops.
    struct OfOne {
      std::vector<double> times;
      std::optional<Error> error;
    };
    std::vector<OfOne> results(placed.size());
    std::atomic<std::size_t> wanting{placed.size()};
    const TimePoint start = clock_.now();
    const auto loop = [&](std::size_t i) {
      worker::Worker& worker = *lanes_[i]->worker;
      bool satisfied = false;
      int chunk = 2;
      while (wanting.load() > 0) {
        auto times = worker.measure_exec(ModelId{0}, placed[i].batch, chunk);
        if (!times || times->empty()) {
          results[i].error = times ? Error{ErrorCode::internal, "no times"} : times.error();
          wanting.store(0);
          return;
        }
        // The first of a chunk has cold caches.
        if (!satisfied)
          for (std::size_t t = 1; t < times->size(); ++t) results[i].times.push_back(to_ms((*times)[t]));
        // Chunks of a third of the time, so that loading between them weighs little.
        chunk = std::clamp(
            static_cast<int>(to_ms(options_.at_least) / 3 / std::max(1e-3, to_ms(times->back()))), 2, 10'000);
        if (!satisfied && clock_.now() - start >= options_.at_least &&
            results[i].times.size() >= static_cast<std::size_t>(options_.repeats)) {
          satisfied = true;
          wanting.fetch_sub(1);
        }
      }
    };
    sensors_.start(start);
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < placed.size(); ++i) threads.emplace_back(loop, i);
    threads.clear();
    const auto reading = sensors_.stop(clock_.now());
    Seen seen{
        .gpu_ms = {}, .power_w = reading.power_w, .frequency_mhz = reading.frequency_mhz, .cache_pct = {}};
    if (reading.misses_per_second && streaming_ > 0)
      seen.cache_pct = std::max(0.0, 100 * *reading.misses_per_second / streaming_);
    for (const OfOne& each : results) {
      if (each.error) return std::unexpected(*each.error);
      seen.gpu_ms.push_back(median(each.times));
    }
    return seen;
  }

 private:
  // As many lanes as there are models to run; those that stay from the last run are kept.
  Result<> make_lanes(std::span<const Placed> placed) {
    std::vector<std::string> keys;
    for (const Placed& p : placed) keys.push_back(p.model + "@" + std::to_string(p.share_pct));
    if (keys == keys_) return {};
    lanes_.clear();
    keys_.clear();
    for (const Placed& p : placed) {
      auto lane = make_lane(p.model, p.share_pct);
      if (!lane) return in_context(p.model, lane.error());
      lanes_.push_back(std::move(*lane));
    }
    keys_ = std::move(keys);
    return {};
  }

  Result<std::unique_ptr<Lane>> make_lane(const std::string& name, double share_pct) {
    const repository::RepositoryEntry& entry = entries_.at(name);
    if (!entry.config) return std::unexpected(entry.config.error());
    if (description_.empty()) {
      const auto whole = make_device(options_.device, clock_);
      if (!whole) return std::unexpected(whole.error());
      description_ = whole->description;
    }
    auto device = make_share(options_.device, 0, share_pct, clock_);
    if (!device) return std::unexpected(device.error());
    auto lane = std::make_unique<Lane>();
    lane->engine = std::move(device->engine);
    auto worker = worker::make_worker(device->worker, clock_, lane->nobody);
    if (!worker) return std::unexpected(worker.error());
    lane->worker = std::move(*worker);
    auto model = controller::prepare_model(entry, entry.versions.back(), *lane->engine, *lane->worker,
                                           ModelId{0}, [](const auto&) {});
    if (!model) return std::unexpected(model.error());
    lane->model = std::move(*model);
    return lane;
  }

  CpuProbeOptions options_;
  const Clock& clock_;
  CpuSensors sensors_;
  std::map<std::string, repository::RepositoryEntry, std::less<>> entries_;
  std::vector<ModelFacts> models_;
  std::string description_;
  double streaming_ = 0;
  std::vector<std::string> keys_;  // of lanes_
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace

Result<std::unique_ptr<InterferenceProbe>> make_cpu_probe(
    std::vector<repository::RepositoryEntry> models, CpuProbeOptions options, const Clock& clock,
    const std::function<void(const std::string&)>& tell) {
  auto probe = std::make_unique<CpuProbe>(std::move(options), clock);
  if (auto opened = probe->open(std::move(models), tell); !opened) return std::unexpected(opened.error());
  return probe;
}

}  // namespace carillon::cli
