#include "carillon/simulate/simulation.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/dispatch/dispatch.h"
#include "carillon/dispatch/notes.h"
#include "carillon/simulate/calendar.h"
#include "carillon/simulate/decisions.h"
#include "carillon/simulate/devices.h"
#include "carillon/simulate/observed.h"
#include "carillon/simulate/statistics.h"
#include "carillon/wire/ends.h"
#include "carillon/workload/clients.h"

namespace carillon::simulate {
namespace {

using Outcome = Observer::Outcome;

// A closed loop's client that is answered at once does not send again within the same instant.
constexpr Duration shortest_turn = 100us;

std::uint64_t pages_of(const workload::Scenario& scenario, const workload::ScenarioModel& model) {
  return scenario.memory ? pages_for(model.weights) : 0;
}

Duration load_time(const workload::Scenario& scenario, const workload::ScenarioModel& model) {
  if (!scenario.memory) return Duration{0};
  if (model.load) return *model.load;
  return from_seconds(static_cast<double>(model.weights.count) / scenario.pcie_bytes_per_s);
}

struct Record {
  Request request;
  Duration own{0};
  bool open = true;    // has no outcome yet
  bool heard = false;  // by the scheduler, or the door before it
  bool keep = false;   // what it takes to run it again, once it is answered
  bool more = false;   // others come with it
};

// The requests by id, from the first that is open on: ids ascend by one. A ring, as each is asked for often.
class Records {
 public:
  RequestId first() const { return RequestId{first_}; }
  RequestId next() const { return RequestId{end_}; }
  void add(const Record& record) {
    if (end_ - first_ == ring_.size()) grow();
    ring_[end_++ & (ring_.size() - 1)] = record;
  }
  // Until the next one is added.
  Record* find(RequestId id) {
    return id.value - first_ < end_ - first_ ? &ring_[id.value & (ring_.size() - 1)] : nullptr;
  }
  const Record* find(RequestId id) const { return const_cast<Records*>(this)->find(id); }
  void forget_ended() {
    while (first_ < end_ && !ring_[first_ & (ring_.size() - 1)].open) ++first_;
  }

 private:
  void grow() {
    std::vector<Record> larger(2 * ring_.size());
    for (std::uint64_t id = first_; id < end_; ++id)
      larger[id & (larger.size() - 1)] = ring_[id & (ring_.size() - 1)];
    ring_ = std::move(larger);
  }

  std::vector<Record> ring_ = std::vector<Record>(64);  // a power of two
  std::uint64_t first_ = 0, end_ = 0;
};

// By model and mode. Ids are dense, in the order of the scenario's names; 0 is that of no name.
std::vector<std::vector<AppId>> applications(const workload::Scenario& scenario) {
  std::map<std::string, AppId> ids{{"", AppId{0}}};
  std::vector<std::vector<AppId>> apps;
  for (const workload::ScenarioModel& model : scenario.models) {
    auto& of_model = apps.emplace_back();
    for (const workload::LatencyMode& mode : model.latency.modes)
      of_model.push_back(
          ids.try_emplace(mode.app, AppId{static_cast<std::uint32_t>(ids.size())}).first->second);
  }
  return apps;
}

bool closed_loop(const workload::Scenario& scenario, const workload::ScenarioModel& model) {
  return model.process.value_or(scenario.process).kind == workload::ArrivalKind::closed &&
         model.arrivals.empty() && model.per_minute.empty();
}

// What the dispatcher is run with. Devices come back by themselves, some seconds after they died, and nobody
// asks them before that; nor how they are, as they have no threads.
dispatch::Options dispatch_options() {
  constexpr Duration long_after = 1h;
  return {.slow_after = Duration::max(),
          .revivals = {.pause = long_after, .longest_pause = long_after},
          .on_leisure = {},
          .on_decided = {}};
}

// The run: clients, the network between them and a dispatcher, and the order of all that happens.
class Simulation final : public wire::Calls, public Devices::Owner, public Decisions::Owner {
 public:
  Simulation(const workload::Scenario& scenario, schedule::Scheduler& scheduler, const Options& options)
      : scenario_(scenario),
        options_(options.with(scenario)),
        infos_(model_infos(scenario)),
        clients_(scenario),
        random_(scenario.seed ^ 0x5bd1e9955bd1e995ULL),
        apps_(applications(scenario)),
        delay_(scenario.network_delay),
        statistics_(scenario, options_),
        charged_(takes_time(options_)),
        scheduler_(scheduler, options_, statistics_.figures),
        dispatch_(scheduler_, dispatch_options(), *this, notes_),
        decisions_(options_.shed_time, *this),
        devices_(scenario, infos_, options_, random_, statistics_, *this) {
    if (options_.scaling) scaling_.emplace(*options_.scaling, scenario.devices);
  }

