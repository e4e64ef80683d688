#include "carillon/schedule/carillon/carillon.h"

#include <algorithm>
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
// The chance to be in time that a run needs on a device that idles; and, however much else may come, for what
// comes to nothing there is not measured.
constexpr double least_chance = 0.1, most_chance = 0.9;
// Lines that a device looks at before it idles: bounds the work.
constexpr std::size_t lines_looked_at = 64;

std::uint32_t line_of(ModelId model, Class cls) {
  return static_cast<std::uint32_t>(Waiting::line_of(model, cls));
}

}  // namespace

Carillon::Carillon(const Environment& environment, const CarillonOptions& options)
    : Policy(environment),
      options_(options),
      life_(environment, options.chance > 0),
      overtakes_(environment.preemption == Preemption::deadline),
      plan_(environment),
      waits_(parts::Plan::exceeded, wait_horizon, known_after) {}

TimePoint Carillon::act(const Event& event, Orders& out) {
  life_.hear(event, out);
  placing_.hear(event, life_, out);
  plan_.hear(event, out);
  hear(event, out);
  if (const auto* arrival = std::get_if<RequestArrived>(&event); arrival && arrival->more) return wake_;
  const bool planned = plan_.step(out);
  if (planned) {
    order_devices(out);
    if (options_.keep_off > 0) keep_off_.plan(plan_, out.ledger().alive());
  }
  life_.expire(out);
  if (planned)
    for (std::uint32_t m = 0; m < plan_.models(); ++m) look_at_all(ModelId{m}, out);
  find_pressure(out);
  while (looks_.top_at() <= out.time()) look(looks_.top(), out);
  wake_ = TimePoint::max();
  for (bool sent = true; sent && ready_.any();) {
    sent = false;
    for (const DeviceId device : by_speed_)
      for (const Class streams : life_.all_streams()) sent = send_next(device, streams, out) || sent;
  }
  if (overtakes_)
    for (const DeviceId device : by_speed_) overtake(device, out);
  placing_.step(life_.waiting(), out);
  wake_ = std::max(std::min({wake_, looks_.top_at(), life_.wake_at(out.time()), placing_.wake_at()}),
                   out.time() + Duration{1});
  return wake_;
}

// Which lines are to be looked at again.
void Carillon::hear(const Event& event, Orders& out) {
  if (const auto* change = std::get_if<ModelChanged>(&event)) {
    while (models_ < plan_.models()) {
      waits_.add_model();
      ++models_;
    }
    look_at_all(change->model, out);
  } else if (const auto* times = std::get_if<TimesChanged>(&event)) {
    look_at_all(times->model, out);
  } else if (const auto* arrival = std::get_if<RequestArrived>(&event)) {
    looks_.set(line_of(arrival->request.model, arrival->request.cls), out.time());
  } else if (const auto* gone = std::get_if<RequestCancelled>(&event)) {
    look_at_all(gone->model, out);
  } else if (std::holds_alternative<DeviceChanged>(event)) {
    order_devices(out);  // it may have come with weights
    for (std::uint32_t m = 0; m < plan_.models(); ++m) look_at_all(ModelId{m}, out);
  }
  for (const RequestId id : out.ledger().changes().back)
    if (const auto* request = out.ledger().request(id))
      looks_.set(line_of(request->told.model, request->told.cls), out.time());
  for (const std::uint32_t place : out.ledger().changes().ended)
    if (out.ledger().at(place).kind != ActionKind::infer) look_at_all(out.ledger().at(place).model, out);
}

void Carillon::order_devices(const Orders& out) {
  by_speed_.clear();
  for (std::uint32_t i = 0; i < out.ledger().devices(); ++i)
    if (out.ledger().device(DeviceId{i}).alive) by_speed_.push_back(DeviceId{i});
  std::ranges::stable_sort(by_speed_, {}, [&](DeviceId device) { return plan_.paces().step(device); });
}

