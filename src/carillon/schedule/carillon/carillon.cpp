#include "carillon/schedule/carillon/carillon.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace carillon::schedule {
namespace {

using parts::Choice;
using parts::Times;
using parts::Waiting;

// The longest that a batch is deferred, whatever its deadline allows.
constexpr Duration longest_wait = 500ms;
// After that time a wait for a device that was measured counts e times less: long beside bursts, short beside
// the day.
constexpr Duration wait_horizon = 10s;
// For how many requests beyond a tail there has to be room before it is believed: its share is then known to
// a half.
constexpr double known_after = 4;
// With more devices than that one will be free soon, and asking them all would take long.
constexpr std::size_t few_devices = 8;
// The chance to be in time that a run needs on a device that idles; and, however much else may come, for what
// comes to nothing there is not measured.
constexpr double least_chance = 0.1, most_chance = 0.9;
// Lines that a device looks at before it idles: bounds the work.
constexpr std::size_t lines_looked_at = 64;
// Likewise devices, for a line that may start: those are not free, or too slow for it.
constexpr std::size_t devices_looked_at = 64;
// Models of which a plan, or a device, may change what they can do: so many are looked at in an event; and
// after that time, where nothing else happens.
constexpr std::size_t models_looked_at = 64;
constexpr Duration planned_after = 100us;
// A line that may start but is late on all devices that are free is looked at again after that time, as they
// may be doubted then.
constexpr Duration doubted_after = 25ms;

std::uint32_t line_of(ModelId model, Class cls) {
  return static_cast<std::uint32_t>(Waiting::line_of(model, cls));
}

// What may be tried, and what is so at first.
parts::Experiments experiments_of(const CarillonOptions& options) {
  const bool tries = options.experiments > 0 && options.fair <= 0 && options.tenants <= 0;
  const bool keep_off = options.keep_off > 0, limit = options.limit > 0, curb = options.curb > 0;
  return parts::Experiments({keep_off ? 0 : 1, limit ? 0 : 1, curb ? 1 : 0},
                            {tries && keep_off ? 3 : 1, tries && limit ? 2 : 1, tries ? 2 : 1});
}

}  // namespace

Carillon::Carillon(const Environment& environment, const CarillonOptions& options)
    : Policy(environment),
      options_(options),
      kinds_(options.kinds > 0, environment.classes),
      life_(environment, environment.preemption == Preemption::deadline, options.chance > 0, &kinds_),
      overtakes_(environment.preemption == Preemption::deadline),
      plan_(environment, options.worth > 0),
      experiments_(experiments_of(options)),
      waits_(parts::Plan::exceeded, wait_horizon, known_after),
      punctual_(environment),
      fair_(options.fair, options.tenants) {
  set_as_tried();
}

TimePoint Carillon::act(const Event& event, Orders& out) {
  const auto* const arrival = std::get_if<RequestArrived>(&event);
  if (arrival != nullptr)
    kinds_.arrived(arrival->request, out.time());
  else
    tell_kinds(event, out);
  if (kinds_.changed()) follow_kinds(out);
  life_.hear(event, out);
  if (arrival == nullptr || placing_.any() || out.ledger().alive() == 0) placing_.hear(event, life_, out);
  if (arrival != nullptr)
    plan_.hear(event, out, kinds_.of(arrival->request));
  else
    plan_.hear(event, out);
  std::optional<RequestId> turned_away;
  if (arrival != nullptr && fair_.on(arrival->request) && !admit(arrival->request, out))
    turned_away = arrival->request.id;
  hear(event, out);
  if (arrival != nullptr && arrival->more) return wake_;
  if (plan_.due(out.time()) || keep_off_.planning()) go_on(out);
  life_.expire(out);
  if (changed_ > 0) look_at_changed();
  find_pressure(out);
  if (fair_.on()) fair_.step(out.ledger().alive(), out.time());
  while (looks_.top_at() <= out.time()) {
    punctual_.looked(looks_.top_at(), out.time());
    look(looks_.top(), out);
  }
  for (const std::uint32_t line : due_) {
    due_now_[line] = false;
    look(line, out);
  }
  due_.clear();
  for (const std::uint32_t line : come_) comes(line, out);
  come_.clear();
  match(out);
  if (overtakes_) overtake(out);
  placing_.step(life_, out);
  life_.settle(out);
  if (fair_.on()) count_lost(turned_away, out);
  for (const auto& [refusal, model] : out.ledger().changes().refused)
    if (refusal.reason != Reason::no_model) experiments_.lost(1);
  wake_ = std::min({looks_.top_at(), life_.wake_at(out.time()), placing_.wake_at()});
  if (ready_.any())
    for (const Class streams : life_.all_streams()) wake_ = std::min(wake_, free_.next_at(streams));
  if (plan_.busy() || keep_off_.planning() || changed_ > 0 || relieved_ > 0)
    wake_ = std::min(wake_, out.time() + planned_after);
  return wake_ = std::max(wake_, out.time() + Duration{1});
}

