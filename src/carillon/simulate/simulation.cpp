#include "carillon/simulate/simulation.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/simulate/calendar.h"
#include "carillon/simulate/decisions.h"
#include "carillon/simulate/devices.h"
#include "carillon/simulate/statistics.h"
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

// The run: clients, the network between them and the scheduler, and the order of all that happens.
class Simulation final : public Devices::Owner, public Decisions::Owner {
 public:
  Simulation(const workload::Scenario& scenario, schedule::Scheduler& scheduler, const Options& options)
      : scenario_(scenario),
        options_(options),
        infos_(model_infos(scenario)),
        clients_(scenario),
        random_(scenario.seed ^ 0x5bd1e9955bd1e995ULL),
        apps_(applications(scenario)),
        delay_(scenario.network_delay),
        statistics_(scenario, options),
        decisions_(scheduler, options, statistics_.figures, *this),
        devices_(scenario, infos_, options, random_, statistics_, *this) {}

  Figures run();

 private:
  // Of the devices.
  void plan(TimePoint at, Step step) override { calendar_.plan(std::max(at, now_), step); }
  void reported(const Devices::Flight& flight, const schedule::ActionDone& done, bool again) override;
  void device_changed(const schedule::DeviceChanged& change) override { decisions_.hear(change, now_); }
  bool deciding() const override { return deciding_; }
  // Of the decisions.
  void carry_out(schedule::Actions& actions) override;
  void decided_at(TimePoint at) override { plan(at, DecisionMade{}); }
  void wake_at(TimePoint at) override;
  void turned_away(RequestId id) override;
  bool open(RequestId id) const override {
    const Record* r = records_.find(id);
    return r != nullptr && r->open;
  }

  void on(const DecisionMade&) { decisions_.decided(now_); }
  void on(const ClientSends& step) {
    if (now_ < statistics_.end()) send(step.model);
  }
  void on(const RequestHeard& step) { hear(step.id); }
  void on(const AllHeard&);
  void on(const ClientGoes& step);
  void on(const SchedulerWakes& step);
  void on(const NothingToProfile& step) {
    decisions_.hear(
        schedule::ActionDone{
            .id = step.id, .status = schedule::ActionStatus::failed, .start = now_, .end = now_},
        now_);
  }
  template <typename DeviceEvent>
  void on(const DeviceEvent& step) {
    devices_.on(step, now_);
  }

  void start_closed_loops();
  bool show_progress();
  void carry_out(schedule::Action& action);
  void send(ModelId model);
  Duration draw_own(ModelId model, Request& request);
  void hear(RequestId id);
  void profile(const schedule::Profile& action);
  void outcome(RequestId id, Outcome what, TimePoint at);

  const workload::Scenario& scenario_;
  const Options& options_;
  std::vector<schedule::ModelInfo> infos_;
  workload::Clients clients_;
  Random random_;
  std::vector<std::vector<AppId>> apps_;  // by model and mode
  Duration delay_;
  Statistics statistics_;
  Decisions decisions_;
  Devices devices_;

  TimePoint now_{};
  Calendar calendar_;
  Records records_;
  std::uint64_t open_ = 0;
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
    // Where the time depends on the input, nobody knows how little it may be.
    const bool varies = !scenario_.models[info.id.index()].latency.modes.empty();
    decisions_.add_model(info, varies ? Duration{0} : info.batches.front().exec);
  }
  devices_.start(now_);
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
    r.more = planned.more && !decisions_.charged();
  }
  r.own = draw_own(model, r.request);
  if (m.latency.sized) r.request.effort = workload::LatencyModel::effort_of(r.own);
  records_.add(r);
  ++open_;
  if (options_.observer != nullptr) options_.observer->on_sent(r.request, r.own, now_);
  statistics_.sent(model, r.request.cls, now_);
  const double cancels = options_.faults.cancels;
  if (cancels > 0 && random_.uniform() < cancels)
    plan(now_ + from_seconds(random_.uniform() * 2 * to_seconds(std::min<Duration>(m.slo, 1min))),
         ClientGoes{id});
  if (delay_ == Duration{0})
    hear(id);
  else
    plan(now_ + delay_, RequestHeard{id});
}

void Simulation::hear(RequestId id) {
  Record* r = records_.find(id);
  if (r == nullptr || !r->open) return;
  r->heard = true;
  Request request = r->request;
  request.arrival = now_;
  decisions_.hear(schedule::RequestArrived{request, r->more}, now_);
  if (r->more && !std::exchange(gathering_, true)) plan(now_, AllHeard{});
}

void Simulation::on(const AllHeard&) {
  gathering_ = false;
  decisions_.hear(schedule::AllArrived{}, now_);
}

