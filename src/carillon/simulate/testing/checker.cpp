#include "carillon/simulate/testing/checker.h"

#include <algorithm>
#include <string_view>

#include "carillon/base/assert.h"

namespace carillon::simulate::testing {

using schedule::ActionKind;
using schedule::ActionStatus;

namespace {

constexpr Bytes page = mib(16);
constexpr Duration latest_report = 20ms;  // after it is due, where reports may be late
constexpr Duration declared_dead = 1s;    // the least silence for which a device is given up
constexpr Duration missed_by = 3s;        // it is given up by then, where nothing takes longer than 100 ms
constexpr Duration shortest_turn = 100us;
constexpr int most_of_a_class =
    2;  // INFERs that a device has: of real-time; of best effort, of one at a time

// Made a text only where something is wrong: every event has one.
struct Name {
  std::string_view what;
  std::uint64_t number;
  operator std::string() const { return std::string(what) + " " + std::to_string(number); }
};
Name name_of(RequestId id) {
  return {"request", id.value};
}
Name name_of(ActionId id) {
  return {"action", id.value};
}
Name name_of(DeviceId id) {
  return {"device", id.value};
}

bool some_die(const Faults& faults) {
  return faults.deaths_per_s > 0 || std::ranges::count(faults.planned, workload::DeviceFault::Kind::dies,
                                                       &workload::DeviceFault::kind) > 0;
}

}  // namespace

Checker::Checker(const workload::Scenario& scenario, const Options& options)
    : scenario_(scenario), options_(options.with(scenario)), clients_(scenario), tally_(scenario, options) {
  sent_.resize(scenario.models.size());
  due_.resize(scenario.models.size());
  for (std::size_t i = 0; i < scenario.models.size(); ++i) {
    const ModelId id{static_cast<std::uint32_t>(i)};
    if (!closed(id)) continue;
    const auto& model = scenario.models[i];
    const TimePoint from = TimePoint{} + (model.rate.empty() ? Duration{0} : model.rate.front().at);
    const int clients = model.process.value_or(scenario.process).clients;
    for (int c = 0; c < clients; ++c) due_[i].insert(from + c * 1us);
  }
  classes_ = has_classes(scenario);
  devices_.reserve(static_cast<std::size_t>(scenario.devices));
  for (int i = 0; i < scenario.devices; ++i)
    devices_.emplace_back(DeviceId{static_cast<std::uint32_t>(i)}, options_.faults, problems_,
                          classes_ ? std::optional(options.stop_latency) : std::nullopt);
  known_.resize(devices_.size());
}

std::string Checker::text() const {
  std::string text;
  for (const auto& [kind, detail] : problems()) text += kind + ": " + detail + "\n";
  return text;
}

bool Checker::closed(ModelId model) const {
  const auto& m = scenario_.models[model.index()];
  return m.process.value_or(scenario_.process).kind == workload::ArrivalKind::closed && m.arrivals.empty() &&
         m.per_minute.empty();
}

std::uint64_t Checker::pages_of(ModelId model) const {
  const Bytes weights = scenario_.models[model.index()].weights;
  if (!scenario_.memory || weights.count == 0) return 0;
  return (weights.count - 1) / page.count + 1;
}

Duration Checker::load_time(ModelId model) const {
  const auto& m = scenario_.models[model.index()];
  if (!scenario_.memory) return Duration{0};
  return m.load.value_or(from_seconds(static_cast<double>(m.weights.count) / scenario_.pcie_bytes_per_s));
}

bool Checker::has_batch(ModelId model, std::size_t size) const {
  const auto& m = scenario_.models[model.index()];
  const auto batch = static_cast<int>(size);
  if (batch == m.max_batch) return true;
  if (m.batch_sizes.empty()) return batch >= 1 && batch < m.max_batch;
  return std::find(m.batch_sizes.begin(), m.batch_sizes.end(), batch) != m.batch_sizes.end();
}

// Every call comes here first: what the time that has passed leaves undone.
void Checker::tick(TimePoint at) {
  ++checks_;
  if (at < last_) problem("time ran backwards", "event", at);
  if (at > last_ && !charged()) {
    for (const RequestId id : untold_) problem("a cancellation that was not told", name_of(id), last_);
    untold_.clear();
    if (devices_changed_)
      for (std::size_t i = 0; i < known_.size(); ++i)
        if (known_[i].alive != devices_[i].alive())
          problem("a device's change that was not told", name_of(DeviceId{static_cast<std::uint32_t>(i)}),
                  last_);
    devices_changed_ = false;
    if (wake_ < at) {
      problem("a wake that was not given", "decide", wake_);
      wake_ = TimePoint::max();
    }
  }
  last_ = std::max(last_, at);
}

// -- clients

void Checker::on_sent(const Request& request, Duration alone, TimePoint at) {
  tick(at);
  const Name name = name_of(request.id);
  if (request.id.value != requests_.size()) problem("requests out of order", name, at);
  if (request.model.index() >= scenario_.models.size()) return problem("unknown model", name, at);
  const auto& model = scenario_.models[request.model.index()];
  if (closed(request.model)) {
    auto& due = due_[request.model.index()];
    const auto found = due.find(at);
    if (found == due.end() || at >= TimePoint{} + scenario_.duration)
      problem("a request that no client sends", name, at);
    else
      due.erase(found);
  } else if (clients_.next_at() != at || ModelId{clients_.take()} != request.model) {
    problem("a request that no client sends", name, at);
  }
  Request expected{.id = request.id, .model = request.model, .cls = model.cls, .arrival = at};
  Duration slo = model.slo;
  const std::size_t place = sent_[request.model.index()]++;
  if (!model.arrivals.empty()) {
    CARILLON_ASSERT(place < model.arrivals.size());
    const workload::PlannedRequest& planned = model.arrivals[place];
    slo = planned.slo;
    expected.cls = planned.cls;
    expected.priority = planned.priority;
    expected.app = planned.app;
  }
  // Of several SLOs one is drawn.
  if (!model.slos.empty() && model.arrivals.empty())
    for (const Duration drawn : model.slos)
      if (request.deadline == saturating_add(at, drawn)) slo = drawn;
  expected.deadline = saturating_add(at, slo);
  if (!model.latency.modes.empty()) {
    expected.app = request.app;  // goes with the mode, which is drawn
    if (alone <= Duration{0}) problem("a request that takes no time", name, at);
    alone_.emplace(request.model, model.latency.batch_time(1, alone));
    if (model.latency.sized) expected.effort = workload::LatencyModel::effort_of(alone);
  }
  if (request != expected) problem("a request that is not the scenario's", name, at);
  tally_.sent(expected);
  requests_.push_back({.request = expected, .alone = alone});
}

void Checker::heard(const schedule::RequestArrived& event, TimePoint now) {
  Asked* asked = find(event.request.id);
  if (asked == nullptr || asked->heard)
    return problem("heard of what was not sent", name_of(event.request.id), now);
  asked->heard = true;
  Request expected = asked->request;
  expected.arrival += scenario_.network_delay;
  if (event.request != expected) problem("heard of another request", name_of(expected.id), now);
  if (charged() ? now < expected.arrival || (asked->done && !asked->cancelled)
                : now != expected.arrival || asked->done)
    problem("heard out of time", name_of(expected.id), now);
}

void Checker::heard(const schedule::RequestCancelled& event, TimePoint now) {
  Asked* asked = find(event.request);
  std::erase(untold_, event.request);
  if (asked == nullptr || !asked->heard || !asked->cancelled || asked->gone ||
      asked->request.model != event.model || (!charged() && *asked->cancelled != now))
    return problem("a cancellation of nothing", name_of(event.request), now);
  asked->gone = true;
}

void Checker::on_outcome(const Request& request, Outcome outcome, TimePoint at) {
  tick(at);
  const Name name = name_of(request.id);
  Asked* asked = find(request.id);
  if (asked == nullptr || asked->request != request) return problem("an outcome of nothing", name, at);
  if (asked->done) {
    // The client may go, or be answered, while the scheduler, which has not heard of it, refuses.
    const bool crossed = charged() && outcome == Outcome::refused && (asked->cancelled || unheard(*asked)) &&
                         asked->refused == at;
    if (!crossed) problem("two outcomes", name, at);
    return;
  }
  asked->done = true;
  const bool answered = outcome == Outcome::on_time || outcome == Outcome::late;
  switch (outcome) {
    case Outcome::on_time:
      if (at > asked->request.deadline) problem("called on time but late", name, at);
      break;
    case Outcome::late:
      if (at <= asked->request.deadline) problem("called late but on time", name, at);
      if (const auto by = actions_.find(asked->answered_by); by != actions_.end() && by->second.preempted > 0)
        if (options_.faults == Faults{} && !charged() && !classes_ &&
            scenario_.models[asked->request.model.index()].latency.modes.empty())
          problem("made late by a preemption", name, at);
      break;
    case Outcome::refused:
      // Where decisions take time, some are turned away before the scheduler hears of them.
      if (asked->refused != at && !(charged() && !asked->heard)) problem("refused by nobody", name, at);
      break;
    case Outcome::cancelled:
      if (options_.faults.cancels == 0 ||
          at > asked->request.arrival +
                   2 * std::min<Duration>(scenario_.models[request.model.index()].slo, 1min))
        problem("cancelled by nobody", name, at);
      asked->cancelled = at;
      if (asked->heard) untold_.push_back(request.id);
      break;
    case Outcome::unanswered:
      problem("never answered", name, at);
      break;
  }
  asked->answered = answered;
  if (answered) {
    const Duration late = options_.faults.late_reports > 0 ? latest_report : Duration{0};
    if (!asked->answer || at < *asked->answer || at > *asked->answer + late)
      problem("an answer that nobody gave", name, at);
  }
  tally_.outcome(asked->request, outcome, at);
  if (closed(request.model) && outcome != Outcome::unanswered)
    due_[request.model.index()].insert(
        at + std::max(outcome == Outcome::refused ? scenario_.network_delay : Duration{0}, shortest_turn));
}

// -- devices

void Checker::on_device(DeviceId id, bool alive, Duration clock, TimePoint at) {
  tick(at);
  if (id.index() >= devices_.size()) return problem("unknown device", name_of(id), at);
  devices_changed_ = true;
  DeviceAccount& device = devices_[id.index()];
  const bool first = !seen_.contains(id);
  const Faults& f = options_.faults;
  if (device.alive() == alive || (!first && !some_die(f) && !given_up_.contains(id)) ||
      (first && at != TimePoint{}))
    problem("a device that came or went by itself", name_of(id), at);
  if ((first ? std::chrono::abs(clock) > f.clock_offset : clock != device.clock()))
    problem("a clock that is off by too much", name_of(id), at);
  seen_.insert(id);
  for (auto& [number, action] : actions_) {
    if (action.device != id || !action.ended) continue;
    for (const RequestId r : action.requests)  // the answers that are on their way are lost
      if (Asked* asked = find(r); asked != nullptr && asked->answered_by == number) asked->answer.reset();
  }
  for (const auto& [number, ran] :
       device.power(alive, clock, scenario_.memory ? scenario_.memory->count / page.count : 0, at)) {
    const Action& action = actions_.at(number);
    if (action.profiled) continue;
    tally_.ran({id, action.model, static_cast<int>(action.requests.size()), ran.start, at}, ran.busy, false);
  }
}

void Checker::heard(const schedule::DeviceChanged& event, TimePoint now) {
  if (event.device.index() >= devices_.size()) return problem("unknown device", name_of(event.device), now);
  Known& k = known_[event.device.index()];
  if (k.alive == event.alive || (!charged() && devices_[event.device.index()].alive() != event.alive) ||
      (event.alive && scenario_.memory && event.pages != scenario_.memory->count / page.count) ||
      event.best_effort != 1)
    problem("a device's change that is not so", name_of(event.device), now);
  gone(event.device);
  k.alive = event.alive;
  k.pages = event.pages;
}

// For the scheduler, nothing is there or under way any more.
void Checker::gone(DeviceId device) {
  for (auto& [id, action] : actions_) {
    if (action.device != device || action.lost || action.reported) continue;
    action.lost = true;
    for (const RequestId r : action.requests)
      if (Asked* asked = find(r); asked != nullptr && asked->in == id) asked->in.reset();
  }
  known_[device.index()] = {};
  devices_changed_ = true;
}

void Checker::on_start(ActionId id, DeviceId device, TimePoint at) {
  tick(at);
  const auto found = actions_.find(id);
  if (found == actions_.end() || found->second.device != device)
    return problem("started what was not sent", name_of(id), at);
  devices_[device.index()].started(id, at);
}

void Checker::on_end(ActionId id, DeviceId device, ActionStatus status, TimePoint at) {
  tick(at);
  const auto found = actions_.find(id);
  if (found == actions_.end() || found->second.device != device)
    return problem("ended what was not sent", name_of(id), at);
  Action& action = found->second;
  const auto ended = devices_[device.index()].ended(id, status, at);
  if (!ended) return;
  action.ended = status;
  action.start = ended->start;
  action.end = at;
  action.busy = ended->busy;
  if (action.profiled) return;
  if (status == ActionStatus::too_late) tally_.too_late();
  if (status == ActionStatus::stopped) tally_.stopped();
  switch (action.kind) {
    case ActionKind::load:
      if (status == ActionStatus::success) tally_.loaded(action.start);
      break;
    case ActionKind::unload:
      if (ended->ran) tally_.unloaded();
      break;
    case ActionKind::infer:
      if (ended->ran)
        tally_.ran({device, action.model, static_cast<int>(action.requests.size()), action.start, at},
                   ended->busy, status == ActionStatus::success);
      if (status == ActionStatus::success)
        for (const RequestId r : action.requests)
          if (Asked* asked = find(r); asked != nullptr && !asked->answer) {
            asked->answer = at + scenario_.network_delay;
            asked->answered_by = id;
          }
      break;
  }
}

void Checker::heard(const schedule::ActionDone& event, TimePoint now) {
  const Name name = name_of(event.id);
  const auto found = actions_.find(event.id);
  if (found == actions_.end() || !found->second.ended || (found->second.lost && !charged()))
    return problem("a report of nothing", name, now);
  Action& action = found->second;
  const Duration clock = devices_[action.device.index()].clock();
  if (event.status != *action.ended || event.start != action.start + clock ||
      event.end != action.end + clock || event.duration != action.busy)
    problem("a report that is not so", name, now);
  const TimePoint due = action.end + scenario_.network_delay;
  const TimePoint latest = charged()                          ? TimePoint::max()
                           : options_.faults.late_reports > 0 ? due + latest_report
                                                              : due;
  if (now < due || now > latest) problem("a report out of time", name, now);
  if (action.reported) return problem("reported twice", name, now);
  action.reported = true;
  if (action.lost) return;
  Known& k = known_[action.device.index()];
  const bool success = event.status == ActionStatus::success;
  switch (action.kind) {
    case ActionKind::load:
      k.places[action.model] = success ? Known::Place::loaded : Known::Place::absent;
      if (!success) k.booked -= pages_of(action.model);
      break;
    case ActionKind::unload:
      k.places[action.model] = Known::Place::absent;
      k.booked -= pages_of(action.model);
      break;
    case ActionKind::infer:
      if (action.profiled) {
        if (event.status != ActionStatus::stopped && event.status != ActionStatus::too_late)
          kept_.erase(*action.profiled);
        break;
      }
      --k.pending[action.model];
      --k.of_class[static_cast<std::size_t>(action.cls)];
      for (const RequestId r : action.requests) {
        Asked* asked = find(r);
        if (asked == nullptr) continue;
        if (asked->in == event.id) asked->in.reset();
        if (success && !asked->done) problem("an answer that was not given", name_of(r), now);
      }
      break;
  }
  if (options_.faults.doubled_reports == 0) actions_.erase(found);
}

void Checker::on_odd_report(DeviceId device, TimePoint at) {
  tick(at);
  tally_.decided();
  if (options_.faults.doubled_reports == 0) problem("a second report of nothing", name_of(device), at);
  if (charged()) outgoing_.emplace();
}

// -- the scheduler

void Checker::heard(const schedule::Wake&, TimePoint now) {
  if (!charged() && wake_ != now) problem("a wake that nobody asked for", "Wake", now);
  wake_ = TimePoint::max();
}

void Checker::heard(const schedule::RequestProfiled& event, TimePoint now) {
  // On devices that do as they should, the time of one alone.
  if (options_.faults == Faults{} && !alone_.contains({event.model, event.solo}))
    problem("a sample of nothing", "model " + std::to_string(event.model.value), now);
}

void Checker::heard(const schedule::TimesChanged& event, TimePoint now) {
  problem("times that nobody changed", "model " + std::to_string(event.model.value), now);
}

void Checker::on_decision(const schedule::Event& event, TimePoint now, const schedule::Actions& actions,
                          TimePoint wake) {
  tick(now);
  tally_.decided();
  std::visit([&](const auto& e) { heard(e, now); }, event);
  for (const schedule::Action& action : actions) std::visit([&](const auto& a) { decided(a, now); }, action);
  if (wake != wake_ && wake <= now) problem("a wake in the past", "decide", now);
  wake_ = wake;
  if (!charged()) return send(actions, now);
  if (outgoing_) problem("two decisions at once", "event", now);
  outgoing_ = actions;
}

void Checker::on_decided(TimePoint at) {
  tick(at);
  if (!outgoing_) return problem("sent what was not decided", "event", at);
  send(*outgoing_, at);
  outgoing_.reset();
}

// Books an action; the device as the scheduler knows it, none where that makes no sense.
Checker::Known* Checker::take(ActionId id, ActionKind kind, DeviceId device, ModelId model,
                              const Window& window, TimePoint now) {
  const Name name = name_of(id);
  constexpr int group_bit = 48;  // groups of devices have ids of their own (schedule::Subclusters)
  ActionId& next = next_action_[id.value >> group_bit];
  if (classes_ ? !used_.insert(id).second : id < next) problem("an action's id was used before", name, now);
  next = ActionId{id.value + 1};
  if (model.index() >= scenario_.models.size()) {
    problem("unknown model", name, now);
    return nullptr;
  }
  if (device.index() >= devices_.size() || !known_[device.index()].alive) {
    problem("an action for a dead device", name, now);
    return nullptr;
  }
  if (window.latest < window.earliest) problem("a window that ends before it begins", name, now);
  actions_[id] = {.kind = kind, .device = device, .model = model, .requests = {}, .sent = now};
  return &known_[device.index()];
}

void Checker::decided(const schedule::Load& load, TimePoint now) {
  Known* k = take(load.id, ActionKind::load, load.device, load.model, load.window, now);
  if (k == nullptr) return;
  Known::Place& place = k->places[load.model];
  if (place != Known::Place::absent) problem("a LOAD of what is there", name_of(load.id), now);
  place = Known::Place::loading;
  k->booked += pages_of(load.model);
  if (scenario_.memory && k->booked > k->pages) problem("a LOAD without free pages", name_of(load.id), now);
}

void Checker::decided(const schedule::Unload& unload, TimePoint now) {
  Known* k = take(unload.id, ActionKind::unload, unload.device, unload.model, {}, now);
  if (k == nullptr) return;
  Known::Place& place = k->places[unload.model];
  if (place != Known::Place::loaded) problem("an UNLOAD of what is not there", name_of(unload.id), now);
  if (k->pending[unload.model] > 0) problem("an UNLOAD of a model in use", name_of(unload.id), now);
  place = Known::Place::unloading;
}

void Checker::decided(const schedule::Infer& infer, TimePoint now) {
  const Name name = name_of(infer.id);
  Known* k = take(infer.id, ActionKind::infer, infer.device, infer.model, infer.window, now);
  if (k == nullptr) return;
  Action& action = actions_.at(infer.id);
  action.requests = infer.requests;
  action.cls = infer.cls;
  ++k->pending[infer.model];
  const int under_way = ++k->of_class[static_cast<std::size_t>(infer.cls)];
  if (infer.cls != Class::normal && (under_way > most_of_a_class || !classes_))
    problem("more of a class than a device is given", name, now);
  const Known::Place place = k->places[infer.model];
  if (pages_of(infer.model) > 0 && place != Known::Place::loaded && place != Known::Place::loading)
    problem("sent to where its weights are not", name, now);
  if (!has_batch(infer.model, infer.requests.size()))
    problem("no such batch size", std::to_string(infer.requests.size()) + " in " + std::string(name), now);
  for (auto member = infer.requests.begin(); member != infer.requests.end(); ++member) {
    const RequestId id = *member;
    if (std::find(infer.requests.begin(), member, id) != member) {
      problem("a request twice in a batch", name, now);
      continue;
    }
    Asked* asked = find(id);
    if (!open(asked)) {
      problem("ran what is not open", name_of(id), now);
      continue;
    }
    if (asked->request.model != infer.model) problem("ran under another model", name_of(id), now);
    if (infer.cls != Class::normal && asked->request.cls != infer.cls)
      problem("ran in another class's stream", name_of(id), now);
    if (runs(*asked)) problem("ran twice at once", name_of(id), now);
    asked->in = infer.id;
  }
}

// For all that the scheduler knows, the request is there and has no outcome.
bool Checker::open(const Asked* asked) const {
  return asked != nullptr && asked->heard && !asked->gone && !asked->refused &&
         (!asked->done || asked->cancelled || unheard(*asked));
}

// It is answered, and the scheduler, whose decisions take time, has given up the device before it hears of
// that.
bool Checker::unheard(const Asked& asked) const {
  const auto found = actions_.find(asked.answered_by);
  return charged() && asked.answered && found != actions_.end() && found->second.lost;
}

bool Checker::runs(const Asked& asked) const {
  if (!asked.in) return false;
  const auto found = actions_.find(*asked.in);
  return found != actions_.end() && !found->second.stopped;
}

void Checker::decided(const schedule::Refuse& refuse, TimePoint now) {
  const Name name = name_of(refuse.request);
  Asked* asked = find(refuse.request);
  if (!open(asked)) return problem("refused what is not open", name, now);
  if (runs(*asked)) problem("refused what runs", name, now);
  const Faults& f = options_.faults;
  if (refuse.reason == schedule::Reason::device_failed && given_up_.empty() && f.infer_failures == 0 &&
      f.load_failures == 0 && f.lost_inputs == 0 && !some_die(f))
    problem("called a failure what none was", name, now);
  asked->refused = charged() ? TimePoint::max() : now;  // when it is said
}

void Checker::decided(const schedule::Stop& stop, TimePoint now) {
  const auto found = actions_.find(stop.id);
  if (found == actions_.end() || found->second.kind != ActionKind::infer ||
      found->second.device != stop.device || found->second.reported)
    return problem("a stop of what does not run", name_of(stop.id), now);
  found->second.stopped = true;
}

void Checker::decided(const schedule::Preempt& preempt, TimePoint now) {
  const auto found = actions_.find(preempt.id);
  if (found == actions_.end() || found->second.kind != ActionKind::infer ||
      found->second.device != preempt.device || found->second.reported)
    return problem("a preemption of what does not run", name_of(preempt.id), now);
  if (++found->second.preempted > most_preemptions) problem("preempted too often", name_of(preempt.id), now);
}

void Checker::decided(const schedule::Keep& keep, TimePoint now) {
  const bool known = keep.keep ? open(find(keep.request)) : kept_.contains(keep.request);
  if (!known) problem("nothing to keep, or to forget", name_of(keep.request), now);
  if (keep.keep)
    kept_.insert(keep.request);
  else
    kept_.erase(keep.request);
}

void Checker::decided(const schedule::Profile& profile, TimePoint now) {
  const Name name = name_of(profile.id);
  Known* k = take(profile.id, ActionKind::infer, profile.device, profile.model, profile.window, now);
  if (k == nullptr) return;
  actions_[profile.id].profiled = profile.request;
  const Asked* asked = find(profile.request);
  if (asked == nullptr || !asked->done || !kept_.contains(profile.request) ||
      asked->request.model != profile.model || scenario_.models[profile.model.index()].latency.modes.empty())
    return problem("ran again what is not kept", name, now);
  if (pages_of(profile.model) > 0 && k->places[profile.model] != Known::Place::loaded)
    problem("sent to where its weights are not", name, now);
  const auto waits = [this](const Asked& each) {
    return open(&each) && !each.done && (!classes_ || each.request.cls == Class::normal);
  };
  if (!charged() && std::ranges::any_of(requests_, waits)) problem("ran again while others wait", name, now);
}

void Checker::decided(const schedule::GiveUp& up, TimePoint now) {
  if (up.device.index() >= devices_.size() || !known_[up.device.index()].alive)
    return problem("gave up what is dead", name_of(up.device), now);
  const auto silent = [&](const auto& entry) {
    const Action& action = entry.second;
    return action.device == up.device && !action.lost && !action.reported &&
           now - action.sent >= declared_dead;
  };
  if (std::ranges::none_of(actions_, silent)) problem("gave up what did not hang", name_of(up.device), now);
  given_up_.insert(up.device);
  gone(up.device);
}

// What a decision sends, as the devices get it.
void Checker::send(const schedule::Actions& actions, TimePoint at) {
  const Duration delay = scenario_.network_delay;
  const auto to = [&](DeviceId device, const DeviceAccount::Sent& sent) {
    if (device.index() < devices_.size() && actions_.contains(sent.id)) devices_[device.index()].sent(sent);
  };
  for (const schedule::Action& action : actions) {
    if (const auto* infer = std::get_if<schedule::Infer>(&action)) {
      if (infer->model.index() >= scenario_.models.size() || infer->requests.empty()) continue;
      Duration longest{0};
      for (const RequestId id : infer->requests)
        if (const Asked* asked = find(id)) longest = std::max(longest, asked->alone);
      to(infer->device, {.id = infer->id,
                         .kind = ActionKind::infer,
                         .model = infer->model,
                         .window = infer->window,
                         .heard = at + delay,
                         .ready = at + delay + scenario_.fetch_time(),
                         .time = scenario_.models[infer->model.index()].latency.batch_time(
                             static_cast<int>(infer->requests.size()), longest),
                         .pages = pages_of(infer->model),
                         .cls = infer->cls});
    } else if (const auto* profile = std::get_if<schedule::Profile>(&action)) {
      const Asked* asked = find(profile->request);
      if (profile->model.index() >= scenario_.models.size() || asked == nullptr) continue;
      to(profile->device,
         {.id = profile->id,
          .kind = ActionKind::infer,
          .model = profile->model,
          .window = profile->window,
          .heard = at + delay,
          .ready = at + delay + scenario_.fetch_time(),
          .time = scenario_.models[profile->model.index()].latency.batch_time(1, asked->alone),
          .pages = pages_of(profile->model)});
    } else if (const auto* load = std::get_if<schedule::Load>(&action)) {
      if (load->model.index() >= scenario_.models.size()) continue;
      to(load->device, {.id = load->id,
                        .kind = ActionKind::load,
                        .model = load->model,
                        .window = load->window,
                        .heard = at + delay,
                        .ready = at + delay,
                        .time = load_time(load->model),
                        .pages = pages_of(load->model)});
    } else if (const auto* unload = std::get_if<schedule::Unload>(&action)) {
      if (unload->model.index() >= scenario_.models.size()) continue;
      to(unload->device, {.id = unload->id,
                          .kind = ActionKind::unload,
                          .model = unload->model,
                          .window = {},
                          .heard = at + delay,
                          .ready = at + delay,
                          .pages = pages_of(unload->model)});
    } else if (const auto* refuse = std::get_if<schedule::Refuse>(&action)) {
      if (Asked* asked = find(refuse->request); asked != nullptr && asked->refused) asked->refused = at;
    } else if (const auto* stop = std::get_if<schedule::Stop>(&action)) {
      if (stop->device.index() < devices_.size()) devices_[stop->device.index()].stop(stop->id, at + delay);
    } else if (const auto* preempt = std::get_if<schedule::Preempt>(&action)) {
      if (preempt->device.index() >= devices_.size()) continue;
      devices_[preempt->device.index()].preempt(preempt->id, preempt->order, at + delay);
    }
  }
}

void Checker::finish(const Figures& figures) {
  const TimePoint end = TimePoint{} + scenario_.duration;
  const Duration delay = scenario_.network_delay;
  tick(last_);
  for (const Asked& asked : requests_) {
    if (!asked.done) problem("no outcome", name_of(asked.request.id), last_);
    const TimePoint due = asked.request.arrival + delay;
    if (!asked.heard && due < last_ && !charged() && (!asked.cancelled || *asked.cancelled > due))
      problem("never heard of", name_of(asked.request.id), due);
  }
  if (clients_.next_at() < last_) problem("a request that was not sent", "clients", clients_.next_at());
  for (const auto& due : due_)
    if (!due.empty() && *due.begin() < std::min(end, last_))
      problem("a request that was not sent", "clients", *due.begin());
  for (DeviceAccount& device : devices_) device.finish(last_);
  const Duration slack =
      std::max(options_.faults.late_reports > 0 ? latest_report : Duration{0},
               options_.faults.lost_reports > 0 ? (classes_ ? 10 : 1) * missed_by : Duration{0});
  for (const auto& [id, action] : actions_)
    if (action.ended && !action.reported && !action.lost && !charged() && action.end + delay + slack < last_)
      problem("never reported", name_of(id), action.end);
  for (const std::string& difference : tally_.differences(figures))
    problem("figures that are not so", difference, last_);
}

}  // namespace carillon::simulate::testing
