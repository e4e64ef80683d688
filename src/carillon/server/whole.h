#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "carillon/base/clock.h"
#include "carillon/base/result.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/gates/ensembles.h"
#include "carillon/controller/models/first_load.h"
#include "carillon/controller/models/kept_times.h"
#include "carillon/controller/models/repository_control.h"
#include "carillon/profile/profile.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/server/devices.h"

namespace carillon::server {

// When models come and go after the start, as Triton names it.
enum class ModelControlMode : std::uint8_t {
  none,            // never
  poll,            // as the repository changes
  explicit_orders  // as clients ask for it
};

struct WholeOptions {
  std::filesystem::path models;
  repository::ReadOptions reading;
  ModelControlMode control = ModelControlMode::none;
  Duration poll =
      std::chrono::seconds{15};  // how often the repository is looked at, by ModelControlMode::poll
  // By explicit_orders: which models to load at the start; "*": all.
  std::vector<std::string> load;
  controller::Options controller;
  const profile::DeviceProfile* profile = nullptr;  // models that it knows are not measured
  // What was measured before of models that are measured while others serve; may be null.
  std::shared_ptr<const controller::KeptTimes> kept{};
  std::optional<double> stop_cost{};        // of all models; see controller::LoadTarget
  std::shared_ptr<MemoryAccount> memory{};  // what models may take; null: nobody counts
  // Plans for all batch sizes before a model is ready. Else, on one CPU, those of larger batches come later
  // (controller::BatchPlans), unless there is a profile.
  bool plans_at_once = false;
  std::function<void(const std::string&)> tell;  // what goes on, for people
  // Each step of each model that is made ready at the start, unless it cannot be: tell() hears that.
  std::function<void(const std::string&)> tell_step;
  std::function<void(const std::string&)> warn;
  std::function<void()> before_serving{};  // called once, by start(), before it serves
  // Of a worker of a cluster: who decides in place of a scheduler, and where rows of orders are. See
  // controller::Core.
  controller::MakeDecider decider{};
  controller::RowLookup* rows = nullptr;
};

// All models of a repository on all devices, under one scheduler: one controller, a worker for each device.
class WholeServer {
 public:
  // `devices` and `clock` outlive the server, and the workers that it leaves behind.
  WholeServer(WholeOptions options, std::unique_ptr<schedule::Scheduler> scheduler,
              const DeviceGroup& devices, const Clock& clock);

  // Makes the workers and reads the repository. Where all devices are CPUs it serves then, without a model so
  // far. Once.
  Result<> start();
  // Compiles and seeds the models. On CPUs each is served as soon as it is ready, those first that are asked
  // for; models of other devices are measured where they will run, before the server serves. The server is
  // ready when it returns. After start(), once, on any thread but stop()'s. Errors: a file that the
  // options name cannot be served; `cancelled` by end_load().
  Result<> load();
  // load() returns once it is through with what it is just making; orders that wait for it are refused. Any
  // thread.
  void end_load();
  // Already before start(): it is not ready then, and says so of every model that is not there yet.
  controller::Service& service() { return *ensembles_; }
  // For whoever decides from elsewhere.
  controller::Controller& controller() { return *controller_; }
  std::size_t ready() const { return ready_; }    // models
  std::size_t models() const { return models_; }  // that could not be loaded included
  // After load(). The devices that hang to the end, left behind with their workers' threads, which are in the
  // middle of something.
  std::vector<DeviceId> stop();

 private:
  controller::Options controller_options(const DeviceGroup& devices) const;
  void serve();

  const WholeOptions options_;
  const DeviceGroup& devices_;
  const Clock& clock_;
  std::unique_ptr<controller::Controller> controller_;
  std::unique_ptr<controller::FirstLoad> first_;      // declared before `ensembles_`, whose requests reach it
  std::unique_ptr<controller::Ensembles> ensembles_;  // in front of it
  std::unique_ptr<controller::RepositoryControl> control_;  // ends before it
  std::atomic<controller::FirstLoad*> asked_{nullptr};      // first_, once it knows the models
  std::atomic<bool> load_ended_{false}, loaded_{false};
  bool serves_early_ = false;
  std::size_t ready_ = 0;
  std::size_t models_ = 0;
};

}  // namespace carillon::server