  Figures run();

 private:
  // The way to a device.
  class Link final : public wire::DeviceLink {
   public:
    Link(Simulation& simulation, DeviceId device) : simulation_(simulation), device_(device) {}

    void send(const ledger::Load& order) override { give(order); }
    void send(const ledger::Unload& order) override { give(order); }
    void send(const ledger::Infer& order) override { give(order); }
    void send(const ledger::Profile& order) override { give(order); }
    void stop(ActionId id) override { give(ledger::Stop{id, device_}); }
    void preempt(ActionId id, TimePoint order) override { give(ledger::Preempt{id, device_, order}); }
    void retire(std::uint32_t life) override {
      life_ = life;
      give(ledger::GiveUp{device_});
    }
    void probe() override {}
    ledger::Excuse slowness(ledger::Lane lane) override { return {.device = {}, .lane = lane}; }
    wire::Credit credit() const override { return {}; }
    std::uint64_t pages() const override { return simulation_.devices_.pages(); }
    int best_effort() const override { return 1; }

    std::uint32_t life() const { return life_; }

   private:
    template <typename Order>
    void give(const Order& order) {
      simulation_.give(order);
    }

    Simulation& simulation_;
    const DeviceId device_;
    std::uint32_t life_ = 0;  // as the dispatcher knows it
  };

  struct Notes final : dispatch::Notes {
    explicit Notes(Simulation& of) : simulation(of) {}
    void odd_report(DeviceId device) override { simulation.scheduler_.nothing_new(device, simulation.now_); }
    Simulation& simulation;
  };

  // Of the dispatcher. Answers come to clients beside the report, and do not wait for the thread that
  // decides: see reported().
  std::uint64_t sent(RequestId, ModelId, std::uint64_t) override { return 0; }
  void came_back(RequestId) override { CARILLON_ASSERT(false); }  // credit is endless
  void ended(RequestId id, const wire::Report& report, TimePoint) override {
    CARILLON_ASSERT(report.status != schedule::ActionStatus::success || !open(id));
  }
  void turned_down(RequestId, const Error&) override { CARILLON_ASSERT(false); }  // no data is bad
  void lost(RequestId, std::string_view) override {}
  void refused(const wire::Verdict& verdict, TimePoint) override { give(verdict.refusal); }
  void keep(RequestId id) override { give(ledger::Keep{id}); }
  void forget(RequestId id) override { give(ledger::Keep{id, false}); }
  // Of the devices.
  void plan(TimePoint at, Step step) override { calendar_.plan(std::max(at, now_), step); }
  void reported(const Devices::Flight& flight, const wire::Report& report, bool again) override;
  void died(DeviceId device, std::uint32_t life) override;
  void comes(DeviceId device, std::uint32_t life) override {
    hear(wire::ProbeReport{.found = {}, .life = life, .device = device});
  }
  bool deciding() const override { return deciding_; }
  // Of the decisions.
  Duration decide(const Heard& what) override;
  void decided_at(TimePoint at) override { plan(at, DecisionMade{}); }
  void turned_away(RequestId id) override;
  bool open(RequestId id) const override {
    const Record* r = records_.find(id);
    return r != nullptr && r->open;
  }

