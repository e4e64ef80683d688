#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/service.h"
#include "carillon/controller/controller.h"
#include "carillon/controller/models/model_loader.h"
#include "carillon/controller/models/stamps.h"
#include "carillon/repository/given_files.h"

namespace carillon::controller {

struct RepositoryOptions {
  // Takes load() and unload() (Triton's explicit mode). Else they fail.
  bool explicit_orders = false;
  // Looks so often whether the repository has changed, and follows it (Triton's poll mode).
  std::optional<Duration> poll;
  // How long the end of a model waits for its calls, and again for devices to let go of it.
  Duration patience = std::chrono::seconds{30};
  // How often it is tried again to end what devices did not let go of.
  Duration try_again = std::chrono::seconds{1};
  // Bytes of files that may wait with orders; the files of one order may be more.
  std::size_t most_waiting_bytes = std::size_t{256} << 20;
  SeedOptions seeds;
  repository::ReadOptions reading;
  std::function<void(const std::string&)> tell;  // what goes on, for people
  std::function<void(const std::string&)> warn;
};

// Follows a repository while the server runs: one order, or one look, at a time, on a thread of its own.
//
// A version is read, compiled (at low priority), measured beside what serves, and takes the place of what was
// served under its name: calls that came before get their answers from the old one, which ends when they
// have them. What cannot be loaded leaves in place what is served. A version whose files and config (without
// its version_policy) are as they were when it was loaded is not loaded again, but by an order that brings
// files. With an ensemble those of its models come that are not served yet.
class RepositoryControl final : public ModelControl {
 public:
  // `targets` and `controller`, into which load_models() brings the repository, outlive it.
  RepositoryControl(std::filesystem::path directory, std::vector<LoadTarget> targets, Controller& controller,
                    RepositoryOptions options);
  ~RepositoryControl() override;  // stops
  RepositoryControl(const RepositoryControl&) = delete;
  RepositoryControl& operator=(const RepositoryControl&) = delete;

  // After the controller's. `taken`: what load_models() has brought. Does nothing where neither orders nor
  // polls are wanted; orders that come before wait for it.
  void start(Stamps taken);
  // Before the controller's. Orders that wait are answered `unavailable`. Again: nothing.
  void stop();

  void load(std::string model, Brought brought, Done done) override;
  void unload(std::string model, bool dependents, Done done) override;

 private:
  struct Order {
    bool loads = true;
    std::string model;
    Brought brought;
    bool dependents = false;
    Done done;
  };

  void give(Order order);
  void run();
  Result<> carry_out(const Order& order, std::vector<ModelId>& replaced);
  void look();
  void tell_skipped(const std::vector<std::string>& lines);
  Result<> load_now(const std::string& model, const Brought& brought, std::vector<ModelId>& replaced);
  Result<> load_steps(const repository::ModelConfig& ensemble, std::vector<ModelId>& replaced);
  Result<> put_ensemble(const repository::RepositoryEntry& entry, const repository::ModelVersion& version,
                        const std::string& stamp, const ModelId* was, std::vector<ModelId>& replaced);
  Result<> try_to_load(const std::string& model, const Brought& brought, std::vector<ModelId>& replaced);
  Result<> unload_now(const std::string& model, bool dependents, std::vector<ModelId>& replaced);
  bool in_an_ensemble(const std::string& model) const;
  void end(const std::vector<ModelId>& replaced);
  void remove_left();
  std::vector<ModelView> views_of(const std::string& model) const;
  void take_out(ModelView view, std::string reason, std::vector<ModelId>& replaced);

  const std::filesystem::path directory_;
  const std::vector<LoadTarget> targets_;
  Controller& controller_;
  const RepositoryOptions options_;
  Stamps stamps_;  // the thread's
  // Folders of files that orders brought, by model, and those of models that are about to end; likewise.
  // Other engines read a file again when their process ends, so that it stays as long as the model.
  std::map<std::string, std::vector<repository::GivenFolder>> given_;
  std::vector<repository::GivenFolder> given_before_;
  int depth_ = 0;         // of ensembles that are being loaded for others; likewise
  std::size_t left_ = 0;  // models that went, and that devices still have; likewise

  std::stop_source ending_;
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::deque<Order> orders_;
  std::size_t waiting_bytes_ = 0;  // of files that came with them
  bool running_ = false;
  std::thread thread_;
};

}  // namespace carillon::controller