// What an event says of kinds.
void Carillon::tell_kinds(const Event& event, const Orders& out) {
  if (const auto* change = std::get_if<ModelChanged>(&event)) {
    kinds_.changed(change->model, change->info);
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    kinds_.changed(times->model, out.ledger().model(times->model).info);
  } else if (const auto* done = kinds_.any() ? std::get_if<ActionDone>(&event) : nullptr;
             done != nullptr && done->status == ActionStatus::success) {
    for (const std::uint32_t place : out.ledger().changes().ended) {
      const auto& run = out.ledger().at(place);
      if (run.kind == ActionKind::infer && kinds_.model(run.run.model) != run.run.model &&
          out.ledger().times(run.cls).tells(run.run))
        kinds_.ran(run.run.model, run.run.index, done->duration, out.time());
    }
  }
}

// What follows from that for all that plans by kinds.
void Carillon::follow_kinds(Orders& out) {
  const auto changes = kinds_.take_changes();
  for (const auto& come : changes.come) life_.know(come.as, come.model);
  for (const auto& [from, to] : changes.moves) {
    life_.move(from, to);
    for (const Class cls : all_classes)
      for (const ModelId as : {from, to}) look_soon(line_of(as, cls));
  }
  if (changes.forgotten) life_.forget_names();
  for (const auto& come : changes.come) {
    out.plan(come.as, come.info);
    plan_.hear(ModelChanged{come.as, come.info}, out);
    renew(come.as);
    for (const Class cls : all_classes) look_soon(line_of(come.as, cls));
  }
}

// A model, or a kind under that name, comes or comes anew: it may have other batch sizes.
void Carillon::renew(ModelId as) {
  for (; models_ < plan_.models(); ++models_) waits_.add_model();
  if (as.index() < waiting_.size()) waiting_[as.index()] = {};
}

void Carillon::look_at_changed() {
  for (std::size_t i = std::min(changed_, models_looked_at); i > 0; --i, --changed_) {
    if (next_changed_ >= plan_.models()) next_changed_ = 0;
    look_at_all(ModelId{static_cast<std::uint32_t>(next_changed_++)});
    ++looked_at_;
  }
}

// Plans, now and then. Of many models some are looked at in an event, the others in the next.
void Carillon::go_on(Orders& out) {
  if (plan_.step(out)) {
    for (const DeviceId device : plan_.paces().take_stepped()) know(device, out);
    experiment(out.time());
    if (options_.keep_off > 0) keep_off_.begin(plan_);
    changed_ = plan_.models();
    ++plans_;
  }
  if (keep_off_.planning() && keep_off_.go_on(plan_, out.ledger())) relieved_ = kept_.size();
}

// Which lines and devices are to be looked at again.
void Carillon::hear(const Event& event, Orders& out) {
  if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    come_.push_back(line_of(kinds_.of(arrival->request), arrival->request.cls));
    if (out.ledger().changes().back.empty()) return;
  } else if (const auto* change = std::get_if<ModelChanged>(&event)) {
    experiments_.disturb();
    set_as_tried();
    renew(change->model);
    look_at_all(change->model);
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    look_at_all(times->model);
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    look_at_all(gone->model);
  } else if (const auto* changed = std::get_if<DeviceChanged>(&event)) {
    experiments_.disturb();
    set_as_tried();
    know(changed->device, out);
    look_at(changed->device, out);  // it may have come with weights
    changed_ = plan_.models();
    relieved_ = kept_.size();
  }
  for (const RequestId id : out.ledger().changes().back)
    if (const auto* request = out.ledger().request(id)) look_soon(life_.line_of(request->told));
  for (const std::uint32_t place : out.ledger().changes().ended) {
    const auto& ended = out.ledger().at(place);
    if (const auto* done = std::get_if<ActionDone>(&event);
        done != nullptr && done->status == ActionStatus::success)
      count_answers(ended, out.time());
    if (ended.kind != ActionKind::infer)
      look_at_all(ended.model);
    else
      look_at(ended.device, out);
  }
}