void Carillon::look_at_all(ModelId model, Orders& out) {
  for (const Class cls : all_classes) {
    const std::uint32_t line = line_of(model, cls);
    if (life_.waiting().head(model, cls) != nullptr || looks_.contains(line)) looks_.set(line, out.time());
  }
}

// Finds the line's batch, as the fastest device could run it now, and from when on it may start.
void Carillon::look(std::uint32_t line, Orders& out) {
  const auto [model, cls] = Waiting::of_line(line);
  looks_.remove(line);
  ready_.remove(line);
  const Waiting::Head* const head = life_.waiting().head(model, cls);
  const std::size_t rows = head == nullptr ? 0 : life_.waiting().size(model, cls);
  if (cls != Class::best_effort && options_.backlog > 0) {
    const auto& times = plan_.times(model);
    const int index = plan_.known(model)
                          ? std::min(plan_.planned(model), times.index_for(std::max<std::size_t>(1, rows)))
                          : 0;
    backlog_.set(line, rows, static_cast<double>(rows) * times.each(index),
                 head == nullptr ? TimePoint::max() : head->deadline, out.time());
  }
  placing_.waits(model, life_.waiting(), out);
  if (head == nullptr || by_speed_.empty()) return waits_.lost(model, out.time(), out.time());
  const DeviceId fastest = by_speed_.front();
  const Times times = this->times(life_.streams(cls), out);
  const TimePoint start = out.time() + times.dispatch(fastest);
  const auto choice = first_batch(*head, times, fastest, start, out.time());
  if (!choice)
    return ready_.put({cls, head->deadline, line}, out.ledger(), model);  // perhaps another device can
  // What would not keep what is promised goes where a device idles.
  const bool in_time = saturating_add(start, times.span(fastest, model, 0)) <= head->deadline;
  const TimePoint ready = in_time || options_.chance <= 0 ? ready_at(*head, *choice, times, out) : out.time();
  waits_.asks(model, std::max(ready, out.time()), out.time());
  if (ready <= out.time()) {
    ready_.put({cls, key(model, *choice), line}, out.ledger(), model);
    looks_.set(line, std::max(saturating_add(choice->latest(), Duration{1}), out.time() + Duration{1}));
  } else {
    looks_.set(line, ready);
  }
}

TimePoint Carillon::ready_at(const Waiting::Head& head, const Choice& choice, const Times& times,
                             const Orders& out) {
  const TimePoint now = out.time();
  if (options_.defer <= 0 || plan_.eager_contention() < options_.leisure) return now;
  const auto& average = plan_.times(head.model);
  const int index = average.index_for(choice.batch.rows), larger = index + 1;
  if (larger == average.batch_count()) return now;
  const auto size = static_cast<std::size_t>(average.batch_size(larger));
  if (limit(head.model) > 0 && size > limit(head.model)) return now;
  // Batching gains next to nothing.
  if (plan_.known(head.model) &&
      average.each(index) <=
          (1 + options_.least_gain) * average.each(std::max(larger, plan_.planned(head.model))))
    return now;
  // What a larger batch saves is worth less than the device that idles until it is there.
  const double more = average.batch_size(larger) - average.batch_size(index);
  const double saved = average.batch_size(larger) * average.each(index) - to_seconds(average.exec(larger));
  const double price = options_.price * (pressed_ ? 1 : std::min(1.0, plan_.contention()));
  if (plan_.rate(head.model) > 0 && saved * plan_.rate(head.model) <= price * more) return now;

  const DeviceId fastest = by_speed_.front();
  const TimePoint larger_fits =
      saturating_add(choice.deadline, -times.span(fastest, head.model, static_cast<std::size_t>(larger)));
  const TimePoint finds_device = saturating_add(choice.latest(), -waits_.lead(head.model, plan_.wait(), now));
  const TimePoint patience = saturating_add(out.ledger().request(head.id)->told.arrival, longest_wait);
  return std::min({larger_fits, finds_device, patience}) - times.dispatch(fastest);
}

