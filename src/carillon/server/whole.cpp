#include "carillon/server/whole.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "carillon/base/processors.h"
#include "carillon/controller/models/measure_aside.h"
#include "carillon/repository/repository.h"
#include "carillon/worker/worker.h"

namespace carillon::server {

WholeServer::WholeServer(WholeOptions options, std::unique_ptr<schedule::Scheduler> scheduler,
                         const DeviceGroup& devices, const Clock& clock)
    : options_(std::move(options)),
      devices_(devices),
      clock_(clock),
      controller_(options_.decider ? std::make_unique<controller::Controller>(
                                         options_.decider, options_.rows, controller_options(devices), clock)
                                   : std::make_unique<controller::Controller>(
                                         std::move(scheduler), controller_options(devices), clock)),
      ensembles_(std::make_unique<controller::Ensembles>(
          *controller_, clock,
          controller::EnsembleOptions{
              .lanes = static_cast<int>(std::max<std::size_t>(1, devices.devices.size())),
              .default_deadline = options_.controller.core.default_deadline,
              .on_let_go = [this] { controller_->used_no_more(); }})) {
  // Frontends may ask already.
  controller_->set_asked_for([this](std::string_view model) {
    if (controller::FirstLoad* const first = asked_.load()) first->want(model);
  });
  controller_->set_used_elsewhere([this](ModelId id) { return ensembles_->uses(id); });
}

controller::Options WholeServer::controller_options(const DeviceGroup& devices) const {
  controller::Options out = options_.controller;
  out.plans.memory = options_.memory;
  out.plans.note = options_.warn;
  if (devices.devices.size() == 1)
    out.plans.measure = [&device = devices.devices.front()](const engine::CompiledModel& model,
                                                            const engine::Plan& plan,
                                                            const std::atomic<bool>& ended) {
      return controller::measure_later(*device.engine, model, plan, device.worker.exec_threads, ended);
    };
  return out;
}

Result<> WholeServer::start() {
  controller::Controller& controller = *controller_;
  const WholeOptions& options = options_;
  std::vector<std::unique_ptr<worker::Worker>> workers;
  std::vector<controller::LoadTarget> targets;
  for (std::size_t i = 0; i < devices_.devices.size(); ++i) {
    const Device& device = devices_.devices[i];
    auto worker = worker::make_worker(device.worker, clock_,
                                      controller.results(DeviceId{static_cast<std::uint32_t>(i)}));
    if (!worker) return in_context("device " + std::to_string(i), worker.error());
    for (const std::string& note : (*worker)->notes()) options.tell(fmt::format("device {}: {}", i, note));
    options.tell(fmt::format("device {}: {}; {}", i, device.description, memory_text(device.worker)));
    if (!device.notice.empty()) options.warn(fmt::format("device {}: {}", i, device.notice));
    targets.push_back({.engine = device.engine.get(),
                       .worker = worker->get(),
                       .others = others_of(device),
                       .threads = device.worker.exec_threads,
                       .like_the_last = devices_.like_the_last[i],
                       .stop_cost = options.stop_cost,
                       .memory = options.memory});
    workers.push_back(std::move(*worker));
  }

  // What emulated devices and GPUs take is not to be had beside their workers.
  serves_early_ = std::ranges::all_of(devices_.devices, [](const Device& device) {
    return device.worker.populate && !device.worker.make_memory;
  });
  if (serves_early_ && targets.size() == 1)
    targets.front().later_plans = !options.plans_at_once && options.profile == nullptr;
  controller::LoaderOptions loading{.seeds = {.profile = options.profile,
                                              .repeats = serves_early_ ? 3 : 5,
                                              .aside = serves_early_,
                                              .ends_only = serves_early_,
                                              .kept = options.kept},
                                    .reading = options.reading,
                                    .makers = std::max(1, usable_processors()),
                                    .note = options.warn};
  loading.progress = [this](const controller::LoadProgress& progress) {
    // What fails is a note besides, and so a warning.
    if (options_.tell_step)
      options_.tell_step(fmt::format("[{}/{}] {}: {}", std::min(progress.done + 1, progress.total),
                                     progress.total, progress.model, progress.doing));
  };
  const bool orders = options.control == ModelControlMode::explicit_orders;
  for (const std::string& name : options.load)
    if (name != "*")
      if (const auto there = repository::read_entry(options.models, name, std::nullopt, options.reading);
          !there)
        return in_context("--load-model", there.error());
  if (orders && std::ranges::find(options.load, "*") == options.load.end())
    loading.wanted = [this](const std::string& model) {
      return std::ranges::find(options_.load, model) != options_.load.end();
    };
  first_ = std::make_unique<controller::FirstLoad>(options.models, targets, controller, std::move(loading));
  if (auto looked = first_->look(); !looked) return looked;
  for (std::size_t i = 0; i < workers.size(); ++i)
    controller.add_worker(std::move(workers[i]), devices_.devices[i].description);
  if (options.control != ModelControlMode::none) {
    const controller::SeedOptions seeds{.profile = nullptr, .aside = true, .kept = options.kept};
    controller::RepositoryOptions following{.explicit_orders = orders,
                                            .poll = orders ? std::nullopt : std::optional(options.poll),
                                            .seeds = seeds,
                                            .reading = options.reading,
                                            .tell = options.tell,
                                            .warn = options.warn};
    control_ = std::make_unique<controller::RepositoryControl>(options.models, std::move(targets), controller,
                                                               std::move(following));
    controller.set_control(control_.get());
  }
  if (options.before_serving) options.before_serving();
  asked_ = first_.get();
  controller.set_loading(true);
  if (serves_early_) serve();
  return {};
}

void WholeServer::serve() {
  controller_->start();
  ensembles_->start();
}

Result<> WholeServer::load() {
  controller::LoadReport loaded = first_->run();
  if (load_ended_) return fail(ErrorCode::cancelled, "the server is to stop");
  // Whoever names a file wants that one: there is nothing else to go on with.
  if (!options_.reading.files.empty())
    for (const controller::ModelView& view : controller_->models())
      if (loaded.stamps.failed.contains(view.name))
        return invalid("model '" + view.name + "' cannot be served: " + view.reason);
  ready_ = loaded.ready;
  models_ = loaded.ready + loaded.not_ready;
  loaded_ = true;
  if (!serves_early_) serve();
  if (control_ != nullptr) control_->start(std::move(loaded.stamps));
  controller_->set_loading(false);
  return {};
}

void WholeServer::end_load() {
  load_ended_ = true;
  if (first_ != nullptr) first_->end();
  if (control_ != nullptr && !loaded_) control_->stop();
  // What is just being compiled elsewhere need not be waited for; after load() that is for sizes of open
  // models.
  for (const Device& device : devices_.devices)
    for (const auto& other : device.others) other->end_loading();
}

std::vector<DeviceId> WholeServer::stop() {
  if (control_ != nullptr) control_->stop();
  end_load();
  controller_->stop();
  ensembles_->stop();
  return controller_->end_workers();
}

}  // namespace carillon::server