// Whether the device is alive, and how fast.
void Carillon::know(DeviceId device, const Orders& out) {
  const bool alive = out.ledger().device(device).alive;
  free_.know(device, alive ? std::optional(plan_.paces().step(device)) : std::nullopt);
  fastest_ = free_.fastest();
  alike_ = free_.alike();
}

// What runs there has changed.
void Carillon::look_at(DeviceId device, const Orders& out) {
  for (const Class streams : life_.all_streams())
    free_.look(device, streams, out.ledger(), times(streams, out).dispatch(device), out.time());
  if (keep_off_.hear(out.ledger(), device)) relieved_ = kept_.size();
}

// What long runs kept from devices may go there now: some lines in this event, the others in the next.
void Carillon::freshen_kept() {
  for (std::size_t i = std::min(relieved_, lines_looked_at); i > 0; --i, --relieved_) {
    const std::uint32_t line = kept_.front();
    kept_.pop_front();
    kept_now_[line] = false;
    ready_.freshen(line);
    ++looked_at_;
  }
}

void Carillon::look_soon(std::uint32_t line) {
  if (line >= due_now_.size()) due_now_.resize(line + 1);
  if (due_now_[line]) return;
  due_now_[line] = true;
  due_.push_back(line);
}

void Carillon::look_at_all(ModelId model) {
  kinds_.visit(model, [&](ModelId as) {
    for (const Class cls : all_classes) {
      const std::uint32_t line = line_of(as, cls);
      if (life_.waiting().head(as, cls) != nullptr || looks_.contains(line)) look_soon(line);
    }
  });
}

// So much of the line waits.
void Carillon::count(std::uint32_t line, const Waiting::Head* head, std::size_t rows, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  if (cls != Class::best_effort && options_.backlog > 0) {
    const auto& times = plan_.times(model);
    const int index = plan_.known(model)
                          ? std::min(plan_.planned(model), times.index_for(std::max<std::size_t>(1, rows)))
                          : 0;
    const double work = static_cast<double>(rows) * times.each(index);
    const TimePoint deadline = head == nullptr ? TimePoint::max() : head->deadline;
    backlog_.set(line, rows, work, deadline, out.time());
    if (fair_.on()) fair_.waits(line, rows, work, deadline, out.time());
  }
  if (!placing_.any()) return;
  const ModelId whole = kinds_.model(model);
  if (whole.index() < out.ledger().models()) placing_.waits(whole, life_.waiting(), out);
}

// A request came. Mostly nothing follows from it but that one more waits.
void Carillon::comes(std::uint32_t line, Orders& out) {
  if (line >= deferred_.size()) return look(line, out);
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  const Deferred& d = deferred_[line];
  if (d.until <= out.time() || d.pressed != pressed_ || head == nullptr || head->id != d.head)
    return look(line, out);
  const std::size_t rows = life_.waiting().size(model, cls);
  if (rows >= d.rows) return look(line, out);
  count(line, head, rows, out);
}