void Simulation::on(const ClientGoes& step) {
  Record* r = records_.find(step.id);
  if (r == nullptr || !r->open) return;
  const bool heard = r->heard;
  const ModelId model = r->request.model;
  outcome(step.id, Outcome::cancelled, now_);
  if (heard) decisions_.hear(schedule::RequestCancelled{step.id, model}, now_);
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
  --open_;
  const ModelId model = r->request.model;
  statistics_.ended(model, r->request.cls, r->request.arrival, what, at);
  records_.forget_ended();
  if (closed_loop(scenario_, scenario_.models[model.index()]) && what != Outcome::unanswered)
    plan(at + std::max(what == Outcome::refused ? delay_ : Duration{0}, shortest_turn), ClientSends{model});
}

// --- What the scheduler decides

void Simulation::carry_out(schedule::Actions& actions) {
  // What comes of an action at once is reported after all of them are on their way.
  const bool outer = std::exchange(deciding_, true);
  for (schedule::Action& action : actions) carry_out(action);
  deciding_ = outer;
}

void Simulation::carry_out(schedule::Action& action) {
  if (auto* infer = std::get_if<schedule::Infer>(&action)) {
    Duration longest{0};
    for (const RequestId id : infer->requests)
      if (const Record* r = records_.find(id)) longest = std::max(longest, r->own);
    const auto& latency = scenario_.models[infer->model.index()].latency;
    const Duration time = latency.batch_time(static_cast<int>(infer->requests.size()), longest);
    devices_.send(*infer, std::move(infer->requests), time, now_);
  } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
    outcome(refuse->request, Outcome::refused, now_);
  } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
    devices_.send(*load, now_);
  } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
    devices_.send(*unload, now_);
  } else if (const auto* stop = std::get_if<schedule::Stop>(&action)) {
    devices_.evict(stop->id, device::After::drop, now_, now_);
  } else if (const auto* preempt = std::get_if<schedule::Preempt>(&action)) {
    devices_.evict(preempt->id, device::After::resume, preempt->order, now_);
  } else if (const auto* keep = std::get_if<schedule::Keep>(&action)) {
    if (Record* r = records_.find(keep->request)) r->keep = keep->keep;
    if (!keep->keep) kept_.erase(keep->request);
  } else if (const auto* again = std::get_if<schedule::Profile>(&action)) {
    profile(*again);
  } else if (const auto* up = std::get_if<schedule::GiveUp>(&action)) {
    devices_.give_up(up->device, now_);
  }
}

void Simulation::wake_at(TimePoint at) {
  if (at == wake_at_) return;
  wake_at_ = at;
  ++wake_booking_;
  if (at < TimePoint::max()) plan(at, SchedulerWakes{wake_booking_});
}

void Simulation::on(const SchedulerWakes& step) {
  if (step.booking != wake_booking_) return;
  wake_at_ = TimePoint::max();
  decisions_.hear(schedule::Wake{}, now_);
}

void Simulation::reported(const Devices::Flight& flight, const schedule::ActionDone& done, bool again) {
  if (flight.profiles) {
    statistics_.figures.profiled += done.status == schedule::ActionStatus::success ? 1U : 0U;
    if (!schedule::made_way(done.status)) kept_.erase(flight.requests.front());
  } else if (flight.kind == schedule::ActionKind::infer && done.status == schedule::ActionStatus::success)
    for (const RequestId id : flight.requests) {
      const Record* r = records_.find(id);
      if (r == nullptr || !r->open) continue;
      if (r->keep) kept_[id] = r->own;
      outcome(id, now_ <= r->request.deadline ? Outcome::on_time : Outcome::late, now_);
    }
  decisions_.hear(done, now_);
  if (again) decisions_.hear(done, now_);
}

// A request that was answered runs again, alone.
void Simulation::profile(const schedule::Profile& action) {
  if (const auto kept = kept_.find(action.request); kept != kept_.end())
    return devices_.send(action, scenario_.models[action.model.index()].latency.batch_time(1, kept->second),
                         now_);
  // Its client had gone when it was answered: nothing of it is there.
  plan(now_ + delay_ + shortest_turn, NothingToProfile{action.id});
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
                             .cls = model.cls};
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

schedule::Environment environment(const workload::Scenario& scenario) {
  const schedule::Environment live = schedule::live_environment();
  schedule::Environment told{.dispatch = 2 * scenario.network_delay,
                             .answer = scenario.network_delay,
                             .overrun = 0,
                             .hangs_after = live.hangs_after,
                             .profile_share = live.profile_share,
                             .classes = has_classes(scenario)};
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
