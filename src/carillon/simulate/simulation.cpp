#include "carillon/simulate/simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <deque>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/base/random.h"
#include "carillon/schedule/door.h"
#include "carillon/schedule/id_map.h"
#include "carillon/simulate/clients.h"

namespace carillon::simulate {
namespace {

using schedule::ActionKind;
using schedule::ActionStatus;

constexpr std::uint64_t page = 16ULL << 20;
constexpr std::uint64_t no_limit = std::uint64_t{1} << 40;  // pages
// A closed loop's client that is answered at once does not send again within the same instant.
constexpr Duration shortest_turn = 100us;
// A finished request that is to run again begins within this time after it could, or makes way.
constexpr Duration probe_within = 1ms;

Duration thread_cpu_time() {
  timespec at{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return std::chrono::seconds{at.tv_sec} + std::chrono::nanoseconds{at.tv_nsec};
}

std::uint64_t pages_of(const workload::Scenario& scenario, const workload::ScenarioModel& model) {
  return scenario.memory ? (model.weights.count + page - 1) / page : 0;
}

Duration load_time(const workload::Scenario& scenario, const workload::ScenarioModel& model) {
  if (!scenario.memory) return Duration{0};
  if (model.load) return *model.load;
  return from_seconds(static_cast<double>(model.weights.count) / scenario.pcie_bytes_per_s);
}

enum class Step : std::uint8_t {
  end,
  kick,
  receive,
  stop,
  report,
  device,
  fault,
  decided,
  arrive,
  cancel,
  wake
};

// Among events of one instant: what devices did, then what clients did, then what the scheduler had planned.
constexpr std::uint8_t rank_of(Step step) {
  return step < Step::arrive ? 0 : step < Step::wake ? 1 : 2;
}

struct Entry {
  TimePoint at;
  std::uint64_t order = 0;  // rank in the upper bits, then the order of planning
  std::uint64_t what = 0;
  std::uint32_t stamp = 0;
  Step step{};
  friend bool operator>(const Entry& a, const Entry& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
};

struct Record {
  Request request;
  Duration own{0};
  bool open = true;    // has no outcome yet
  bool heard = false;  // by the scheduler, or the door before it
};

// What the scheduler has yet to hear, and its place among all that.
struct Mail {
  schedule::Event event;
  std::uint64_t place = 0;
};

// What it takes to run a finished request again.
struct Probe {
  ModelId model;
  AppId app;
  Duration own{0};
};

schedule::ProbeOptions seeded(schedule::ProbeOptions options, std::uint64_t seed) {
  options.seed ^= seed ^ 0x0f1e2d3c4b5a6978ULL;
  return options;
}

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

struct Act {
  ActionId id;
  ActionKind kind{};
  DeviceId device;
  ModelId model;
  std::vector<RequestId> requests;
  Window window;
  TimePoint ready;  // message and inputs are there
  Duration duration{0};
  ActionStatus planned = ActionStatus::success;
  ActionStatus status = ActionStatus::success;
  TimePoint start, end;
  std::uint32_t life = 0;   // of its device
  std::uint32_t stamp = 0;  // an end event that carries another one is void
  bool used = false;
  bool probe = false;  // a finished request runs again: nobody waits for it
};

struct Executor {
  std::vector<std::uint32_t> queue;  // slots of acts, by (earliest, id)
  std::uint32_t running = none;
  TimePoint kick_at = TimePoint::max();  // of the kick that is planned
  static constexpr std::uint32_t none = ~std::uint32_t{0};
};

enum class Place : std::uint8_t { absent, loading, loaded };

struct Device {
  bool alive = false;
  std::uint32_t life = 0;
  std::uint64_t total = 0, used = 0;
  std::vector<Place> places;  // by model, where memory is limited
  Executor exec, load;
  TimePoint slow_until = TimePoint::min();
  double slow = 1;
  Duration offset{0};  // of its clock
};

class Simulation {
 public:
  Simulation(const workload::Scenario& scenario, schedule::Scheduler& scheduler, const Options& options)
      : scenario_(scenario),
        scheduler_(scheduler),
        options_(options),
        infos_(model_infos(scenario)),
        clients_(scenario),
        random_(scenario.seed ^ 0x5bd1e9955bd1e995ULL),
        probes_(seeded(options.probes, scenario.seed)),
        apps_(applications(scenario)),
        delay_(scenario.network_delay),
        warm_(TimePoint{} + scenario.warmup),
        end_(TimePoint{} + scenario.duration),
        faulty_(options.faults != Faults{}),
        charged_(options.decision_time > Duration{0} || options.measured_decisions),
        devices_(static_cast<std::size_t>(scenario.devices)) {}

  Figures run();

 private:
  void plan(TimePoint at, Step step, std::uint64_t what, std::uint32_t stamp = 0) {
    queue_.push({std::max(at, now_), (static_cast<std::uint64_t>(rank_of(step)) << 56) | next_order_++, what,
                 stamp, step});
  }
  void handle(const Entry& entry);
  void decide(schedule::Event event);
  void think();
  std::optional<schedule::Event> next_event();
  void turn_away(RequestId id);
  void decided();
  void call_scheduler(const schedule::Event& event, schedule::Actions& actions);
  void carry_out_all(schedule::Actions& actions);
  void carry_out(schedule::Action& action);
  void book_wake();
  void send(ModelId model);
  void hear(RequestId id);
  void deal_faults();
  void fault(std::uint64_t what);
  void set_device(std::size_t index, bool alive);
  void probe();
  void end_probe(std::uint32_t slot, const schedule::ActionDone& done);
  void receive(std::uint32_t slot);
  void stop(ActionId id);
  void enqueue(Executor& executor, std::uint32_t slot);
  void kick(Device& device, std::size_t index, Executor& executor);
  void begin(Device& device, Executor& executor, std::uint32_t slot);
  void finish(std::uint32_t slot);
  void report(std::uint32_t slot, ActionStatus status, TimePoint at);
  void deliver(std::uint32_t slot, bool again);
  void outcome(RequestId id, Observer::Outcome outcome, TimePoint at);
  bool resident(const Device& device, ModelId model) const {
    if (infos_[model.index()].pages == 0) return true;
    return model.index() < device.places.size() && device.places[model.index()] == Place::loaded;
  }
  Place& place(Device& device, ModelId model) {
    if (device.places.size() < infos_.size()) device.places.resize(infos_.size(), Place::absent);
    return device.places[model.index()];
  }
  Record* record(RequestId id) {
    if (id.value < first_ || id.value - first_ >= records_.size()) return nullptr;
    return &records_[id.value - first_];
  }
  std::uint32_t new_act(ActionId id, ActionKind kind, DeviceId device, ModelId model);
  void free_act(std::uint32_t slot);
  Duration true_time(Device& device, Duration planned);
  void count_busy(const Act& act);
  // The interval that a time is in, where intervals are kept and it is before the end; else nullptr.
  IntervalFigures* interval(TimePoint at) {
    if (figures_.intervals.empty() || at >= end_) return nullptr;
    return &figures_.intervals[interval_index(at)];
  }
  std::size_t interval_index(TimePoint at) const {
    return static_cast<std::size_t>((at - TimePoint{}) / options_.interval);
  }

  const workload::Scenario& scenario_;
  schedule::Scheduler& scheduler_;
  const Options& options_;
  std::vector<schedule::ModelInfo> infos_;
  Clients clients_;
  Random random_;
  schedule::ProbeQueue<Probe> probes_;
  std::size_t probe_device_ = 0;
  std::vector<std::vector<AppId>> apps_;  // by model and mode
  Duration delay_;
  TimePoint warm_, end_;
  bool faulty_;
  bool charged_;  // decisions take time
  Figures figures_;

  TimePoint now_{};
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::uint64_t next_order_ = 0;
  std::deque<Record> records_;
  std::vector<std::size_t> used_in_;  // by device: 1 + the last interval in which it ran something
  std::uint64_t first_ = 0;           // id of the first of records_
  std::uint64_t open_ = 0;
  std::size_t heard_ = 0;   // of these, the scheduler knows
  std::size_t infers_ = 0;  // sent, and not yet reported
  std::vector<Device> devices_;
  std::vector<Act> acts_;
  std::vector<std::uint32_t> free_acts_;
  schedule::IdMap<ActionId, std::uint32_t> slots_;
  bool deciding_ = false;
  // Where decisions take time: what the scheduler has yet to hear, and what it has decided but not yet said.
  schedule::Door door_;                        // arrivals
  schedule::IdMap<RequestId, Mail> arrivals_;  // that wait there
  std::deque<Mail> cancels_;                   // not before the arrivals that came before them
  std::deque<Mail> reports_;                   // all else
  std::uint64_t next_place_ = 0;
  Duration owed_{0};                          // for what was turned away since the last decision
  std::vector<schedule::Door::Taken> taken_;  // scratch
  bool thinking_ = false;
  schedule::Actions thought_;
  std::uint32_t wake_stamp_ = 0;
  std::vector<schedule::Actions> spare_;     // of decisions, for reuse
  TimePoint wake_at_ = TimePoint::max();     // as planned
  TimePoint asked_wake_ = TimePoint::max();  // as the scheduler said last
  std::optional<TimePoint> asks_wake_;       // that, where it is another and not yet planned
};

Figures Simulation::run() {
  const auto started = std::chrono::steady_clock::now();
  auto shown = started;
  figures_.models.resize(scenario_.models.size());
  for (std::size_t i = 0; i < scenario_.models.size(); ++i) {
    figures_.models[i].name = scenario_.models[i].name;
    figures_.models[i].slo = scenario_.models[i].slo;
  }
  figures_.busy.resize(devices_.size());
  if (options_.interval > Duration{0}) {
    const auto count =
        static_cast<std::size_t>((scenario_.duration + options_.interval - 1ns) / options_.interval);
    figures_.intervals.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      figures_.intervals[i].length =
          std::min(options_.interval, scenario_.duration - options_.interval * static_cast<std::int64_t>(i));
    used_in_.resize(devices_.size());
    for (ModelFigures& m : figures_.models) {
      m.offered_by.resize(count);
      m.on_time_by.resize(count);
    }
  }
  figures_.span = end_ - warm_;
  for (const schedule::ModelInfo& info : infos_) {
    schedule::Actions none;  // there is no device yet
    scheduler_.decide(schedule::model_comes(info), now_, none);
    // Where the time depends on the input, nobody knows how little it may be.
    const bool varies = !scenario_.models[info.id.index()].latency.modes.empty();
    door_.add_model(varies ? Duration{0} : info.batches.front().exec);
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (faulty_ && options_.faults.clock_offset > Duration{0})
      devices_[i].offset =
          from_ns((2 * random_.uniform() - 1) * static_cast<double>(options_.faults.clock_offset.count()));
    set_device(i, true);
  }
  if (faulty_) deal_faults();
  for (std::size_t i = 0; i < scenario_.models.size(); ++i) {
    const auto& model = scenario_.models[i];
    const auto spec = model.process.value_or(scenario_.process);
    if (spec.kind != workload::ArrivalKind::closed || !model.arrivals.empty() || !model.per_minute.empty())
      continue;
    const TimePoint from = model.rate.empty() ? TimePoint{} : TimePoint{} + model.rate.front().at;
    // Apart by a microsecond, so that they do not come as one.
    for (int c = 0; c < spec.clients; ++c) plan(from + c * 1us, Step::arrive, i, 1);
  }

  while (true) {
    const TimePoint arrival = clients_.next_at();
    const bool queued = !queue_.empty();
    if (!queued && arrival == TimePoint::max()) break;
    ++figures_.events;
    const bool client_first =
        arrival != TimePoint::max() && (!queued || arrival < queue_.top().at ||
                                        (arrival == queue_.top().at && rank_of(queue_.top().step) > 0));
    if (client_first) {
      now_ = arrival;
      send(ModelId{clients_.take()});
    } else {
      const Entry entry = queue_.top();
      queue_.pop();
      now_ = entry.at;
      handle(entry);
    }
    probe();
    // The scheduler may wake for ever; nobody waits for it then.
    if (now_ >= end_ && open_ == 0 && clients_.next_at() == TimePoint::max()) break;
    if (now_ > end_ + std::chrono::hours{1}) break;  // what is open now stays unanswered
    if (options_.progress && (figures_.events & 0xfff) == 0) {
      const auto wall = std::chrono::steady_clock::now();
      if (wall - shown > std::chrono::milliseconds{100}) {
        shown = wall;
        if (!options_.progress(
                std::min(1.0, to_seconds(now_ - TimePoint{}) / to_seconds(scenario_.duration))))
          break;
      }
    }
  }
  for (Record& r : records_)
    if (r.open) outcome(r.request.id, Observer::Outcome::unanswered, now_);
  figures_.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return std::move(figures_);
}

void Simulation::handle(const Entry& entry) {
  switch (entry.step) {
    case Step::end: {
      const Act& act = acts_[entry.what];
      if (act.used && act.stamp == entry.stamp) finish(static_cast<std::uint32_t>(entry.what));
      break;
    }
    case Step::kick: {
      Device& d = devices_[entry.what];
      Executor& executor = entry.stamp == 0 ? d.exec : d.load;
      if (executor.kick_at != entry.at) break;
      executor.kick_at = TimePoint::max();
      kick(d, entry.what, executor);
      break;
    }
    case Step::receive:
      receive(static_cast<std::uint32_t>(entry.what));
      break;
    case Step::stop:
      stop(ActionId{entry.what});
      break;
    case Step::report:
      deliver(static_cast<std::uint32_t>(entry.what), entry.stamp == 1);
      break;
    case Step::decided:
      decided();
      break;
    case Step::device:
      set_device(entry.what, entry.stamp == 1);
      break;
    case Step::fault:
      fault(entry.what);
      break;
    case Step::arrive:
      if (entry.stamp == 1) {  // a client of a closed loop
        if (now_ < end_) send(ModelId{static_cast<std::uint32_t>(entry.what)});
      } else {
        hear(RequestId{entry.what});
      }
      break;
    case Step::cancel: {
      const RequestId id{entry.what};
      Record* r = record(id);
      if (r == nullptr || !r->open) break;
      const bool heard = r->heard;
      const ModelId model = r->request.model;
      outcome(id, Observer::Outcome::cancelled, now_);
      if (heard) decide(schedule::RequestCancelled{id, model});
      break;
    }
    case Step::wake:
      if (entry.stamp != wake_stamp_) break;
      wake_at_ = TimePoint::max();
      decide(schedule::Wake{});
      break;
  }
}

void Simulation::send(ModelId model) {
  const workload::ScenarioModel& m = scenario_.models[model.index()];
  const RequestId id{first_ + records_.size()};
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
  }
  if (!m.latency.modes.empty()) {
    double total = 0;
    for (const auto& mode : m.latency.modes) total += mode.weight;
    double pick = random_.uniform() * total;
    std::size_t mode = 0;
    while (mode + 1 < m.latency.modes.size() && pick >= m.latency.modes[mode].weight)
      pick -= m.latency.modes[mode++].weight;
    const auto& chosen = m.latency.modes[mode];
    r.own = std::max(Duration{1},
                     chosen.mean + from_ns(random_.normal() * static_cast<double>(chosen.deviation.count())));
    if (!chosen.app.empty()) r.request.app = apps_[model.index()][mode];
  }
  records_.push_back(r);
  ++open_;
  if (options_.observer != nullptr) options_.observer->on_sent(r.request, r.own, now_);
  if (now_ >= warm_) ++figures_.models[model.index()].offered;
  if (IntervalFigures* in = interval(now_)) {
    ++in->offered;
    ++figures_.models[model.index()].offered_by[interval_index(now_)];
  }
  if (faulty_ && options_.faults.cancels > 0 && random_.uniform() < options_.faults.cancels)
    plan(now_ + from_seconds(random_.uniform() * 2 * to_seconds(std::min<Duration>(m.slo, 1min))),
         Step::cancel, id.value);
  if (delay_ == Duration{0})
    hear(id);
  else
    plan(now_ + delay_, Step::arrive, id.value);
}

void Simulation::hear(RequestId id) {
  Record* r = record(id);
  if (r == nullptr || !r->open) return;
  r->heard = true;
  ++heard_;
  if (probes_.stop()) {
    if (delay_ == Duration{0})
      stop(probes_.action());
    else
      plan(now_ + delay_, Step::stop, probes_.action().value);
  }
  Request request = r->request;
  request.arrival = now_;
  decide(schedule::RequestArrived{request});
}

void Simulation::decide(schedule::Event event) {
  if (charged_) {
    const std::uint64_t place = next_place_++;
    if (const auto* arrival = std::get_if<schedule::RequestArrived>(&event)) {
      const Request& request = arrival->request;
      const auto answer = door_.arrive(
          {.key = request.id.value, .model = request.model, .cls = request.cls, .deadline = request.deadline},
          now_);
      if (answer.displaced) turn_away(RequestId{*answer.displaced});
      if (answer.in)
        arrivals_.insert(request.id, {event, place});
      else
        turn_away(request.id);
    } else {
      const bool cancel = std::holds_alternative<schedule::RequestCancelled>(event);
      (cancel ? cancels_ : reports_).push_back({std::move(event), place});
    }
    if (!thinking_) think();
    return;
  }
  schedule::Actions actions;
  if (!spare_.empty()) {
    actions = std::move(spare_.back());
    spare_.pop_back();
  }
  call_scheduler(event, actions);
  carry_out_all(actions);
  spare_.push_back(std::move(actions));
}

void Simulation::call_scheduler(const schedule::Event& event, schedule::Actions& actions) {
  ++figures_.decisions;
  const TimePoint wake = scheduler_.decide(event, now_, actions);
  if (std::holds_alternative<schedule::Wake>(event)) asked_wake_ = TimePoint::max();
  if (wake != asked_wake_) asks_wake_ = asked_wake_ = wake;
  if (options_.observer != nullptr) options_.observer->on_decision(event, now_, actions, wake);
}

// What the scheduler hears next, of all that waits: in order; but where arrivals wait too long, first what
// others report, since work that is done, and devices that are free, wait for that.
std::optional<schedule::Event> Simulation::next_event() {
  const auto take = [](std::deque<Mail>& from) {
    schedule::Event event = std::move(from.front().event);
    from.pop_front();
    return event;
  };
  constexpr std::uint64_t never = ~std::uint64_t{0};
  const auto place_in = [](const std::deque<Mail>& mail) {
    return mail.empty() ? never : mail.front().place;
  };
  while (true) {
    const std::uint64_t arrival = door_.empty() ? never : arrivals_.find(RequestId{door_.oldest()})->place;
    const std::uint64_t report = place_in(reports_), cancel = place_in(cancels_);
    if (report != never && (report < std::min(arrival, cancel) || door_.lagging(now_))) return take(reports_);
    if (cancel < arrival) return take(cancels_);
    taken_.clear();
    door_.take(1, now_, taken_);
    if (taken_.empty()) return std::nullopt;
    const RequestId id{taken_.front().key};
    if (taken_.front().turned_away) {
      turn_away(id);
      continue;
    }
    return arrivals_.erase(id)->event;
  }
}

// The scheduler never hears of it.
void Simulation::turn_away(RequestId id) {
  owed_ += options_.shed_time;
  arrivals_.erase(id);
  std::erase_if(cancels_, [id](const Mail& mail) {
    return std::get<schedule::RequestCancelled>(mail.event).request == id;
  });
  const Record* r = record(id);
  if (r == nullptr || !r->open) return;
  if (r->request.arrival >= warm_) ++figures_.shed;
  outcome(id, Observer::Outcome::refused, now_);
}

// Takes the next event; decided() follows when the decision has taken its time.
void Simulation::think() {
  const auto event = next_event();
  if (!event) return;
  Duration cost = options_.decision_time;
  if (options_.measured_decisions) {
    const Duration before = thread_cpu_time();
    call_scheduler(*event, thought_);
    cost = thread_cpu_time() - before;
    figures_.decision_times.add(cost);
  } else {
    call_scheduler(*event, thought_);
  }
  thinking_ = true;
  plan(now_ + cost + std::exchange(owed_, Duration{0}), Step::decided, 0);
}

void Simulation::decided() {
  if (options_.observer != nullptr) options_.observer->on_decided(now_);
  carry_out_all(thought_);
  thinking_ = false;
  think();
}

void Simulation::carry_out_all(schedule::Actions& actions) {
  // What comes of an action at once is reported after all of them are on their way.
  const bool outer = std::exchange(deciding_, true);
  for (schedule::Action& action : actions) carry_out(action);
  book_wake();
  deciding_ = outer;
  actions.clear();
}

// Where decisions take time, what one asks for counts when it is made.
void Simulation::book_wake() {
  const TimePoint at = std::exchange(asks_wake_, std::nullopt).value_or(wake_at_);
  if (at == wake_at_) return;
  wake_at_ = at;
  ++wake_stamp_;
  if (at < TimePoint::max()) plan(at, Step::wake, 0, wake_stamp_);
}

std::uint32_t Simulation::new_act(ActionId id, ActionKind kind, DeviceId device, ModelId model) {
  std::uint32_t slot = 0;
  if (free_acts_.empty()) {
    slot = static_cast<std::uint32_t>(acts_.size());
    acts_.emplace_back();
  } else {
    slot = free_acts_.back();
    free_acts_.pop_back();
  }
  Act& act = acts_[slot];
  act.id = id;
  act.kind = kind;
  act.device = device;
  act.model = model;
  act.requests.clear();
  act.planned = act.status = ActionStatus::success;
  act.life = devices_[device.index()].life;
  ++act.stamp;
  act.used = true;
  act.probe = schedule::ProbeQueue<Probe>::is_probe(id);
  if (kind == ActionKind::infer && !act.probe) ++infers_;
  slots_.insert(id, slot);
  return slot;
}

void Simulation::free_act(std::uint32_t slot) {
  Act& act = acts_[slot];
  slots_.erase(act.id);
  act.used = false;
  if (act.kind == ActionKind::infer && !act.probe) --infers_;
  // It went with its device.
  if (act.probe && probes_.running() && probes_.action() == act.id) probes_.end(ActionStatus::stopped);
  ++act.stamp;
  free_acts_.push_back(slot);
}

Duration Simulation::true_time(Device& device, Duration planned) {
  if (!faulty_) return planned;
  double factor = options_.faults.speed * (1 + options_.faults.noise * std::abs(random_.normal()));
  if (options_.faults.hiccups > 0 && random_.uniform() < options_.faults.hiccups) factor *= 10;
  if (now_ < device.slow_until) factor *= device.slow;
  for (const SlowSpell& spell : options_.faults.spells)
    if (now_ - TimePoint{} >= spell.from && now_ - TimePoint{} < spell.from + spell.length)
      factor *= spell.factor;
  return from_ns(static_cast<double>(planned.count()) * factor);
}

void Simulation::carry_out(schedule::Action& action) {
  if (auto* infer = std::get_if<schedule::Infer>(&action)) {
    const std::uint32_t slot = new_act(infer->id, ActionKind::infer, infer->device, infer->model);
    Act& act = acts_[slot];
    act.requests.swap(infer->requests);
    act.window = infer->window;
    act.ready = now_ + 2 * delay_;
    Duration longest{0};
    for (const RequestId id : act.requests)
      if (const Record* r = record(id)) longest = std::max(longest, r->own);
    act.duration = scenario_.models[infer->model.index()].latency.batch_time(
        static_cast<int>(act.requests.size()), longest);
    if (faulty_) {
      const double luck = random_.uniform();
      if (luck < options_.faults.infer_failures)
        act.planned = ActionStatus::failed;
      else if (luck < options_.faults.infer_failures + options_.faults.lost_inputs)
        act.planned = ActionStatus::no_memory;
    }
    if (delay_ == Duration{0})
      receive(slot);
    else
      plan(now_ + delay_, Step::receive, slot);
  } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
    outcome(refuse->request, Observer::Outcome::refused, now_);
  } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
    const std::uint32_t slot = new_act(load->id, ActionKind::load, load->device, load->model);
    Act& act = acts_[slot];
    act.window = load->window;
    act.ready = now_ + delay_;
    act.duration = infos_[load->model.index()].load;
    if (faulty_ && random_.uniform() < options_.faults.load_failures) act.planned = ActionStatus::failed;
    if (delay_ == Duration{0})
      receive(slot);
    else
      plan(now_ + delay_, Step::receive, slot);
  } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
    // Takes no time: frees the pages when it is heard, which costs nobody anything before.
    const std::uint32_t slot = new_act(unload->id, ActionKind::load, unload->device, unload->model);
    Act& act = acts_[slot];
    act.kind = ActionKind::load;
    act.window = {TimePoint::min(), TimePoint::max()};
    act.duration = Duration{-1};  // marks an UNLOAD
    if (delay_ == Duration{0})
      receive(slot);
    else
      plan(now_ + delay_, Step::receive, slot);
  } else if (const auto* halt = std::get_if<schedule::Stop>(&action)) {
    if (delay_ == Duration{0})
      stop(halt->id);
    else
      plan(now_ + delay_, Step::stop, halt->id.value);
  }
}