void Carillon::find_pressure(const Orders& out) {
  pressed_ =
      plan_.contention() >= 1 || (options_.backlog > 0 && backlog_.pressed(out.ledger().alive(), out.time()));
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

// Sends the first of what may start on these streams, where they have room. False: nothing was sent.
bool Carillon::send_next(DeviceId device, Class streams, Orders& out) {
  if (!ready_.any()) return false;
  const Times times = this->times(streams, out);
  const auto next = parts::next_run(out.ledger(), device, streams, times.dispatch(device), out.time());
  if (next.at > out.time()) {
    wake_ = std::min(wake_, next.at);
    return false;
  }
  std::optional<Waiting::Head> found;
  std::optional<Choice> choice;
  const auto find = [&](auto&& choose) {
    ready_.visit(device, lines_looked_at, [&](std::uint32_t line) {
      const auto [model, cls] = Waiting::of_line(line);
      const Waiting::Head* const head = life_.waiting().head(model, cls);
      if (head == nullptr || life_.streams(cls) != streams ||
          !parts::runs_there(out.ledger(), device, model) || keeps_off(device, model, out))
        return false;
      choice = choose(*head);
      if (choice) found = *head;
      return choice.has_value();
    });
  };
  const double late = accepted(device, streams, out);
  const auto hope = [&](const Waiting::Head& head) {
    return first_batch(head, this->times(streams, out, late), device, next.start, out.time());
  };
  find([&](const Waiting::Head& head) {
    auto sure = choose(head, times, device, next.start, out);
    if (late <= 0 || pressed_ || (sure && sure->deadline <= head.deadline)) return sure;
    auto hoped = hope(head);
    return hoped ? hoped : sure;
  });
  if (!found && late > 0 && pressed_) find(hope);  // nobody else has the device now
  if (!found) return false;
  waits_.answered(found->model, static_cast<int>(choice->batch.rows), out.time());
  parts::send(life_, device, *found, *choice, out.time(), out);
  look(line_of(found->model, found->cls), out);
  return true;
}

Times Carillon::times(Class streams, const Orders& out, double late) const {
  return options_.chance > 0 ? Times::by_chance(out.ledger(), streams, &plan_.paces(), out.time(), late)
                             : Times(out.ledger(), streams, &plan_.paces(), out.time());
}

// The chance to be late that the device takes with a run where nothing keeps what is promised: nearly any on
// one that idles, less where it may soon be wanted. 0: none.
double Carillon::accepted(DeviceId device, Class streams, const Orders& out) const {
  const auto& has = out.ledger().device(device).under_way;
  if (options_.chance <= 0 || !has[static_cast<std::size_t>(ledger::lane_of(streams))].empty()) return 0;
  return 1 - std::clamp(pressed_ ? 1 : plan_.contention(), least_chance, most_chance);
}

// KeepOff takes every device for as good as any other. Where memory is scarce a device that a long run keeps
// off may not have the quick models, and others have no copy of the long one: there Placing keeps them apart.
bool Carillon::keeps_off(DeviceId device, ModelId model, const Orders& out) const {
  return !placing_.scarce() && !keep_off_.may_run(out.ledger(), device, model);
}

void Carillon::overtake(DeviceId device, Orders& out) {
  const Times times = this->times(Class::normal, out);
  if (const auto taken = parts::overtake(life_, device, times, out))
    look(line_of(taken->model, taken->cls), out);
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
  parts::Outlook outlook{.next_after = waits_.mean(head.model),
                         .rate = plan_.rate(head.model),
                         .contention = pressed_ ? 1 : plan_.contention()};
  if (plan_.known(head.model))
    outlook.planned = static_cast<std::size_t>(plan_.times(head.model).batch_size(plan_.planned(head.model)));
  const parts::Heads heads(life_.waiting().line(head.model, head.cls), times, device, head.model, outlook);
  return heads.choose(start, limit(head.model), now);
}

}  // namespace carillon::schedule
