#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/schedule/clockwork/fair_share.h"
#include "carillon/schedule/clockwork/model_queue.h"
#include "carillon/schedule/clockwork/options.h"
#include "carillon/schedule/load_priority.h"
#include "carillon/schedule/loads_ahead.h"
#include "carillon/schedule/request_table.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/state/book.h"
#include "carillon/schedule/state/mirror.h"
#include "carillon/schedule/state/stragglers.h"
#include "carillon/schedule/timer_heap.h"

namespace carillon::schedule {

// Clockwork's policy (section 5.3 and appendix B), with requests without a deadline added. Classes are
// Classed's: this one takes every request for a normal one.
//
// INFER: each device's EXEC executor is given work a little before it is free. Of all loaded models' queues
// the strategy with the nearest required start goes first. The paper's one queue of strategies is kept as a
// queue of requests a model, and, a device, an ordered set of lower bounds of the queues' required starts:
// the search walks the set in order and stops when no later queue can win, which finds the same strategy
// (clockwork_test.cpp holds both against each other). The queues of a model that many devices have (`wide`)
// stand in one set for all devices, with bounds for all: else each request would be listed at every device.
// LOAD: the highest positive load priority; UNLOAD: least recently used, never one with pending actions.
// Beyond the paper, an idle LOAD executor loads models whose requests were refused although a device that has
// them could have served them: no LOAD was quick enough, or all copies were busy (then only into free
// memory). Refusals: on arrival, if no device could answer it in time with what it was sent already; later,
// when the last start that would be in time has passed (a wake is asked for then).
//
// What a batch may outlast its estimate by, and how long an INFER and its answer are on their way, is known
// of each device by its Margins: measured where the environment says so.
//
// Margins count where requests compete. One that they would refuse, and that is on time where all goes as
// usual (medians instead of tails), runs on a device that nobody else wants: it waits among the Stragglers
// until one has nothing better to do, or until even that would be too late.
//
// Where the environment says so, requests that would be late behind what a device was sent go before it,
// where that makes nothing of it late (overtake()): what runs makes way, and goes on behind them.
//
// Rank of a request: those with a deadline go before those without. Those without are served in order of
// arrival when there is room; after Options::patience they may also go before those with one, at a bounded
// share of time.
//
// A decision costs O(log n) in waiting requests, models and devices, times the queues whose bound beats the
// winner; what concerns the devices that could serve a request (admission, who gets it) is looked up in the
// order in which they will be free, and stops at the first that does. Where something is to be loaded it
// costs O(devices x models that want it).
class Clockwork final : public Scheduler, public LoadsAhead {
 public:
  explicit Clockwork(const Environment& environment, const ClockworkOptions& options = {});
  Clockwork(const Clockwork&) = delete;
  Clockwork& operator=(const Clockwork&) = delete;

  std::string_view name() const override { return "clockwork"; }
  std::optional<Environment> environment() const override { return state_.margins().worst(); }
  TimePoint decide(const Event& event, TimePoint now, Actions& out) override;
  bool load_ahead(const LoadAhead& wanted, TimePoint now, Actions& out) override;
  const Mirror* mirror() const override { return &state_; }
  void reads(ledger::Ledger& ledger) override { state_.reads(ledger); }

  const Mirror& state() const { return state_; }

 private:
  static constexpr int ranks = 2;
  static constexpr int urgent_rank = 0, patient_rank = 1;  // with a deadline, and without
  static bool has_deadline(const Request& request) { return request.deadline != TimePoint::max(); }
  static int rank_of(const Request& request) { return has_deadline(request) ? urgent_rank : patient_rank; }
  static constexpr DeviceId no_device{std::numeric_limits<std::uint32_t>::max()};

  static constexpr std::uint64_t unknown_version = ~std::uint64_t{0};
  // A model on more devices than this is wide.
  static constexpr std::size_t few_places = 8;