  void on(const DecisionMade&);
  void on(const ClientSends& step) {
    if (now_ < statistics_.end()) send(step.model);
  }
  void on(const RequestHeard& step) { arrived(step.id); }
  void on(const AllHeard&);
  void on(const ClientGoes& step);
  void on(const SchedulerWakes& step);
  void on(const NothingToProfile& step);
  void on(const DevicesScale&);
  void on(const DeviceStarts& step) {
    if (scaling_->starts(step.device, step.booking, now_)) devices_.turn_on(DeviceId{step.device}, now_);
  }
  void on(const DeviceLeaves& step);
  template <typename DeviceEvent>
  void on(const DeviceEvent& step) {
    devices_.on(step, now_);
  }

  // Requests that are open: so many more, or fewer.
  void count_open(int more) {
    usual_.open_seconds += to_seconds(now_ - counted_open_) * static_cast<double>(open_);
    counted_open_ = now_;
    open_ += static_cast<std::uint64_t>(more);
  }
  UsualScaler::Counters usual_so_far();
  void start_closed_loops();
  bool show_progress();
  void send(ModelId model);
  Duration draw_own(ModelId model, Request& request);
  void arrived(RequestId id);

  // The dispatcher hears of it, at once or in its turn.
  template <typename What>
  void hear(const What& what) {
    if (charged_) return decisions_.hear(what, now_);
    const bool outer = std::exchange(deciding_, true);
    tell(what);
    deciding_ = outer;
    plan_wake();
  }
  void tell(const schedule::RequestArrived& what) { dispatch_.offer(what.request, what.more, now_); }
  void tell(const schedule::AllArrived&) { dispatch_.all_arrived(now_); }
  void tell(const schedule::RequestCancelled& what) {
    dispatch_.withdraw(what.request, what.model);
    dispatch_.hear(now_);
  }
  void tell(const schedule::Wake&) { dispatch_.wake(now_); }
  void tell(const wire::Report& what) { dispatch_.on_report(what, now_); }
  void tell(const wire::ProbeReport& what) { dispatch_.on_probe(what, now_); }
  void plan_wake();

  // What the dispatcher orders is carried out at once, or when the decision is made.
  template <typename Order>
  void give(const Order& order) {
    if (charged_)
      held_back_.emplace_back(order);
    else
      carry_out(order);
  }
  void carry_out(const ledger::Infer& infer);
  void carry_out(const ledger::Profile& profile);
  void carry_out(const ledger::Load& load) { devices_.send(load, now_); }
  void carry_out(const ledger::Unload& unload) { devices_.send(unload, now_); }
  void carry_out(const ledger::Stop& stop) { devices_.evict(stop.id, device::After::drop, now_, now_); }
  void carry_out(const ledger::Preempt& preempt) {
    devices_.evict(preempt.id, device::After::resume, preempt.order, now_);
  }
  void carry_out(const ledger::GiveUp& up) {
    devices_.retire(up.device, links_[up.device.index()].life(), now_);
  }
  void carry_out(const ledger::Refuse& refuse) { outcome(refuse.request, Outcome::refused, now_); }
  void carry_out(const ledger::Keep& keep);
  void outcome(RequestId id, Outcome what, TimePoint at);

  const workload::Scenario& scenario_;
  const Options options_;
  std::vector<schedule::ModelInfo> infos_;
  workload::Clients clients_;
  Random random_;
  std::vector<std::vector<AppId>> apps_;  // by model and mode
  Duration delay_;
  Statistics statistics_;
  const bool charged_;  // decisions take time
  Observed scheduler_;
  Notes notes_{*this};
  dispatch::Dispatch dispatch_;
  Decisions decisions_;   // where they do
  bool decided_ = false;  // something, at the last
  ledger::Orders held_back_;
  Devices devices_;
  std::deque<Link> links_;  // by device
  std::optional<Scaling> scaling_;