// Finds the line's batch, as the fastest device could run it now, and from when on it may start.
void Carillon::look(std::uint32_t line, Orders& out) {
  ++looked_at_;
  const auto [model, cls] = Waiting::of_line(line);
  ready_.remove(line);
  if (line >= deferred_.size()) deferred_.resize(line + 1);
  deferred_[line].until = TimePoint::min();
  refuse_too_late(model, cls, out);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  count(line, head, head == nullptr ? 0 : life_.waiting().size(model, cls), out);
  if (head == nullptr || !fastest_) {
    looks_.remove(line);
    return waits_.lost(model, out.time(), out.time());
  }
  const DeviceId fastest = *fastest_;
  const Times times = this->times(life_.streams(cls), out);
  const TimePoint start = out.time() + times.dispatch(fastest);
  const auto choice = first_batch(*head, times, fastest, start, out.time());
  if (!choice) {
    looks_.remove(line);
    return ready_.put({cls, rest(line, out.time()), head->deadline, line});  // perhaps another device can
  }
  const int index = plan_.times(model).index_for(choice->batch.rows);
  TimePoint ready = out.time();
  // What would not keep what is promised goes where a device idles.
  const bool in_time = options_.chance <= 0 || choice->deadline <= head->deadline ||
                       saturating_add(start, times.span(fastest, model, 0)) <= head->deadline;
  const std::size_t largest = largest_batch(line, out.time());
  const bool full = largest > 0 && choice->batch.rows >= largest;
  if (in_time && !full && !starts_at_once(model, index)) {
    Asking asking = this->asking(*head, choice->deadline, out);
    // Further requests bring that forward, but not to before it would be with `last` of them.
    const int last = waits_with(model, index);
    const TimePoint soonest = ready_at(asking, last, times, out);
    if (soonest > out.time()) {
      const auto rows = static_cast<std::size_t>(plan_.times(model).batch_size(last + 1));
      deferred_[line] = {.until = soonest, .rows = rows, .head = head->id, .pressed = pressed_};
      return looks_.set(line, soonest);
    }
    ready = last == index ? soonest : ready_at(asking, index, times, out);
  }
  // Until rates are known batches are small: their waits would tell too long a lead for many seconds.
  if (plan_.known(model)) waits_.asks(model, std::max(ready, out.time()), out.time());
  if (ready > out.time()) return looks_.set(line, ready);
  // There is time for all that goes first, whatever it costs.
  const bool first = fair_.on() && fair_.first(line, out.time());
  ready_.put({cls, rest(line, out.time()), first ? choice->latest() : key(model, *choice), line});
  looks_.set(line, std::max(saturating_add(choice->latest(), Duration{1}), out.time() + Duration{1}));
}

// What no device will be free for in time, nor make way for, is told so at once.
void Carillon::refuse_too_late(ModelId model, Class cls, Orders& out) {
  if (cls != Class::normal || !fastest_ || out.ledger().alive() > few_devices) return;
  const Times times = this->times(life_.streams(cls), out, accepted_of_idle());
  while (const Waiting::Head* const head = life_.waiting().head(model, cls)) {
    const auto ends = too_late(*head, times, out);
    if (!ends) return;
    life_.refuse(head->id, Reason::cannot_finish, *ends, out);
  }
}

// When such a request would end. None where a device may be free in time.
std::optional<TimePoint> Carillon::too_late(const Waiting::Head& head, const Times& times,
                                            const Orders& out) const {
  if (head.deadline == TimePoint::max()) return std::nullopt;
  TimePoint ends = TimePoint::max();
  const bool may_be = free_.visit_alive([&](DeviceId device) {
    if (!parts::runs_there(out.ledger(), device, kinds_.model(head.model))) return true;
    const Duration dispatch = times.dispatch(device);
    const auto alone = times.batch(device, head.model, 0);
    const TimePoint free = parts::free_at(out.ledger(), device, ledger::Lane::exec, dispatch, out.time());
    ends = std::min(ends, saturating_add(free, alone.span));
    if (free <= out.time() || ends <= head.deadline) return true;
    // What runs may yet make way for what is much shorter.
    const Duration way = from_ns((1 + parts::kernel) * static_cast<double>(alone.exec.count()));
    return overtakes_ && dispatch + way < free - out.time();
  });
  return may_be ? std::nullopt : std::optional(ends);
}

// A batch of `index`, which waits for a larger one, would do so with as many more requests, too: up to the
// planned size, or a quarter more. The place of that size.
int Carillon::waits_with(ModelId model, int index) {
  if (model.index() >= waiting_.size()) waiting_.resize(model.index() + 1);
  WaitsWith& w = waiting_[model.index()];
  const int most = std::max(plan_.known(model) ? plan_.planned(model) : 0, index + index / 4 + 1);
  if (w.plan != plans_ || w.pressed != pressed_ || index < w.from || index > w.last)
    w = {.plan = plans_, .pressed = pressed_, .from = index, .last = index};
  while (w.last < most && !w.stops) {
    w.stops = starts_at_once(model, w.last + 1);
    w.last += w.stops ? 0 : 1;
  }
  return std::min(w.last, most);
}