// Uses idle time, which is when nobody waits for anything.
void Simulation::probe() {
  const bool thinking = thinking_ || !door_.empty() || !reports_.empty() || !cancels_.empty();
  if (!probes_.due({.open = heard_, .running = infers_ + (thinking ? 1U : 0U)})) return;
  for (std::size_t tried = 0; tried < devices_.size(); ++tried) {
    const std::size_t index = probe_device_++ % devices_.size();
    if (!devices_[index].alive) continue;
    const DeviceId device{static_cast<std::uint32_t>(index)};
    const Probe& row = probes_.next();
    const std::uint32_t slot = new_act(probes_.begin(device), ActionKind::infer, device, row.model);
    Act& act = acts_[slot];
    act.ready = now_ + 2 * delay_;
    act.window = {now_, act.ready + probe_within};
    act.duration = scenario_.models[row.model.index()].latency.batch_time(1, row.own);
    if (delay_ == Duration{0})
      receive(slot);
    else
      plan(now_ + delay_, Step::receive, slot);
    return;
  }
}

// The row runs again where it was cut short; where it was not, the scheduler hears what it took.
void Simulation::end_probe(std::uint32_t slot, const schedule::ActionDone& done) {
  const auto row = probes_.end(done.status);
  free_act(slot);
  if (!row) return;
  ++figures_.profiled;
  decide(schedule::RequestProfiled{row->model, row->app, done.duration});
}