  // Lower bounds of a model's queues, as they are listed in `ready` sets.
  struct Bounds {
    std::array<TimePoint, ranks> bound{};
    std::array<bool, ranks> listed{};
  };
  using Ready = std::array<std::set<std::pair<TimePoint, ModelId>>, ranks>;
  static bool nobody_waits(const Ready& ready) {
    return std::ranges::all_of(ready, [](const auto& queues) { return queues.empty(); });
  }
  // A device where a model is loading or loaded, with the bounds in that device's `ready` sets.
  struct Place {
    DeviceId device;
    Bounds bounds;
  };
  struct Model {
    std::array<ModelQueue, ranks> queues;
    std::vector<Place> places;     // none for a model of zero pages, which is everywhere
    bool wide = false;             // its queues are listed in wide_
    Bounds bounds;                 // there
    mutable Duration shortest{0};  // over its places, when exec_version was shortest_version; where wide
    mutable std::uint64_t shortest_version = unknown_version;
    TimePoint patient_since = TimePoint::max();  // as listed in patient_
    TimePoint missed_since = TimePoint::max();   // as listed in missed_
    TimePoint missed_at = TimePoint::min();      // the last time
    DeviceId room_on = no_device;                // where room was made for it last
    bool load_late = false;                      // its last LOAD came too late for its window
  };
  struct Port {  // the policy's own view of a device
    Ready ready;
    std::optional<TimePoint> end;       // as listed in by_end_
    TimePoint wake = TimePoint::max();  // as listed in wakes_
    TimePoint patient_exec_at = TimePoint::min(), patient_load_at = TimePoint::min();
  };
  struct Choice {
    ModelId model;
    int rank = 0;
    Strategy strategy;
    TimePoint start;  // expected
    TimePoint ready;  // of the weights
    bool loaded = true;
  };

  // How long before an executor is expected to be free it is given more: one number for all devices, the way
  // to the slowest, so that whoever is free sooner is asked sooner.
  Duration ahead() const {
    return std::max(options_.ahead, std::min(state_.margins().worst().dispatch, options_.longest_ahead));
  }

  // clockwork.cpp: what happens.
  void arrived(const RequestArrived& arrival, TimePoint now, Actions& out);
  Duration demand_of(const Request& request) const;
  void cancelled(RequestId id);
  void done(const ActionDone& event, TimePoint now, Actions& out);
  void changed(const DeviceChanged& event, TimePoint now, Actions& out);
  void model_changed(const ModelChanged& event, TimePoint now, Actions& out);
  void renew_model(const ModelChanged& event, TimePoint now, Actions& out);
  void times_changed(const TimesChanged& event, TimePoint now, Actions& out);
  std::vector<RequestId> take_waiting(ModelId model);
  void enqueue(OpenRequest& open);
  void give_back(const SentAction& infer, std::optional<ActionStatus> status, TimePoint now, Actions& out);
  void expire(TimePoint now, Actions& out);
  void refuse_all(ModelId model, Reason reason, TimePoint now, Actions& out);
  TimePoint next_wake(TimePoint now) const;

  // stragglers.cpp: what runs on devices that nobody else wants.
  Duration usual_span(DeviceId device, ModelId model, int batch_index) const;
  std::optional<TimePoint> last_usual_start(const Request& request) const;
  bool usually_in_time(const Request& request, TimePoint now) const;
  bool unwanted(DeviceId device) const;
  void refuse_late(Request request, TimePoint now, Actions& out);
  void straggle(OpenRequest& open, TimePoint last_start);
  bool send_stragglers(DeviceId device, TimePoint now, Actions& out);
  void expire_stragglers(TimePoint now, Actions& out);
  template <typename Visit>
  void visit_loaded(ModelId model, Visit&& visit) const;