// A batch of that place in the model's sizes does not wait for a larger one.
bool Carillon::starts_at_once(ModelId model, int index) const {
  if (options_.defer <= 0 || plan_.eager_contention() < options_.leisure) return true;
  const auto& average = plan_.times(model);
  const int larger = index + 1;
  if (larger == average.batch_count()) return true;
  const auto size = static_cast<std::size_t>(average.batch_size(larger));
  if (const std::size_t most = plan_.limit(model); most > 0 && size > most) return true;
  // Batching gains next to nothing.
  if (plan_.known(model) &&
      average.each(index) <= (1 + options_.least_gain) * average.each(std::max(larger, plan_.planned(model))))
    return true;
  // What a larger batch saves is worth less than the device that idles until it is there. A model that is not
  // known to be asked for gets no larger one, unless a burst has just begun.
  const double more = average.batch_size(larger) - average.batch_size(index);
  const double saved = average.batch_size(larger) * average.each(index) - to_seconds(average.exec(larger));
  const double price = options_.price * (pressed_ ? 1 : std::min(1.0, plan_.contention()));
  const double rate = plan_.rate(model);
  return (rate > 0 || !pressed_) && saved * rate <= price * more;
}

// A model that needs most devices waits for none but its own batches: small ones that ask early would have
// others ask ever earlier.
Carillon::Asking Carillon::asking(const Waiting::Head& head, TimePoint deadline, const Orders& out) const {
  const bool most =
      plan_.known(head.model) && 2 * plan_.demand(head.model) > static_cast<double>(out.ledger().alive());
  return {.model = head.model,
          .deadline = deadline,
          .patience = saturating_add(out.ledger().request(head.id)->told.arrival, longest_wait),
          .small = most ? enough(head.model, out.time()) : 0,
          .lead = std::nullopt};
}

// Until when a batch of that place in the model's sizes waits for a larger one.
TimePoint Carillon::ready_at(Asking& asking, int index, const Times& times, const Orders& out) {
  const DeviceId fastest = *fastest_;
  const auto place = static_cast<std::size_t>(index);
  const Times::Batch batch = times.batch(fastest, asking.model, place);
  const TimePoint larger_fits =
      saturating_add(asking.deadline, -times.span(fastest, asking.model, place + 1));
  Duration lead{0};
  if (batch.rows >= asking.small) {
    if (!asking.lead) asking.lead = waits_.lead(asking.model, plan_.wait(), out.time());
    lead = *asking.lead;
  }
  const TimePoint latest = saturating_add(asking.deadline, -batch.span);
  const TimePoint finds_device = saturating_add(latest, -lead - punctual_.late());
  return std::min({larger_fits, finds_device, asking.patience}) - times.dispatch(fastest);
}

void Carillon::find_pressure(const Orders& out) {
  pressed_ =
      plan_.contention() >= 1 || (options_.backlog > 0 && backlog_.pressed(out.ledger().alive(), out.time()));
}

// Device time of a request in batches of the planned size, seconds.
double Carillon::work(ModelId model) const {
  return plan_.times(model).each(plan_.known(model) ? plan_.planned(model) : 0);
}

// Counts a request that came for its tenant. False: it is refused, as modest ones would be late for its sake.
bool Carillon::admit(const Request& request, Orders& out) {
  const ModelId as = kinds_.of(request);
  const std::size_t alive = out.ledger().alive();
  const double load = backlog_.load(alive, out.time());
  if (fair_.came(request, line_of(as, request.cls), work(as), load, alive, out.time()) ||
      !life_.waiting().has(request.id))
    return true;
  life_.refuse(request.id, Reason::cannot_finish, saturating_add(request.deadline, Duration{1}), out);
  return false;
}

// The answers of a run that ended.
void Carillon::count_answers(const ledger::Ledger::Action& run, TimePoint now) {
  if (run.kind != ActionKind::infer || run.cls == Class::best_effort) return;
  const auto late = std::ranges::count_if(run.promises, [&](const auto& p) { return p.deadline < now; });
  experiments_.answered(run.promises.size() - static_cast<std::size_t>(late));
  experiments_.lost(static_cast<std::size_t>(late));
}