void Simulation::stop(ActionId id) {
  const std::uint32_t* found = slots_.find(id);
  if (found == nullptr) return;
  const std::uint32_t slot = *found;
  Act& act = acts_[slot];
  Device& d = devices_[act.device.index()];
  if (act.life != d.life || act.kind != ActionKind::infer) return;
  Executor& executor = d.exec;
  if (executor.running == slot) {
    act.end = now_;
    ++act.stamp;  // its end is void
    executor.running = Executor::none;
    count_busy(act);
  } else {
    const auto waiting = std::find(executor.queue.begin(), executor.queue.end(), slot);
    if (waiting == executor.queue.end()) return;  // has ended: its report is on its way
    executor.queue.erase(waiting);
    act.start = act.end = now_;
  }
  if (!act.probe) {
    ++figures_.stopped;
    if (options_.observer != nullptr)
      options_.observer->on_end(act.id, act.device, ActionStatus::stopped, now_);
  }
  const std::size_t index = act.device.index();
  // Later, not now: the scheduler is still in the decision that stops it.
  acts_[slot].status = ActionStatus::stopped;
  plan(now_ + delay_, Step::report, slot, 0);
  kick(d, index, executor);
}

void Simulation::receive(std::uint32_t slot) {
  Act& act = acts_[slot];
  Device& d = devices_[act.device.index()];
  if (!d.alive || act.life != d.life) {  // it goes with its device
    free_act(slot);
    return;
  }
  if (act.duration < Duration{0}) {
    Place& p = place(d, act.model);
    if (p == Place::loaded) {
      d.used -= infos_[act.model.index()].pages;
      p = Place::absent;
      ++figures_.unloads;
    }
    act.start = act.end = now_;
    if (options_.observer != nullptr)
      options_.observer->on_end(act.id, act.device, ActionStatus::success, now_);
    report(slot, ActionStatus::success, now_);
    return;
  }
  Executor& executor = act.kind == ActionKind::infer ? d.exec : d.load;
  enqueue(executor, slot);
  kick(d, act.device.index(), executor);
}

