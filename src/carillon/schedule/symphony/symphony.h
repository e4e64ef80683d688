#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "carillon/schedule/fleet.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/state/book.h"
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
class Symphony final : public Scheduler {
 public:
  explicit Symphony(const Environment& environment, const SymphonyOptions& options = {});

  std::string_view name() const override { return options_.name; }
  std::optional<Environment> environment() const override { return fleet_.environment(); }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  const Mirror* mirror() const override { return &fleet_.mirror(); }

  const Fleet& fleet() const { return fleet_; }
  const symphony::BatchPlan& plan() const { return plan_; }

 private:
  // False: nothing else is to be done for it.
  bool hear(const RequestArrived& arrival, TimePoint now, Actions& out);
  bool hear(const AllArrived&, TimePoint, Actions&) { return true; }
  bool hear(const RequestCancelled& gone, TimePoint now, Actions& out);
  bool hear(const ActionDone& report, TimePoint now, Actions& out);
  bool hear(const DeviceChanged& change, TimePoint now, Actions& out);
  bool hear(const Wake& wake, TimePoint now, Actions& out);
  bool hear(const RequestProfiled&, TimePoint, Actions&) { return true; }
  bool hear(const ModelChanged& change, TimePoint now, Actions& out);
  bool hear(const TimesChanged& times, TimePoint now, Actions& out);
  void model_changed(const ModelChanged& change, TimePoint now, Actions& out);
  void times_changed(const TimesChanged& change, TimePoint now, Actions& out);
  void arrived(const Request& request, TimePoint now, Actions& out);
  void done(const ActionDone& event, TimePoint now, Actions& out);
  void margins_changed();
  void give_back(Fleet::Flight& flight, Book::Failure failure, TimePoint now, Actions& out);
  void update(ModelId model, TimePoint now, Actions& out);
  double wasted(ModelId model, int size) const;
  Duration put_back(ModelId model, int size) const;
  int spare_others(ModelId model, DeviceId device, TimePoint now);
  bool free_in_time(ModelId model, TimePoint latest, TimePoint now);
  bool growing_is_useless(ModelId model, int size) const;
  TimePoint asks_at(ModelId model, const symphony::Candidate& candidate, TimePoint now);
  void inform_device(DeviceId device, TimePoint now);
  void refuse(const Request& request, TimePoint now, Actions& out);
  void refuse_all(ModelId model, Reason reason, Actions& out);
  void refuse_dropped(TimePoint now, Actions& out);
  std::optional<TimePoint> usually_in_time(const Request& request, TimePoint now) const;
  bool leaves_room(TimePoint end) const;
  bool leisurely() const { return !options_.timeout && plan_.eager_contention() < options_.leisure; }
  void ask_anew(TimePoint now);
  bool send_stragglers(DeviceId device, TimePoint now, Actions& out);
  void run_stragglers(TimePoint now, Actions& out);
  void prepare(ModelId model);
  void replan(TimePoint now, Actions& out);
  void run_due(TimePoint now, Actions& out);

  SymphonyOptions options_;
  Fleet fleet_;
  std::vector<symphony::ModelMachine> machines_;
  symphony::RankMachine rank_;
  symphony::BatchPlan plan_;
  symphony::DeviceWaits waits_;
  TimerHeap refresh_;                          // models whose candidate has to be found anew
  TimePoint last_in_time_ = TimePoint::min();  // when a request with a deadline came
  Book book_;
  Stragglers stragglers_;
  std::uint64_t next_sequence_ = 0;
  std::vector<Request> dropped_;  // scratch
  std::vector<DeviceId> taken_;   // scratch of spare_others()
  TimePoint asked_wake_ = TimePoint::max();
};

}  // namespace carillon::schedule
