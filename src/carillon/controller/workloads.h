#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "carillon/base/clock.h"
#include "carillon/controller/calls/service.h"
#include "carillon/controller/gates/directory.h"
#include "carillon/provision/standby.h"

namespace carillon::controller {

// One of the workloads that share a device by a plan: a model with a share of the device to itself.
struct WorkloadSpec {
  std::string id;                // in the plan
  double share_pct = 0;          // of the device's compute units
  double standby_share_pct = 0;  // that the standby has; 0: there is none
  provision::StandbyOptions watch;
};

// Several services, each with one model and a share of the device, as one: a request goes to the service of
// its model. Where a workload has a standby, its latencies are watched, and the standby gets the requests
// from the moment at which the watch says so; those that the other still holds are answered by it (iGniter,
// section 4.2).
//
// Only requests that ask for what the SLO promises are watched: one with a nearer deadline of its own, or one
// that is wrong, says nothing about the share; one with a later deadline has until then.
//
// Safe from any thread once all are added.
class Workloads final : public Service {
 public:
  // `on_takeover` is told when a standby takes over, on the thread that gives an answer; it must be quick.
  explicit Workloads(const Clock& clock, std::function<void(const WorkloadSpec&)> on_takeover = {})
      : clock_(clock), on_takeover_(std::move(on_takeover)) {}

  // Before any other call. `serving` and `standby` (which may be null) serve one model each, the same.
  void add(const WorkloadSpec& spec, std::unique_ptr<Service> serving, std::unique_ptr<Service> standby);
  // A model that nobody serves: `view.reason` says why. Or an ensemble (Directory).
  void add_unready(ModelView view);
  Result<> state(std::string_view model, std::int64_t version) const {
    return directory_.state(model, version);
  }

  bool ready() const override;
  std::vector<ModelView> models() const override { return directory_.all(); }
  ModelCounts model_counts() const override { return directory_.counts(); }
  Result<std::shared_ptr<const ModelView>> find(std::string_view model,
                                                std::string_view version) const override {
    return directory_.find(model, version);
  }
  TimePoint now() const override { return clock_.now(); }
  std::uint64_t submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) override;
  void cancel(std::uint64_t ticket) override;
  // A workload's are those of both its services.
  // As devices: the services, each with its share of the one.
  ServerStatistics statistics() const override;
  const Journal* journal() const override;
  Duration expected(ModelId model, int rows) const override;
  std::shared_ptr<const Ensemble> ensemble(ModelId id) const override { return directory_.ensemble(id); }
  bool responds(Duration longest) override;
  std::vector<TimelinePart> timelines() const override;

  bool on_standby(std::size_t workload) const { return workloads_[workload].active.load() == 1; }

 private:
  struct Workload {
    explicit Workload(const WorkloadSpec& of) : spec(of), watch(of.watch) {}
    WorkloadSpec spec;
    std::array<ModelId, 2> models;  // as the services know it
    std::atomic<int> active{0};
    std::mutex mutex;  // of `watch`
    provision::StandbyWatch watch;
    std::array<std::unique_ptr<Service>, 2> services;  // end first: they still answer then
  };

  void observe(Workload& workload, const InferAnswer& answer, TimePoint arrival, TimePoint own_deadline);

  const Clock& clock_;
  std::function<void(const WorkloadSpec&)> on_takeover_;
  Directory directory_;
  std::deque<Workload> workloads_;  // by the ids that our views give
};

}  // namespace carillon::controller