void Simulation::enqueue(Executor& executor, std::uint32_t slot) {
  const Act& act = acts_[slot];
  const auto at = std::find_if(executor.queue.rbegin(), executor.queue.rend(), [&](std::uint32_t other) {
    return std::pair(acts_[other].window.earliest, acts_[other].id) < std::pair(act.window.earliest, act.id);
  });
  executor.queue.insert(at.base(), slot);
}

// Starts what can start; else sees to it that the next is looked at when it can.
void Simulation::kick(Device& device, std::size_t index, Executor& executor) {
  while (executor.running == Executor::none && !executor.queue.empty()) {
    const std::uint32_t slot = executor.queue.front();
    Act& act = acts_[slot];
    const TimePoint earliest = act.window.earliest == TimePoint::min()
                                   ? act.ready
                                   : std::max(saturating_add(act.window.earliest, -device.offset), act.ready);
    if (earliest > now_) {
      if (executor.kick_at != earliest) {
        executor.kick_at = earliest;
        plan(earliest, Step::kick, index, &executor == &device.exec ? 0 : 1);
      }
      return;
    }
    executor.queue.erase(executor.queue.begin());
    begin(device, executor, slot);
  }
}

void Simulation::begin(Device& d, Executor& executor, std::uint32_t slot) {
  Act& act = acts_[slot];
  act.start = act.end = now_;
  const schedule::ModelInfo& info = infos_[act.model.index()];
  ActionStatus status = ActionStatus::success;
  if (saturating_add(now_, d.offset) > act.window.latest) {
    status = ActionStatus::too_late;
    if (!act.probe) ++figures_.too_late;
  } else if (act.kind == ActionKind::load) {
    if (info.pages > 0 && place(d, act.model) != Place::absent)
      status = ActionStatus::failed;
    else if (info.pages > 0 && d.used + info.pages > d.total)
      status = ActionStatus::no_memory;
  } else if (!resident(d, act.model)) {
    status = ActionStatus::not_loaded;
  } else if (act.planned == ActionStatus::no_memory) {
    status = ActionStatus::no_memory;
  }
  Observer* const observer = act.probe ? nullptr : options_.observer;
  if (observer != nullptr) observer->on_start(act.id, act.device, now_);
  if (status != ActionStatus::success) {
    if (observer != nullptr) observer->on_end(act.id, act.device, status, now_);
    report(slot, status, now_);
    return;
  }
  if (act.kind == ActionKind::load && info.pages > 0) {
    d.used += info.pages;
    place(d, act.model) = Place::loading;
  }
  act.end = now_ + true_time(d, act.duration);
  executor.running = slot;
  plan(act.end, Step::end, slot, act.stamp);
}

