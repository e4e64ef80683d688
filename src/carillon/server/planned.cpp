#include "carillon/server/planned.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "carillon/provision/served_plan.h"
#include "carillon/repository/config.h"
#include "carillon/repository/repository.h"
#include "carillon/schedule/registry.h"
#include "carillon/server/cuda_device.h"

namespace carillon::server {
namespace {

// Room for a model's weights as kernels want them, in several layouts at worst. They may lie in files beside
// it.
Bytes pages_for(const std::filesystem::path& file, Bytes most, Bytes spare) {
  std::error_code failure;
  std::uint64_t size = 0;
  for (std::filesystem::directory_iterator at(file.parent_path(), failure), end; !failure && at != end;
       at.increment(failure))
    if (std::error_code no_size; at->is_regular_file(no_size))
      if (const auto bytes = at->file_size(no_size); !no_size) size += bytes;
  return std::min(Bytes{std::min(size, most.count) * 3 + spare.count}, most);
}

// The plans to make: the planned batch, and smaller ones for what comes when the rate is lower.
Result<> limit_batches(const provision::ServedWorkload& workload, repository::ModelConfig& config) {
  const int most =
      config.batch_from_file ? repository::derived_max_batch : std::max(1, config.max_batch_size);
  if (workload.batch > std::min(most, repository::largest_plan))
    return invalid("the plan's batch is " + std::to_string(workload.batch) + ", and the model's is at most " +
                   std::to_string(std::min(most, repository::largest_plan)));
  std::erase_if(config.batch_sizes, [&](int size) { return size >= workload.batch; });
  for (int size = 1; config.batch_from_file && size < workload.batch; size *= 2)
    if (std::ranges::find(config.batch_sizes, size) == config.batch_sizes.end())
      config.batch_sizes.push_back(size);
  config.batch_sizes.push_back(workload.batch);
  std::ranges::sort(config.batch_sizes);
  return {};
}

// One controller with one model at `share_pct` of the device, behind the first `from_pct`. `caches` are those
// of the lanes so far, and then with this one's, for which it adds a charge.
Result<std::unique_ptr<controller::Controller>> start_lane(const PlannedOptions& options,
                                                           const repository::RepositoryEntry& entry,
                                                           const provision::ServedWorkload& workload,
                                                           double from_pct, double share_pct,
                                                           const Clock& clock, Bytes& caches,
                                                           std::vector<MemoryAccount::Charge>& charges) {
  auto device = make_share(options.device, from_pct, share_pct, clock);
  if (!device) return std::unexpected(device.error());
  const repository::ModelVersion& version = entry.versions.back();
  // Every lane has its own.
  const Bytes all = options.memory != nullptr ? options.memory->counts().models : gib(64);
  device->worker.page_cache = pages_for(version.file, device->worker.page_cache,
                                        std::clamp(Bytes{all.count / 16}, page_size, mib(64)));
  if (options.device.io_cache.empty())
    device->worker.io_cache = std::clamp(Bytes{all.count / 32}, mib(2), mib(64));
  if (options.device.workspace.empty())
    device->worker.workspace = std::clamp(Bytes{all.count / 16}, mib(2), mib(128));
  const worker::Options& worker_options = device->worker;
  if (worker_options.populate) {
    Bytes taken = worker_options.io_cache;
    if (!worker_options.make_memory) taken = taken + worker_options.page_cache + worker_options.workspace;
    caches = caches + taken;
    if (options.memory != nullptr) {
      auto charge = options.memory->take(workload.id, {.memory = taken});
      if (!charge)
        return in_context("its caches (page cache " + to_text(worker_options.page_cache) + ", I/O cache " +
                              to_text(worker_options.io_cache) + ", workspace " +
                              to_text(worker_options.workspace) + ")",
                          charge.error());
      charges.push_back(*std::move(charge));
    }
  }

  auto scheduler = schedule::make_scheduler(options.scheduler, options.environment);
  if (!scheduler) return std::unexpected(scheduler.error());
  auto lane = std::make_unique<controller::Controller>(std::move(*scheduler), options.controller, clock);
  auto worker = worker::make_worker(device->worker, clock, lane->results());
  if (!worker) return std::unexpected(worker.error());

  repository::RepositoryEntry mine = entry;
  repository::ModelConfig& config = *mine.config;
  config.slo = workload.slo;
  if (auto limited = limit_batches(workload, config); !limited) return std::unexpected(limited.error());
  const auto tell = [&](const std::string& doing) {
    options.tell(fmt::format("{} at {:g}%: {}", workload.id, share_pct, doing));
  };
  const controller::LoadTarget target{.engine = device->engine.get(),
                                      .worker = worker->get(),
                                      .others = others_of(*device),
                                      .memory = options.memory};
  auto model = controller::prepare_model(mine, version, {&target, 1}, ModelId{0}, tell);
  if (!model) return std::unexpected(model.error());
  std::vector<std::string> notes;
  auto info = controller::seed_profile(*model, version.version, **worker, {}, tell, notes);
  for (const std::string& note : notes) tell(note);
  if (!info) return std::unexpected(info.error());
  if (info->batches.size() > 1)
    std::erase_if(info->batches, [&](const auto& b) { return b.batch > std::max(1, workload.batch); });
  controller::ModelView view;
  view.name = entry.name;
  view.version = version.version;
  view.config = model->config;
  view.reason = model->other_engine;
  view.usable = controller::usable_of(model->compiled);
  lane->add_model(std::move(view), *model->compiled.front(), *info);
  lane->add_worker(std::move(*worker));
  lane->start();
  return lane;
}

}  // namespace

Result<std::unique_ptr<PlannedServer>> PlannedServer::start(const PlannedOptions& options,
                                                            const Clock& clock) {
  if (options.device.device != "cpu" && !is_cuda(options.device.device))
    return invalid("--plan: shares are of the CPU, or of a CUDA device; --device " + options.device.device +
                   " cannot be divided");
  const auto device = provision::read_served_device(options.plan, options.number);
  if (!device) return in_context("--plan", device.error());
  std::vector<std::string> skipped;
  const auto entries = repository::read_repository(options.models, options.reading, &skipped);
  if (!entries) return std::unexpected(entries.error());
  for (const std::string& line : skipped) options.tell(line);
  std::unique_ptr<PlannedServer> server(new PlannedServer);
  const auto tell = options.tell;
  server->workloads_ =
      std::make_unique<controller::Workloads>(clock, [tell](const controller::WorkloadSpec& spec) {
        tell(fmt::format(
            "workload {}: its P99 broke the SLO of {:g} ms in the last second, and again since; its "
            "standby takes over, with {:g}% of the device in place of {:g}%",
            spec.id, to_ms(spec.watch.slo), spec.standby_share_pct, spec.share_pct));
      });
  for (const repository::RepositoryEntry& entry : *entries) {
    const auto planned = std::ranges::find(device->workloads, entry.name, &provision::ServedWorkload::model);
    if (planned != device->workloads.end() && entry.config) continue;
    if (entry.config && !entry.config->steps.empty()) continue;
    controller::ModelView view;
    view.name = entry.name;
    view.config.name = entry.name;
    view.left_out = entry.config.has_value();
    view.reason =
        entry.config ? "the plan has no workload of it on this device" : entry.config.error().message;
    server->workloads_->add_unready(std::move(view));
  }
  double from_pct = 0;
  for (const provision::ServedWorkload& workload : device->workloads) {
    const std::string context = "--plan: workload '" + workload.id + "'";
    const auto entry = std::ranges::find(*entries, workload.model, &repository::RepositoryEntry::name);
    if (entry == entries->end())
      return fail(ErrorCode::not_found,
                  context + ": there is no model '" + workload.model + "' in " + options.models.string());
    if (!entry->config) return in_context(context, entry->config.error());
    if (!entry->config->steps.empty())
      return invalid(context + ": '" + workload.model +
                     "' is an ensemble, which has no share; plan its steps' models");
    auto serving = start_lane(options, *entry, workload, from_pct, workload.share_pct, clock, server->caches_,
                              server->charges_);
    if (!serving) return in_context(context, serving.error());
    std::vector<controller::Controller*> own{serving->get()};
    std::unique_ptr<controller::Controller> standby;
    if (options.standbys && workload.standby_share_pct > 0) {
      // Its own, and of what nobody has, or of others'.
      const double more_from = std::min(from_pct, 100 - workload.standby_share_pct);
      auto made = start_lane(options, *entry, workload, more_from, workload.standby_share_pct, clock,
                             server->caches_, server->charges_);
      if (!made) return in_context(context + ", its standby", made.error());
      standby = std::move(*made);
      own.push_back(standby.get());
    }
    const controller::WorkloadSpec spec{.id = workload.id,
                                        .share_pct = workload.share_pct,
                                        .standby_share_pct = standby ? workload.standby_share_pct : 0,
                                        .watch = {.slo = workload.slo}};
    server->workloads_->add(spec, std::move(*serving), std::move(standby));
    server->controllers_.insert(server->controllers_.end(), own.begin(), own.end());
    ++server->count_;
    from_pct += workload.share_pct;
  }
  server->add_ensembles(*entries);
  server->ensembles_ = std::make_unique<controller::Ensembles>(
      *server->workloads_, clock,
      controller::EnsembleOptions{.lanes = static_cast<int>(std::max<std::size_t>(1, server->count_)),
                                  .default_deadline = options.controller.core.default_deadline});
  server->ensembles_->start();
  return server;
}

// Those whose models the plan has here; of the others it is said.
void PlannedServer::add_ensembles(const std::vector<repository::RepositoryEntry>& entries) {
  std::vector<controller::ModelView> views;
  for (const repository::RepositoryEntry& entry : entries) {
    if (!entry.config || entry.config->steps.empty()) continue;
    for (const repository::ModelVersion& version : entry.versions) {
      controller::ModelView& view = views.emplace_back();
      view.name = entry.name;
      view.version = version.version;
      view.config = *entry.config;
      workloads_->add_unready(view);
    }
  }
  for (controller::ModelView& view : views)
    if (const auto state = workloads_->state(view.name, view.version); !state) {
      view.left_out = true;
      view.reason = state.error().message;
      workloads_->add_unready(std::move(view));
    }
}

void PlannedServer::stop() {
  for (controller::Controller* each : controllers_) each->stop();
  controllers_.clear();
  if (ensembles_ != nullptr) ensembles_->stop();
}

}  // namespace carillon::server
