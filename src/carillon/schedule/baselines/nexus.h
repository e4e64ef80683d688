#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "carillon/schedule/central.h"
#include "carillon/schedule/symphony/model_machine.h"

namespace carillon::schedule::baselines {

// A model on a backend, as planned.
struct Session {
  ModelId model;
  int batch = 1;
  double rate = 0;  // requests a second that it is planned for
};
using Backend = std::vector<Session>;

// Squishy bin packing (Nexus, SOSP 2019, section 6.1 and Algorithm 1): whole devices for what a model needs
// of them at the largest batch with 2*l(b) <= SLO, then what is left of each model at the largest batch with
// l(b) + b/rate <= SLO, merged best fit first into duty cycles. `rates` are requests a second by model,
// `slos` the models' SLOs, `machines` their times. Returns as many backends as it takes; or some that are
// more than `limit`, as soon as it is sure to take more than that. O(models x backends).
std::vector<Backend> squishy_bin_packing(const std::vector<double>& rates, const std::vector<Duration>& slos,
                                         const std::vector<symphony::ModelMachine>& machines,
                                         std::size_t limit = 1'000'000);

// Nexus: every epoch (10 s; the first after 1 s) the devices are planned anew by squishy bin packing from the
// rates seen, scaled so that the plan uses all devices (a larger scale where there is room, a smaller one
// under overload). A request is routed on arrival to one backend of its model, in proportion to the planned
// rates, and stays there: no device helps another. A backend runs its models round robin, at once, as
// many requests as can be in time, and drops heads early that keep a batch below the planned size. (Holding
// batches to the planned size as well halves the goodput of many models on many devices, which is then far
// below what the paper measured.) Before the first plan all models are on all devices, in turn. Batch times
// are those measured last. A request costs O(backends of its model), a batch O(log models of the backend), a
// plan O(models x devices) times the trials for the scale.
class Nexus final : public Central {
 public:
  explicit Nexus(const Environment& environment, Duration epoch = 10s, Duration first = 1s)
      : Central(environment), epoch_(epoch), next_plan_(TimePoint{} + first), first_(first) {}
  std::string_view name() const override { return "nexus"; }

 protected:
  void add_model(const ModelInfo& model) override;
  void enqueue(const Request& request, TimePoint now) override;
  bool remove(RequestId id, ModelId model) override;
  void take_all(ModelId model, std::vector<Request>& taken) override;
  TimePoint waiting_since(ModelId model) const override;
  std::size_t waiting_count(ModelId) const override { return 0; }  // they wait for the plan's devices
  void step(TimePoint now, Actions& out) override;
  TimePoint wake_at(TimePoint now) const override;
  void reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) override;
  void device_changed(DeviceId device, TimePoint now) override;
  void times_changed(ModelId model, TimePoint now) override;
  void margins_changed() override;

 private:
  struct Slot {  // a session on its backend
    std::uint32_t device = 0;
    std::uint32_t place = 0;  // in it
    Session session;
    symphony::ModelMachine machine;
    double credit = 0;                   // of weighted round robin
    TimePoint since = TimePoint::max();  // arrival of its head, as listed in Model::waiting
  };
  struct Model {
    std::vector<std::uint32_t> slots;
    std::set<std::pair<TimePoint, std::uint32_t>>
        waiting;                    // of these, those that have requests, by their heads
    std::uint32_t next_device = 0;  // before the first plan
    std::uint64_t arrived = 0;
    Duration slo{0};
  };
  struct Device {
    std::vector<std::uint32_t> slots;
    std::set<std::uint32_t> waiting;  // places that have requests
    std::size_t turn = 0;             // where round robin goes on
  };
  void plan(TimePoint now);
  void install(const std::vector<Backend>& backends, TimePoint now);
  void run(std::uint32_t device, TimePoint now, Actions& out);
  std::uint32_t add_slot(std::uint32_t device, const Session& session);
  std::uint32_t choose_slot(ModelId model);
  void queue_changed(std::uint32_t slot);

  Duration epoch_;
  TimePoint next_plan_;
  Duration first_;
  TimePoint last_plan_ = TimePoint::min();
  std::vector<symphony::ModelMachine> machines_;  // without requests: the times
  std::vector<Model> models_;
  std::deque<Slot> slots_;
  std::vector<Device> backends_;
  std::set<std::uint32_t> busy_;  // devices that have requests waiting
  TimerHeap expiry_;              // slots by their heads' deadlines
  std::vector<Request> dropped_;  // scratch
};

}  // namespace carillon::schedule::baselines