void Simulation::count_busy(const Act& act) {
  if (act.probe) {
    figures_.profiling += act.end - act.start;
    return;
  }
  const TimePoint from = std::max(act.start, warm_);
  const TimePoint to = std::min(act.end, end_);
  if (to > from) figures_.busy[act.device.index()] += to - from;
  if (IntervalFigures* in = interval(act.start)) {
    in->busy += act.end - act.start;
    std::size_t& used = used_in_[act.device.index()];
    if (used <= interval_index(act.start)) {
      used = interval_index(act.start) + 1;
      ++in->devices_used;
    }
  }
  if (act.start >= warm_ && figures_.timeline.size() < options_.timeline)
    figures_.timeline.push_back(
        {act.device, act.model, static_cast<int>(act.requests.size()), act.start, act.end});
}

void Simulation::finish(std::uint32_t slot) {
  Act& act = acts_[slot];
  const std::size_t index = act.device.index();
  Device& d = devices_[index];
  Executor& executor = act.kind == ActionKind::infer ? d.exec : d.load;
  act.end = now_;
  executor.running = Executor::none;
  const ActionStatus status = act.planned;
  if (act.kind == ActionKind::load) {
    const std::uint64_t pages = infos_[act.model.index()].pages;
    if (status == ActionStatus::success) {
      if (pages > 0) place(d, act.model) = Place::loaded;
      ++figures_.loads;
      if (IntervalFigures* in = interval(act.start)) ++in->loads;
    } else if (pages > 0) {
      place(d, act.model) = Place::absent;
      d.used -= pages;
    }
  } else {
    count_busy(act);
    if (!act.probe && act.start >= warm_ && status == ActionStatus::success) {
      ModelFigures& model = figures_.models[act.model.index()];
      ++model.batches;
      model.batched += act.requests.size();
      if (figures_.batch_sizes.size() <= act.requests.size())
        figures_.batch_sizes.resize(act.requests.size() + 1);
      ++figures_.batch_sizes[act.requests.size()];
    }
  }
  if (options_.observer != nullptr && !act.probe) options_.observer->on_end(act.id, act.device, status, now_);
  // What waits starts before anybody hears of the end, as on a device.
  kick(d, index, executor);
  report(slot, status, now_);
}