// There is a new plan: by its numbers, and by what was answered, settings are tried.
void Carillon::experiment(TimePoint now) {
  using parts::Experiments;
  const bool free = experiments_.value(Experiments::limit) == 1;
  const bool changed = experiments_.step(
      now, parts::Plan::every, plan_.mean_slo(),
      {keep_off_.any() && !placing_.scarce(), free || plan_.limited(), plan_.may_curb()});
  if (!changed) return;
  set_as_tried();
  relieved_ = kept_.size();
}

void Carillon::set_as_tried() {
  using parts::Experiments;
  static constexpr double shares[] = {1, 0, 0.5};  // of the devices that long runs are to keep off
  keep_off_.change(shares[experiments_.value(Experiments::keep_off)]);
  plan_.change(experiments_.value(Experiments::limit) == 0, experiments_.value(Experiments::curb) == 1);
}

// What was refused in this event, but for that one.
void Carillon::count_lost(std::optional<RequestId> but, const Orders& out) {
  for (const auto& [refusal, model] : out.ledger().changes().refused)
    if (refusal.reason != Reason::no_model && refusal.request != but)
      kinds_.visit(model, [&](ModelId as) {
        fair_.lost(line_of(as, Class::normal), plan_.slo(as) - plan_.times(as).exec(0), out.time());
      });
}

// So many requests a batch of the line may have, for the sake of others; 0: as many as it likes.
std::size_t Carillon::largest_batch(std::uint32_t line, TimePoint now) const {
  const auto [model, cls] = Waiting::of_line(line);
  const std::size_t most = plan_.limit(model);
  if (!fair_.on() || cls == Class::real_time) return most;
  const std::size_t least = fair_.limit(line, plan_.times(model), now);
  return most > 0 && least > 0 ? std::min(most, least) : std::max(most, least);
}

// The line comes after those of modest tenants.
bool Carillon::rest(std::uint32_t line, TimePoint now) const {
  return fair_.on() && Waiting::of_line(line).second == Class::normal && fair_.rest(line, now);
}

// The latest start; while devices are short, later for what costs others more.
TimePoint Carillon::key(ModelId model, const Choice& choice) const {
  if (!pressed_) return choice.latest();
  const double takes = to_seconds(choice.batch.exec), rows = static_cast<double>(choice.batch.rows);
  const double usual = plan_.contention() >= 1 ? plan_.each() : backlog_.each();
  double back = options_.value * (takes - rows * usual);
  if (plan_.known(model))
    back += options_.waste * std::max(0.0, takes - rows * plan_.times(model).each(plan_.planned(model)));
  return saturating_add(choice.latest(), from_seconds(back));
}

// Brings lines and devices together: those of which either is another than when they were last tried.
void Carillon::match(Orders& out) {
  for (const Class streams : life_.all_streams())
    while (const auto device = free_.due(streams, out.time()))
      free_.look(*device, streams, out.ledger(), times(streams, out).dispatch(*device), out.time());
  if (!ready_.any() && relieved_ == 0) {
    untried_.clear();
    return free_.calm();
  }
  match_ready(out);
}

void Carillon::match_ready(Orders& out) {
  if (!untried_.empty())
    for (const auto& untried : std::exchange(untried_, {}))
      if (out.ledger().device(untried.device).alive) free_.stir(untried.device, untried.streams);
  if (relieved_ > 0) freshen_kept();
  while (ready_.any()) {
    if (const auto stirred = free_.take_stirred()) {
      ready_.list_fresh(out.ledger(),
                        [&](std::uint32_t line) { return kinds_.model(Waiting::of_line(line).first); });
      while (send_next(stirred->device, stirred->streams, out)) {
      }
    } else if (const auto line = ready_.take_fresh()) {
      send_somewhere(*line, out);
    } else {
      return;
    }
  }
  free_.calm();
}

