#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/controller/controller.h"
#include "carillon/controller/gates/ensembles.h"
#include "carillon/controller/models/model_loader.h"
#include "carillon/controller/workloads.h"
#include "carillon/server/device.h"

namespace carillon::server {

struct PlannedOptions {
  std::filesystem::path models;
  repository::ReadOptions reading;
  std::filesystem::path plan;
  std::optional<int> number;  // of the plan's device; none: its only one
  bool standbys = true;
  std::string scheduler;
  schedule::Environment environment = schedule::live_environment();
  controller::Options controller;
  DeviceArguments device;
  // What models and the caches of workloads may take of this host's memory; null: nobody counts.
  std::shared_ptr<MemoryAccount> memory{};
  std::function<void(const std::string&)> tell;  // what goes on, for people
};

// The workloads of one device of a plan, each with a controller and a worker of its own whose plans are held
// to the workload's share of the device's threads, and with a standby where shares are left. They are
// compiled, measured at their shares, and serving when this returns.
class PlannedServer {
 public:
  static Result<std::unique_ptr<PlannedServer>> start(const PlannedOptions& options, const Clock& clock);
  ~PlannedServer() { stop(); }

  controller::Service& service() { return *ensembles_; }
  std::size_t workloads() const { return count_; }
  // What the caches of all workloads and standbys may come to have of this host's memory.
  Bytes caches() const { return caches_; }
  void stop();

 private:
  PlannedServer() = default;
  void add_ensembles(const std::vector<repository::RepositoryEntry>& entries);

  std::unique_ptr<controller::Workloads> workloads_;
  std::unique_ptr<controller::Ensembles> ensembles_;  // in front of it
  std::vector<controller::Controller*> controllers_;  // that workloads_ owns
  std::size_t count_ = 0;
  Bytes caches_;
  std::vector<MemoryAccount::Charge> charges_;  // for them
};

}  // namespace carillon::server