void Simulation::report(std::uint32_t slot, ActionStatus status, TimePoint at) {
  acts_[slot].status = status;
  TimePoint heard = at + delay_;
  if (faulty_ && !acts_[slot].probe) {
    const Faults& f = options_.faults;
    if (f.lost_reports > 0 && random_.uniform() < f.lost_reports) {
      // Nobody hears of it; the device is taken for dead.
      const std::size_t device = acts_[slot].device.index();
      const std::uint32_t life = acts_[slot].life;
      free_act(slot);
      plan(at + 1s, Step::fault,
           (std::uint64_t{2} << 60) | (static_cast<std::uint64_t>(life) << 24) | device);
      return;
    }
    if (f.late_reports > 0 && random_.uniform() < f.late_reports) heard += from_ms(20 * random_.uniform());
    if (f.doubled_reports > 0 && random_.uniform() < f.doubled_reports) {
      plan(heard, Step::report, slot, 1);
      return;
    }
  }
  if (heard == now_ && !deciding_)
    deliver(slot, false);
  else
    plan(heard, Step::report, slot, 0);
}

void Simulation::deliver(std::uint32_t slot, bool again) {
  Act& act = acts_[slot];
  const Device& d = devices_[act.device.index()];
  if (act.life != d.life) {
    free_act(slot);
    return;
  }
  schedule::ActionDone done{.id = act.id,
                            .status = act.status,
                            .start = act.start + d.offset,
                            .end = act.end + d.offset,
                            .duration = act.end - act.start};
  if (act.probe) return end_probe(slot, done);
  const bool answers = act.kind == ActionKind::infer && act.status == ActionStatus::success;
  std::vector<RequestId> requests;
  if (answers) requests.swap(act.requests);
  free_act(slot);
  for (const RequestId id : requests) {
    const Record* r = record(id);
    if (r == nullptr || !r->open) continue;
    const ModelId model = r->request.model;
    if (!scenario_.models[model.index()].latency.modes.empty() && scheduler_.learns_from_profiles() &&
        probes_.chosen())
      probes_.keep({model, r->request.app, r->own});
    outcome(id, now_ <= r->request.deadline ? Observer::Outcome::on_time : Observer::Outcome::late, now_);
  }
  if (requests.capacity() > 0 && acts_[slot].requests.capacity() == 0) {
    requests.clear();
    acts_[slot].requests.swap(requests);
  }
  decide(done);
  if (again) decide(done);
}