  TimePoint now_{};
  Calendar calendar_;
  Records records_;
  std::uint64_t open_ = 0;
  TimePoint counted_open_{};
  UsualScaler::Counters usual_;
  std::map<RequestId, Duration> kept_;  // what they take alone
  bool deciding_ = false;
  bool gathering_ = false;  // an AllHeard is planned
  std::uint32_t wake_booking_ = 0;
  TimePoint wake_at_ = TimePoint::max();
  std::chrono::steady_clock::time_point shown_;
};

Figures Simulation::run() {
  const auto started = shown_ = std::chrono::steady_clock::now();
  for (const schedule::ModelInfo& info : infos_) {
    dispatch_.add_model(info);
    // Where the time depends on the input, nobody knows how little it may be.
    const bool varies = !scenario_.models[info.id.index()].latency.modes.empty();
    decisions_.add_model(varies ? Duration{0} : info.batches.front().exec);
  }
  for (std::uint32_t i = 0; i < devices_.count(); ++i)
    dispatch_.add_device(links_.emplace_back(*this, DeviceId{i}), false);
  dispatch_.start(now_);
  devices_.start(scaling_
                     ? static_cast<std::size_t>(std::clamp(options_.scaling->devices, 1, scenario_.devices))
                     : devices_.count(),
                 now_);
  if (scaling_) plan(now_, DevicesScale{});
  start_closed_loops();
  for (bool go_on = true; go_on;) {
    const TimePoint arrival = clients_.next_at(), planned = calendar_.next_at();
    if (arrival == TimePoint::max() && calendar_.empty()) break;
    ++statistics_.figures.events;
    if (arrival < planned || (arrival == planned && !calendar_.next_is_a_devices())) {
      now_ = arrival;
      send(ModelId{clients_.take()});
    } else {
      const auto [at, step] = calendar_.take();
      now_ = at;
      std::visit([this](const auto& what) { on(what); }, step);
    }
    // The scheduler may wake for ever; nobody waits for it then.
    if (now_ >= statistics_.end() && open_ == 0 && clients_.next_at() == TimePoint::max()) break;
    if (now_ > statistics_.end() + std::chrono::hours{1}) break;  // what is open now stays unanswered
    if (options_.progress && (statistics_.figures.events & 0xfff) == 0) go_on = show_progress();
  }
  for (RequestId id = records_.first(); id < records_.next(); ++id.value)
    if (open(id)) outcome(id, Outcome::unanswered, now_);
  if (scaling_) statistics_.figures.scaling = scaling_->take(statistics_.end());
  statistics_.figures.wall_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return std::move(statistics_.figures);
}

bool Simulation::show_progress() {
  const auto wall = std::chrono::steady_clock::now();
  if (wall - shown_ <= std::chrono::milliseconds{100}) return true;
  shown_ = wall;
  return options_.progress(std::min(1.0, to_seconds(now_ - TimePoint{}) / to_seconds(scenario_.duration)));
}

// --- Devices that come and go

// How often a device that is to go is asked whether it has something to do.
constexpr Duration leaving_pause = 1ms;

UsualScaler::Counters Simulation::usual_so_far() {
  count_open(0);
  usual_.busy_seconds = to_seconds(statistics_.so_far().busy);
  return usual_;
}

void Simulation::on(const DevicesScale&) {
  if (now_ >= statistics_.end()) return;
  for (const Scaling::Order& order : scaling_->look(now_, statistics_.so_far(), usual_so_far())) {
    if (order.kind == Scaling::Order::Kind::start)
      plan(now_ + options_.scaling->start_up, DeviceStarts{order.device, order.booking});
    else
      plan(now_, DeviceLeaves{order.device});
  }
  plan(now_ + options_.scaling->period, DevicesScale{});
}

void Simulation::on(const DeviceLeaves& step) {
  const DeviceId device{step.device};
  if (!scaling_->leaves(step.device)) return;  // it is wanted again
  const bool idle = devices_.idle(device);
  if (!idle && scaling_->leaving_for(step.device, now_) < options_.scaling->patience)
    return plan(now_ + leaving_pause, step);
  scaling_->left(step.device, !idle, now_);
  devices_.turn_off(device, now_);
}

// --- Clients

void Simulation::start_closed_loops() {
  for (std::uint32_t i = 0; i < scenario_.models.size(); ++i) {
    const workload::ScenarioModel& model = scenario_.models[i];
    if (!closed_loop(scenario_, model)) continue;
    const TimePoint from = model.rate.empty() ? TimePoint{} : TimePoint{} + model.rate.front().at;
    // Apart by a microsecond, so that they do not come as one.
    for (int c = 0; c < model.process.value_or(scenario_.process).clients; ++c)
      plan(from + c * 1us, ClientSends{ModelId{i}});
  }
}

// What the request takes alone, of a model whose time depends on the input; and its application.
Duration Simulation::draw_own(ModelId model, Request& request) {
  const auto& modes = scenario_.models[model.index()].latency.modes;
  if (modes.empty()) return Duration{0};
  double total = 0;
  for (const auto& mode : modes) total += mode.weight;
  double pick = random_.uniform() * total;
  std::size_t mode = 0;
  while (mode + 1 < modes.size() && pick >= modes[mode].weight) pick -= modes[mode++].weight;
  const auto& chosen = modes[mode];
  if (!chosen.app.empty()) request.app = apps_[model.index()][mode];
  return std::max(Duration{1},
                  chosen.mean + from_ns(random_.normal() * static_cast<double>(chosen.deviation.count())));
}

void Simulation::send(ModelId model) {
  const workload::ScenarioModel& m = scenario_.models[model.index()];
  const RequestId id = records_.next();
  Record r;
  r.request = {
      .id = id, .model = model, .cls = m.cls, .arrival = now_, .deadline = saturating_add(now_, m.slo)};
  if (!m.slos.empty()) r.request.deadline = now_ + m.slos[random_.below(m.slos.size())];
  if (!m.arrivals.empty()) {
    const workload::PlannedRequest& planned = m.arrivals[clients_.taken()];
    r.request.deadline = saturating_add(now_, planned.slo);
    r.request.cls = planned.cls;
    r.request.priority = planned.priority;
    r.request.app = planned.app;
    // Where decisions take time they are decided one after another, as they would wait.
    r.more = planned.more && !charged_;
  }
  r.own = draw_own(model, r.request);
  if (m.latency.sized) r.request.effort = workload::LatencyModel::effort_of(r.own);
  records_.add(r);
  count_open(1);
  if (options_.observer != nullptr) options_.observer->on_sent(r.request, r.own, now_);
  statistics_.sent(model, r.request.cls, now_);
  const double cancels = options_.faults.cancels;
  if (cancels > 0 && random_.uniform() < cancels)
    plan(now_ + from_seconds(random_.uniform() * 2 * to_seconds(std::min<Duration>(m.slo, 1min))),
         ClientGoes{id});
  if (delay_ == Duration{0})
    arrived(id);
  else
    plan(now_ + delay_, RequestHeard{id});
}

void Simulation::arrived(RequestId id) {
  Record* r = records_.find(id);
  if (r == nullptr || !r->open) return;
  r->heard = true;
  Request request = r->request;
  request.arrival = now_;
  const bool more = r->more;
  hear(schedule::RequestArrived{request, more});
  if (more && !std::exchange(gathering_, true)) plan(now_, AllHeard{});
}

void Simulation::on(const AllHeard&) {
  gathering_ = false;
  hear(schedule::AllArrived{});
}

void Simulation::on(const ClientGoes& step) {
  Record* r = records_.find(step.id);
  if (r == nullptr || !r->open) return;
  const bool heard = r->heard;
  const ModelId model = r->request.model;
  outcome(step.id, Outcome::cancelled, now_);
  if (heard) hear(schedule::RequestCancelled{step.id, model});
}

void Simulation::turned_away(RequestId id) {
  statistics_.shed(records_.find(id)->request.arrival);
  outcome(id, Outcome::refused, now_);
}

void Simulation::outcome(RequestId id, Outcome what, TimePoint at) {
  Record* r = records_.find(id);
  if (options_.observer != nullptr && r != nullptr) options_.observer->on_outcome(r->request, what, at);
  if (r == nullptr || !r->open) return;
  r->open = false;
  count_open(-1);
  const ModelId model = r->request.model;
  statistics_.ended(model, r->request.cls, r->request.arrival, what, at);
  records_.forget_ended();
  if (closed_loop(scenario_, scenario_.models[model.index()]) && what != Outcome::unanswered)
    plan(at + std::max(what == Outcome::refused ? delay_ : Duration{0}, shortest_turn), ClientSends{model});
}

// --- What the dispatcher hears, and orders

Duration Simulation::decide(const Heard& what) {
  const std::uint64_t before = statistics_.figures.decisions;
  std::visit([this](const auto& told) { tell(told); }, what);
  decided_ = statistics_.figures.decisions > before;
  return scheduler_.spent();
}

void Simulation::on(const DecisionMade&) {
  if (options_.observer != nullptr && decided_) options_.observer->on_decided(now_);
  // What comes of an order at once is reported after all of them are on their way.
  deciding_ = true;
  for (const ledger::Order& order : held_back_)
    std::visit([this](const auto& what) { carry_out(what); }, order);
  deciding_ = false;
  held_back_.clear();
  plan_wake();
  decisions_.decided(now_);
}

void Simulation::plan_wake() {
  const TimePoint at = charged_ ? scheduler_.asks().value_or(wake_at_) : dispatch_.wake_at();
  if (at == wake_at_) return;
  wake_at_ = at;
  ++wake_booking_;
  if (at < TimePoint::max()) plan(at, SchedulerWakes{wake_booking_});
}

void Simulation::on(const SchedulerWakes& step) {
  if (step.booking != wake_booking_) return;
  wake_at_ = TimePoint::max();
  hear(schedule::Wake{});
}

void Simulation::carry_out(const ledger::Infer& infer) {
  Duration longest{0};
  for (const RequestId id : infer.requests)
    if (const Record* r = records_.find(id)) longest = std::max(longest, r->own);
  const auto& latency = scenario_.models[infer.model.index()].latency;
  devices_.send(infer, latency.batch_time(static_cast<int>(infer.requests.size()), longest), now_);
}

void Simulation::carry_out(const ledger::Keep& keep) {
  if (Record* r = records_.find(keep.request)) r->keep = keep.keep;
  if (!keep.keep) kept_.erase(keep.request);
}

// A request that was answered runs again, alone.
void Simulation::carry_out(const ledger::Profile& profile) {
  if (const auto kept = kept_.find(profile.request); kept != kept_.end())
    return devices_.send(profile, scenario_.models[profile.model.index()].latency.batch_time(1, kept->second),
                         now_);
  // Its client had gone when it was answered: nothing of it is there.
  plan(now_ + delay_ + shortest_turn,
       NothingToProfile{profile.id, profile.device, devices_.life(profile.device)});
}

void Simulation::on(const NothingToProfile& step) {
  wire::Report report{.id = step.id,
                      .status = schedule::ActionStatus::failed,
                      .times = {},
                      .error = {},
                      .life = step.life,
                      .device = step.device};
  report.times.exec_start = report.times.exec_end = now_;
  hear(report);
}

void Simulation::reported(const Devices::Flight& flight, const wire::Report& report, bool again) {
  const bool success = report.status == schedule::ActionStatus::success;
  if (const auto* action = dispatch_.ledger().action(report.id);
      action && success && now_ >= statistics_.warm())
    statistics_.kept(action->model, dispatch_.ledger().kept(*action, now_));
  if (flight.profiles) {
    statistics_.figures.profiled += success ? 1U : 0U;
  } else if (flight.kind == schedule::ActionKind::infer && success)
    for (const RequestId id : flight.requests) {
      const Record* r = records_.find(id);
      if (r == nullptr || !r->open) continue;
      if (r->keep) kept_[id] = r->own;
      ++usual_.answered;
      usual_.waited_seconds +=
          to_seconds(std::max(Duration{0}, report.times.exec_start - r->request.arrival));
      outcome(id, now_ <= r->request.deadline ? Outcome::on_time : Outcome::late, now_);
    }
  hear(report);
  if (again) hear(report);
}

void Simulation::died(DeviceId device, std::uint32_t life) {
  hear(wire::Report{.id = {},
                    .status = schedule::ActionStatus::failed,
                    .times = {},
                    .error = "it died",
                    .device_lost = true,
                    .life = life,
                    .device = device});
}

}  // namespace

std::vector<schedule::ModelInfo> model_infos(const workload::Scenario& scenario) {
  std::vector<schedule::ModelInfo> infos;
  for (std::size_t i = 0; i < scenario.models.size(); ++i) {
    const workload::ScenarioModel& model = scenario.models[i];
    schedule::ModelInfo info{.id = ModelId{static_cast<std::uint32_t>(i)},
                             .name = model.name,
                             .pages = pages_of(scenario, model),
                             .load = load_time(scenario, model),
                             .batches = {},
                             .time_varies = !model.latency.modes.empty(),
                             .cls = model.cls,
                             .miss_rate = model.miss_rate};
    for (const int b : model.batch_sizes) info.batches.push_back({b, model.latency.expected(b)});
    for (int b = 1; model.batch_sizes.empty() && b <= model.max_batch;
         b = b < 128 ? b + 1 : std::max(b + 1, b + b / 50))
      info.batches.push_back({b, model.latency.expected(b)});
    if (info.batches.back().batch != model.max_batch)
      info.batches.push_back({model.max_batch, model.latency.expected(model.max_batch)});
    // What was measured of sizes before: one request of each mode, and batches of the first's.
    if (model.latency.sized) {
      const auto& modes = model.latency.modes;
      for (const workload::LatencyMode& mode : modes)
        info.sizes.push_back({.row = workload::LatencyModel::effort_of(mode.mean),
                              .batch = 1,
                              .exec = model.latency.batch_time(1, mode.mean)});
      for (const schedule::BatchProfile& b : info.batches)
        if (b.batch > 1)
          info.sizes.push_back({.row = workload::LatencyModel::effort_of(modes.front().mean),
                                .batch = b.batch,
                                .exec = model.latency.batch_time(b.batch, modes.front().mean)});
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

bool has_classes(const workload::Scenario& scenario) {
  return std::ranges::any_of(scenario.models, [](const workload::ScenarioModel& model) {
    return model.cls != Class::normal ||
           std::ranges::any_of(model.arrivals, [](const auto& each) { return each.cls != Class::normal; });
  });
}

Options Options::with(const workload::Scenario& scenario) const {
  Options options = *this;
  Faults& all = options.faults;
  const auto is_one = [](double speed) { return speed == 1; };
  if (!std::ranges::all_of(scenario.speeds, is_one)) all.speeds = scenario.speeds;
  all.planned = scenario.faults;
  const auto usual = [](const workload::ScenarioModel& model) { return model.outliers.share == 0; };
  if (!std::ranges::all_of(scenario.models, usual))
    for (const workload::ScenarioModel& model : scenario.models) all.outliers.push_back(model.outliers);
  return options;
}

double Faults::least_factor() const {
  double factor = 1;
  for (const double each : speeds) factor = std::min(factor, 1 / each);
  double slow = 1, odd = 1;
  for (const workload::DeviceFault& each : planned) slow = std::min(slow, each.factor);
  for (const workload::Outliers& each : outliers) odd = std::min(odd, each.factor);
  return factor * slow * odd;
}

double Faults::most_factor() const {
  double factor = 1;
  for (const double each : speeds) factor = std::max(factor, 1 / each);
  double slow = 1, odd = 1;
  for (const workload::DeviceFault& each : planned) slow = std::max(slow, each.factor);
  for (const workload::Outliers& each : outliers) odd = std::max(odd, each.factor);
  return factor * slow * odd;
}

bool Faults::any_hangs() const {
  return std::ranges::count(planned, workload::DeviceFault::Kind::hangs, &workload::DeviceFault::kind) > 0;
}

schedule::Environment environment(const workload::Scenario& scenario) {
  const schedule::Environment live = schedule::live_environment();
  schedule::Environment told{.dispatch = scenario.network_delay + scenario.fetch_time(),
                             .answer = scenario.network_delay,
                             .overrun = 0,
                             .hangs_after = live.hangs_after,
                             .profile_share = live.profile_share,
                             .classes = has_classes(scenario)};
  if (scenario.miss_rate) told.miss_rate = *scenario.miss_rate;
  if (scenario.allowance) {
    told.dispatch = scenario.allowance->dispatch;
    told.answer = scenario.allowance->answer;
    told.overrun = scenario.allowance->overrun;
  }
  return told;
}

Figures run(const workload::Scenario& scenario, schedule::Scheduler& scheduler, const Options& options) {
  return Simulation(scenario, scheduler, options).run();
}

}  // namespace carillon::simulate
