#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/schedule/central.h"
#include "carillon/schedule/state/stragglers.h"
#include "carillon/schedule/symphony/batch_plan.h"
#include "carillon/schedule/symphony/device_waits.h"
#include "carillon/schedule/symphony/model_machine.h"
#include "carillon/schedule/symphony/options.h"
#include "carillon/schedule/symphony/rank_machine.h"

namespace carillon::schedule {

// Symphony's deferred batch scheduling (Algorithm 1 and figure 18): a batch waits for more requests until its
// frontrun moment d - l(b+1), from which on one more request would make it late, and runs by d - l(b) on the
// free device with the smallest id. Both of its state machines are driven here in one thread.
//
// Beyond the paper: nothing is deferred while devices have more time than all requests need one by one
// (SymphonyOptions::leisure), and what the margins would refuse runs on a device that nobody else wants
// (Stragglers). A batch asks for a device before its frontrun moment where it would otherwise often come
// too late (DeviceWaits); batch sizes are planned from the models' rates (BatchPlan), and heads are dropped
// only where that serves more. Classes and priorities are ignored. Requests without a deadline
// (TimePoint::max()) run when no other waits: at once where no request with a deadline came lately
// (`rate_window`), else at most `longest_wait` later, so that those find a device.
class Symphony final : public Central {
 public:
  explicit Symphony(const Environment& environment, const SymphonyOptions& options = {});

  std::string_view name() const override { return options_.name; }

 private:
  void add_model(const ModelInfo& model) override;
  void enqueue(const Request& request, TimePoint) override {
    machines_[request.model.index()].enqueue(request);
  }
  bool remove(RequestId id, ModelId model) override;
  void take_all(ModelId model, std::vector<Request>& taken) override;
  TimePoint waiting_since(ModelId model) const override;
  std::size_t waiting_count(ModelId model) const override { return machines_[model.index()].queue().size(); }
  bool waits(ModelId model) const override;
  void tell_waiting(ModelId, TimePoint) override {}  // look() does
  void look(ModelId model, TimePoint now, Actions& out) override;
  void prepare(TimePoint now, Actions& out) override;
  void step(TimePoint now, Actions& out) override;
  bool always_steps() const override { return true; }  // what waits is planned anew by the clock
  TimePoint wake_at(TimePoint now) const override;
  void times_changed(ModelId model, TimePoint now) override;
  void asked(const Request& request, TimePoint now) override;
  void reported(const Fleet::Flight& flight, const ActionDone& done, TimePoint now) override;
  void device_changed(DeviceId, TimePoint) override { margins_changed(); }
  void update_device(DeviceId device, TimePoint now) override;
  void loaded(DeviceId device, TimePoint now) override { update_device(device, now); }
  void margins_changed() override;

  void take_times(ModelId model);
  double wasted(ModelId model, int size) const;
  Duration put_back(ModelId model, int size) const;
  int spare_others(ModelId model, DeviceId device, TimePoint now);
  bool free_in_time(ModelId model, TimePoint latest, TimePoint now);
  bool growing_is_useless(ModelId model, int size) const;
  TimePoint asks_at(ModelId model, const symphony::Candidate& candidate, TimePoint now);
  void refuse_late(const Request& request, TimePoint now, Actions& out);
  void refuse_dropped(TimePoint now, Actions& out);
  std::optional<TimePoint> usually_in_time(const Request& request, TimePoint now) const;
  bool leaves_room(TimePoint end) const;
  bool leisurely() const { return !options_.timeout && plan_.eager_contention() < options_.leisure; }
  void ask_anew(TimePoint now);
  bool send_stragglers(DeviceId device, TimePoint now, Actions& out);
  void run_stragglers(TimePoint now, Actions& out);
  void set_plan(ModelId model);

  SymphonyOptions options_;
  std::vector<symphony::ModelMachine> machines_;
  symphony::RankMachine rank_;
  symphony::BatchPlan plan_;
  symphony::DeviceWaits waits_;
  TimerHeap refresh_;                          // models whose candidate has to be found anew
  TimePoint last_in_time_ = TimePoint::min();  // when a request with a deadline came
  Stragglers stragglers_;
  std::uint64_t next_sequence_ = 0;
  std::vector<Request> dropped_;  // scratch
  std::vector<DeviceId> taken_;   // scratch of spare_others()
};

}  // namespace carillon::schedule