void Simulation::outcome(RequestId id, Observer::Outcome what, TimePoint at) {
  Record* r = record(id);
  if (options_.observer != nullptr && r != nullptr) options_.observer->on_outcome(r->request, what, at);
  if (r == nullptr || !r->open) return;
  r->open = false;
  --open_;
  if (r->heard) --heard_;
  const ModelId model = r->request.model;
  const TimePoint sent = r->request.arrival;
  if (IntervalFigures* in = interval(sent)) {
    using enum Observer::Outcome;
    in->on_time += what == on_time ? 1U : 0U;
    in->late += what == late ? 1U : 0U;
    in->refused += what == refused ? 1U : 0U;
    if (what == on_time || what == late) in->longest = std::max(in->longest, at - sent);
    if (what == on_time) ++figures_.models[model.index()].on_time_by[interval_index(sent)];
  }
  if (sent >= warm_) {
    ModelFigures& f = figures_.models[model.index()];
    switch (what) {
      case Observer::Outcome::on_time:
        ++f.on_time;
        f.latencies.push_back(at - sent);
        break;
      case Observer::Outcome::late:
        ++f.late;
        f.latencies.push_back(at - sent);
        break;
      case Observer::Outcome::refused:
        ++f.refused;
        break;
      case Observer::Outcome::cancelled:
        ++f.cancelled;
        break;
      case Observer::Outcome::unanswered:
        break;
    }
  }
  while (!records_.empty() && !records_.front().open) {
    records_.pop_front();
    ++first_;
  }
  const workload::ScenarioModel& m = scenario_.models[model.index()];
  if (m.process.value_or(scenario_.process).kind == workload::ArrivalKind::closed && m.arrivals.empty() &&
      m.per_minute.empty() && what != Observer::Outcome::unanswered)
    plan(at + std::max(what == Observer::Outcome::refused ? delay_ : Duration{0}, shortest_turn),
         Step::arrive, model.index(), 1);
}