  // infer.cpp: which batch runs next.
  void fill(DeviceId device, TimePoint now, Actions& out);
  void fill_due(TimePoint now, Actions& out);
  bool overtake(DeviceId device, TimePoint now, Actions& out);
  std::optional<Choice> urgent(DeviceId device, const Overtaking& at, TimePoint now);
  std::size_t overtaking_sizes(DeviceId device, std::span<const BatchCost> costs, const Overtaking& at) const;
  bool could_overtake(const Request& request, TimePoint now) const;
  template <typename Visit>
  void visit_busy(ModelId model, TimePoint now, Visit&& visit) const;
  void offer(ModelId model, TimePoint now, Actions& out);
  void offer_wide(ModelId model, TimePoint now, Actions& out);
  std::optional<Choice> choose(DeviceId device, TimePoint free, TimePoint now);
  std::optional<Choice> best_of_rank(DeviceId device, int rank, TimePoint free, TimePoint now);
  TimePoint soonest_elsewhere(ModelId model, TimePoint until, TimePoint now);
  void spare_others(DeviceId device, Choice& choice, TimePoint now);
  void send_infer(DeviceId device, const Choice& choice, TimePoint now, Actions& out,
                  const Overtaking* at = nullptr);
  void add_demand(ModelId model, Duration work);
  void update_queue(ModelId model, int rank);
  void update_bounds(ModelId model, DeviceId device);
  void update_queues();
  static void list(ModelId model, std::size_t rank, std::optional<TimePoint> bound, Bounds& bounds,
                   Ready& ready);
  static void unlist(ModelId model, Bounds& bounds, Ready& ready);
  void update_end(DeviceId device);
  void set_wake(DeviceId device, TimePoint at);
  // From the start of EXEC for one row until it is answered.
  Duration span_of_one(DeviceId device, ModelId model) const;
  // When what is sent now can start, at the soonest.
  TimePoint soonest_start(DeviceId device, TimePoint now) const;
  std::span<const BatchCost> costs(DeviceId device, ModelId model, std::size_t waiting) const;
  std::span<const BatchCost> longest_costs(ModelId model, std::size_t waiting) const;
  template <typename Visit>
  void visit_ready(DeviceId device, std::size_t rank, Visit&& visit) const;
  bool wide_waiting() const;
  bool runs_out_of_patience(DeviceId device, TimePoint now) const;
  Duration shortest_exec(ModelId model) const;
  double devices_for(ModelId model, double rate, Duration slo) const;
  TimePoint last_start(ModelId model, TimePoint deadline) const;
  // A lone request that is sent now would be answered in time by some device that has the model, or will.
  bool in_time(ModelId model, TimePoint deadline, TimePoint now) const;
  // When a lone request that is sent now would be answered, on the best device; max() where none can hold it.
  TimePoint would_finish(ModelId model, TimePoint now) const;
  TimePoint would_finish_on(DeviceId device, ModelId model, TimePoint now) const;
  bool waiting(ModelId model) const;
  bool everywhere(ModelId model) const { return state_.model(model).pages == 0; }
  bool nowhere(ModelId model) const {
    return everywhere(model) ? state_.alive_count() == 0 : models_[model.index()].places.empty();
  }
  // Loaded, or being loaded.
  bool placed(DeviceId device, ModelId model) const {
    const Residence residence = state_.residence(device, model);
    return residence == Residence::loaded || residence == Residence::loading;
  }

  // loads.cpp: what is loaded where.
  void run_loads(TimePoint now, Actions& out);
  bool load_patient(DeviceId device, TimePoint now, Actions& out);
  bool load_missed(DeviceId device, TimePoint now, Actions& out);
  void missed(const Request& request, TimePoint now, Actions& out);
  void load_for_missed(const Request& request, TimePoint now, Actions& out);
  void set_missed(ModelId model, TimePoint since);
  void set_wide(ModelId model, bool wide);
  bool has_room_elsewhere(DeviceId device, ModelId model) const;
  bool load_wanted(DeviceId device, TimePoint now, Actions& out);
  enum class LoadAttempt { sent, evicting, impossible };
  LoadAttempt try_load(DeviceId device, ModelId model, TimePoint latest, TimePoint now, Actions& out,
                       std::optional<Duration> unused_for = std::nullopt);
  bool make_room(DeviceId device, ModelId model, TimePoint now, Actions& out,
                 std::optional<Duration> unused_for);
  TimePoint last_useful_load(DeviceId device, ModelId model) const;
  void place(ModelId model, DeviceId device);
  void displace(ModelId model, DeviceId device, TimePoint now);
  bool has_place(ModelId model, DeviceId device) const;
  void adopt_places(ModelId model);
  void give_place(ModelId model, DeviceId device);
  void take_place(ModelId model, DeviceId device, TimePoint now);

  ClockworkOptions options_;
  bool preempts_;
  Mirror state_;
  RequestTable requests_;
  Book book_;
  std::vector<Model> models_;
  std::vector<Port> ports_;
  FairShare shares_;  // of requests with a deadline
  LoadPriority needed_;
  TimerHeap expiries_;  // of the heads of queues with deadlines, by model
  Stragglers stragglers_;
  Ready wide_;
  TimerHeap wakes_;  // by device
  // Devices that are alive, by the expected end of what they were sent; min() for the idle.
  std::set<std::pair<TimePoint, DeviceId>> by_end_;
  // Up to here in that order they have been looked at for wide queues since they came to have room.
  std::pair<TimePoint, DeviceId> room_seen_{TimePoint::min(), no_device};
  // Models that are nowhere and have requests without a deadline, by the arrival of the first.
  std::set<std::pair<TimePoint, ModelId>> patient_;
  // Models that are nowhere and had requests refused for that alone, by the first time.
  std::set<std::pair<TimePoint, ModelId>> missed_;
  TimePoint load_wake_ = TimePoint::max();
  std::set<ModelId> gathered_;  // of requests that came with others, and are not yet decided on
  TimePoint asked_wake_ = TimePoint::max();
  std::uint64_t next_sequence_ = 0;
  mutable std::vector<BatchCost> costs_;  // scratch
  std::vector<BatchCost> own_costs_;      // scratch
  std::vector<DeviceId> taken_;           // scratch of spare_others()
};

}  // namespace carillon::schedule