// Sends the first of what may start on these streams of the device, where they have room; what is fresh goes
// to the fastest device, perhaps another. False: nothing was sent, or the device has what was.
bool Carillon::send_next(DeviceId device, Class streams, Orders& out) {
  const Times times = this->times(streams, out);
  const auto next = parts::next_run(out.ledger(), device, streams, times.dispatch(device), out.time());
  if (next.at > out.time() || !out.ledger().device(device).alive) return false;
  std::optional<std::uint32_t> found;
  std::optional<Choice> choice;
  bool all = true;
  const auto find = [&](bool hope) {
    all = ready_.visit(device, lines_looked_at, [&](std::uint32_t line) {
      ++looked_at_;
      const auto [model, cls] = Waiting::of_line(line);
      if (life_.streams(cls) != streams || !parts::runs_there(out.ledger(), device, kinds_.model(model)))
        return false;
      choice = may_start(line, device, times, next.start, hope, out);
      if (choice) found = line;
      return choice.has_value();
    });
  };
  find(!pressed_);
  if (!found && pressed_ && accepted(device, streams, out) > 0) find(true);  // nobody else has the device now
  if (!all) untried_.push_back({.device = device, .streams = streams});
  if (!found) return false;
  if (ready_.fresh(*found) && send_somewhere(*found, out)) return true;
  send(*found, device, *choice, out);
  return false;
}

// Sends what the line may start to the fastest device that can. False: there is none.
bool Carillon::send_somewhere(std::uint32_t line, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Class streams = life_.streams(cls);
  const ModelId whole = kinds_.model(model);
  const bool everywhere = out.ledger().model(whole).info->pages == 0;
  const Times times = this->times(streams, out);
  std::size_t tried = 0;
  const bool sent =
      free_.visit(streams, everywhere ? nullptr : &placing_.loaded(whole), [&](DeviceId device) {
        ++looked_at_;
        const auto next = parts::next_run(out.ledger(), device, streams, times.dispatch(device), out.time());
        if (next.at > out.time() || !out.ledger().device(device).alive) {
          free_.take_out(device, streams);
          return false;
        }
        if (++tried > devices_looked_at) return true;
        const auto choice = may_start(line, device, times, next.start, true, out);
        if (choice) send(line, device, *choice, out);
        return choice.has_value();
      });
  if (sent && tried <= devices_looked_at) return true;
  ready_.list(line, out.ledger(), whole);
  // Estimates that say so are doubted in a while.
  if (tried > 0)
    looks_.set(line, std::min(looks_.contains(line) ? looks_.at(line) : TimePoint::max(),
                              out.time() + doubted_after));
  return false;
}

// What may start on the device, which has the model. `hope`: or what may be in time there, though that cannot
// be promised.
std::optional<Choice> Carillon::may_start(std::uint32_t line, DeviceId device, const Times& times,
                                          TimePoint start, bool hope, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  if (head == nullptr) return std::nullopt;
  if (!keeps_off(device, model, out)) {
    auto sure = choose(*head, times, device, start, out);
    if (!hope || (sure && sure->deadline <= head->deadline)) return sure;
    const double late = accepted(device, times.streams(), out);
    if (late <= 0) return sure;
    auto hoped = first_batch(*head, this->times(times.streams(), out, late), device, start, out.time());
    return hoped ? hoped : sure;
  }
  if (line >= kept_now_.size()) kept_now_.resize(line + 1);
  if (!kept_now_[line]) kept_.push_back(line);
  kept_now_[line] = true;
  return std::nullopt;
}

void Carillon::send(std::uint32_t line, DeviceId device, const Choice& choice, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  const Waiting::Head head = *life_.waiting().head(model, cls);
  waits_.answered(model, static_cast<int>(choice.batch.rows), out.time());
  if (fair_.on() && cls != Class::real_time)
    fair_.sent(line, choice.batch.rows, choice.batch.exec, out.time());
  refuse_passed(head, choice, out);
  parts::send(life_, device, head, choice, out.time(), out);
  look_at(device, out);
  look(line, out);
}

// What is passed over for this batch would go in a small one later, and cost the time of a larger. But a
// faster device may have another use for it, and so may the next moment while more waits than there is time
// for.
void Carillon::refuse_passed(const Waiting::Head& head, const Choice& choice, Orders& out) {
  if (choice.deadline <= head.deadline || pressed_ || enough(head.model, out.time()) == 0) return;
  life_.refuse_before(head.model, head.cls, choice.deadline, out);
}

Times Carillon::times(Class streams, const Orders& out, double late) const {
  return options_.chance > 0 ? Times::by_chance(out.ledger(), streams, &plan_.paces(), out.time(), late)
                             : Times(out.ledger(), streams, &plan_.paces(), out.time());
}

// The chance to be late that a device takes with a run where nothing keeps what is promised: nearly any on
// one that idles, less where it may soon be wanted. 0: none.
double Carillon::accepted(DeviceId device, Class streams, const Orders& out) const {
  const auto& has = out.ledger().device(device).under_way;
  return has[static_cast<std::size_t>(ledger::lane_of(streams))].empty() ? accepted_of_idle() : 0;
}