// -- what goes wrong

void Simulation::deal_faults() {
  const auto deal = [&](double per_s, std::uint64_t kind) {
    if (per_s <= 0) return;
    for (std::size_t i = 0; i < devices_.size(); ++i)
      for (double t = random_.exponential(1 / per_s); t < to_seconds(scenario_.duration);
           t += random_.exponential(1 / per_s))
        plan(TimePoint{} + from_seconds(t), Step::fault, (kind << 60) | i);
  };
  deal(options_.faults.deaths_per_s, 1);
  deal(options_.faults.stalls_per_s, 3);
  deal(options_.faults.slowdowns_per_s, 4);
}

void Simulation::fault(std::uint64_t what) {
  const std::uint64_t kind = what >> 60;
  const std::size_t index = what & 0xffffff;
  Device& d = devices_[index];
  if (!d.alive) return;
  switch (kind) {
    case 2:
      if (d.life != ((what >> 24) & 0xfffffffffULL)) break;
      [[fallthrough]];
    case 1:
      plan(now_ + from_seconds(0.001 + 2 * random_.uniform()), Step::device, index, 1);
      set_device(index, false);
      break;
    case 3:
      for (Executor* executor : {&d.exec, &d.load}) {
        if (executor->running == Executor::none) continue;
        Act& act = acts_[executor->running];
        act.end += from_ms(200 * random_.uniform());
        ++act.stamp;
        plan(act.end, Step::end, executor->running, act.stamp);
      }
      break;
    case 4:
      d.slow = 1 + 3 * random_.uniform();
      d.slow_until = now_ + from_seconds(random_.uniform());
      break;
    default:
      break;
  }
}

void Simulation::set_device(std::size_t index, bool alive) {
  Device& d = devices_[index];
  if (d.alive == alive) return;
  for (Executor* executor : {&d.exec, &d.load}) {
    if (executor->running != Executor::none) {
      Act& act = acts_[executor->running];
      act.end = now_;
      if (act.kind == ActionKind::infer) count_busy(act);
      free_act(executor->running);
    }
    for (const std::uint32_t slot : executor->queue) free_act(slot);
  }
  Device fresh;
  fresh.alive = alive;
  fresh.life = d.life + 1;
  fresh.offset = d.offset;
  fresh.total = scenario_.memory ? scenario_.memory->count / page : no_limit;
  d = std::move(fresh);
  if (options_.observer != nullptr)
    options_.observer->on_device(DeviceId{static_cast<std::uint32_t>(index)}, alive, d.offset, now_);
  decide(schedule::DeviceChanged{DeviceId{static_cast<std::uint32_t>(index)}, alive, d.total});
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
                             .batches = {}};
    for (const int b : model.batch_sizes) info.batches.push_back({b, model.latency.expected(b)});
    for (int b = 1; model.batch_sizes.empty() && b <= model.max_batch;
         b = b < 128 ? b + 1 : std::max(b + 1, b + b / 50))
      info.batches.push_back({b, model.latency.expected(b)});
    if (info.batches.back().batch != model.max_batch)
      info.batches.push_back({model.max_batch, model.latency.expected(model.max_batch)});
    infos.push_back(std::move(info));
  }
  return infos;
}

schedule::Environment environment(const workload::Scenario& scenario) {
  if (scenario.allowance)
    return {.dispatch = scenario.allowance->dispatch,
            .answer = scenario.allowance->answer,
            .overrun = scenario.allowance->overrun};
  return {.dispatch = 2 * scenario.network_delay, .answer = scenario.network_delay, .overrun = 0};
}

Figures run(const workload::Scenario& scenario, schedule::Scheduler& scheduler, const Options& options) {
  return Simulation(scenario, scheduler, options).run();
}

}  // namespace carillon::simulate