double Carillon::accepted_of_idle() const {
  if (options_.chance <= 0) return 0;
  return 1 - std::clamp(pressed_ ? 1 : plan_.contention(), least_chance, most_chance);
}

// KeepOff takes every device for as good as any other. Where memory is scarce a device that a long run keeps
// off may not have the quick models, and others have no copy of the long one: there Placing keeps them apart.
bool Carillon::keeps_off(DeviceId device, ModelId model, const Orders& out) const {
  return !placing_.scarce() && !keep_off_.may_run(out.ledger(), device, model);
}

// Of more devices than are looked at in an event, the next ones come in the next.
void Carillon::overtake(Orders& out) {
  if (life_.waiting().heads().empty()) return;
  may_make_way_.clear();
  const std::size_t devices = out.ledger().devices();
  if (devices <= devices_looked_at) {
    free_.visit_alive([&](DeviceId device) {
      may_make_way_.push_back(device);
      return false;
    });
  } else {
    for (std::size_t i = 0; i < devices_looked_at; ++i) {
      overtaking_ = (overtaking_ + 1) % devices;
      const DeviceId device{static_cast<std::uint32_t>(overtaking_)};
      if (out.ledger().device(device).alive) may_make_way_.push_back(device);
    }
  }
  const Times times = this->times(Class::normal, out);
  if (const auto overtaken = parts::overtake(life_, may_make_way_, times, out)) {
    look_at(overtaken->device, out);
    look(line_of(overtaken->head.model, overtaken->head.cls), out);
  }
}

// What the device can run of the line. Its estimates are doubted where it would be in time at the pace of its
// other runs: else a device whose estimates are too long gets nothing that could mend them.
std::optional<Choice> Carillon::choose(const Waiting::Head& head, const Times& times, DeviceId device,
                                       TimePoint start, Orders& out) {
  if (auto choice = first_batch(head, times, device, start, out.time())) return choice;
  const double seed = static_cast<double>(times.model(head.model).batches.front().exec.count());
  const TimePoint end = saturating_add(start, from_ns(seed * plan_.paces().of(device, out.time())));
  if (end > head.deadline || !out.doubt(head.model, times.streams(), head.deadline - start))
    return std::nullopt;
  return first_batch(head, times, device, start, out.time());
}

std::optional<Choice> Carillon::first_batch(const Waiting::Head& head, const Times& times, DeviceId device,
                                            TimePoint start, TimePoint now) const {
  const Waiting::Line& line = life_.waiting().line(head.model, head.cls);
  const std::size_t limit = largest_batch(line_of(head.model, head.cls), now);
  if (auto all = parts::choose_all(line, times, device, head.model, start, limit)) return all;
  parts::Outlook outlook{.next_after = waits_.mean(head.model),
                         .rate = plan_.rate(head.model),
                         .contention = pressed_ ? 1 : plan_.contention(),
                         .enough = enough(head.model, now)};
  if (plan_.known(head.model))
    outlook.planned = static_cast<std::size_t>(plan_.times(head.model).batch_size(plan_.planned(head.model)));
  if (fair_.on() && fair_.first(line_of(head.model, head.cls), now)) {  // none is passed over
    outlook.contention = 0;
    outlook.enough = 0;
  }
  return parts::Heads(line, times, device, head.model, outlook).choose(start, limit, now);
}

// Arrivals are less regular than the plan takes them for, so that a smaller batch than the planned will do.
// Where more waits than the devices have time for, rates are so much higher than the plan knows: then so much
// larger batches come together in the same time. The plan tells nothing where the rates ask for more than
// there is.
std::size_t Carillon::enough(ModelId model, TimePoint now) const {
  if (options_.hold <= 0 || !plan_.known(model) || plan_.contention() >= 1 || !alike_) return 0;
  const double load = options_.backlog > 0 ? backlog_.load(ledger()->alive(), now) : 0;
  const double size = plan_.times(model).batch_size(plan_.planned(model)) * options_.hold;
  return static_cast<std::size_t>(std::clamp(size * std::max(1.0, load), 1.0, 1e9));
}

}  // namespace carillon::schedule
