#include "carillon/schedule/carillon/deferral.h"

#include <algorithm>

namespace carillon::schedule {

namespace {

// The longest that a batch is deferred, whatever its deadline allows.
constexpr Duration longest_wait = 500ms;

}  // namespace

TimePoint Deferral::starts(const Waiting::Head& head, const Choice& choice, const Times& times,
                           TimePoint start, const Orders& out) {
  const ModelId model = head.model;
  const std::uint32_t line = line_of(model, head.cls);
  const int index = view_.plan.times(model).index_for(choice.batch.rows);
  TimePoint ready = out.time();
  // What would not keep what is promised goes where a device idles.
  const bool in_time = !view_.in_time.by_chance() || choice.deadline <= head.deadline ||
                       saturating_add(start, times.span(*view_.free.fastest(), model, 0)) <= head.deadline;
  const std::size_t largest = batches_.largest_batch(line, out.time());
  const bool full = largest > 0 && choice.batch.rows >= largest;
  if (in_time && !full && !starts_at_once(model, index)) {
    Asking asking = this->asking(head, choice.deadline, out);
    // Further requests bring that forward, but not to before it would be with `last` of them.
    const int last = waits_with(model, index);
    const TimePoint soonest = ready_at(asking, last, times, out);
    Deferred& deferred = deferred_[line];
    deferred = {.head = head.id,
                .pressed = view_.shortage.pressed(),
                .waits = asking.early,
                .plan = plans_,
                .alive = out.ledger().alive(),
                .patience = asking.patience};
    if (soonest > out.time()) {
      deferred.until = soonest;
      deferred.rows = static_cast<std::size_t>(view_.plan.times(model).batch_size(last + 1));
      return soonest;
    }
    ready = last == index ? soonest : ready_at(asking, index, times, out);
    deferred.waits = deferred.waits && ready > out.time();
  }
  // Until rates are known batches are small: their waits would tell too long a lead for many seconds.
  if (view_.plan.known(model)) waits_.asks(model, std::max(ready, out.time()), out.time());
  return ready;
}

// Each condition is one of Batches::first_batch() or of starts(). What these find by the plan and by how
// short devices are is as it was; so it is not found again. While a plan is being made, rates are others
// already.
std::optional<TimePoint> Deferral::with_more(std::uint32_t line, const Waiting::Head& head, std::size_t rows,
                                             const Times& times, const Orders& out) {
  if (!waits(line)) return std::nullopt;
  Deferred& d = deferred_[line];
  if (d.head != head.id || d.pressed != view_.shortage.pressed() || d.alive != out.ledger().alive() ||
      d.plan != plans_ || view_.plan.busy() || !view_.free.fastest())
    return std::nullopt;
  const ModelId model = head.model;
  const TimePoint now = out.time();
  const symphony::BatchTimes& average = view_.plan.times(model);
  const int index = average.index_for(rows);
  const std::size_t largest = batches_.largest_batch(line, now);
  if (!known_to_wait(model, index) || (largest > 0 && rows >= largest) ||
      static_cast<std::size_t>(average.batch_size(index)) != rows)
    return std::nullopt;
  Asking asking{.model = model, .deadline = head.deadline, .patience = d.patience, .lead = std::nullopt};
  const TimePoint ready = ready_at(asking, index, times, out);  // before the batch would be late
  if (ready <= now) return std::nullopt;
  const DeviceId fastest = *view_.free.fastest();
  const TimePoint start = now + times.dispatch(fastest);
  if (saturating_add(start, times.span(fastest, model, 0)) > head.deadline) return std::nullopt;
  const int last = waits_with(model, index);
  if (last == index || !waited(asking, last, times, out)) return std::nullopt;
  d.until = TimePoint::min();
  if (view_.plan.known(model)) waits_.asks(model, ready, now);
  return ready;
}

// waits_with() has found by this plan that a batch of that place in the model's sizes waits for a larger one.
bool Deferral::known_to_wait(ModelId model, int index) const {
  if (model.index() >= waiting_.size()) return false;
  const WaitsWith& w = waiting_[model.index()];
  return w.plan == plans_ && w.pressed == view_.shortage.pressed() && w.from <= index && index <= w.last;
}

// A batch of `index`, which waits for a larger one, would do so with as many more requests, too: up to the
// planned size, or a quarter more. The place of that size.
int Deferral::waits_with(ModelId model, int index) {
  if (model.index() >= waiting_.size()) waiting_.resize(model.index() + 1);
  WaitsWith& w = waiting_[model.index()];
  const bool pressed = view_.shortage.pressed();
  const int most = std::max(view_.plan.known(model) ? view_.plan.planned(model) : 0, index + index / 4 + 1);
  if (w.plan != plans_ || w.pressed != pressed || index < w.from || index > w.last)
    w = {.plan = plans_, .pressed = pressed, .from = index, .last = index};
  while (w.last < most && !w.stops) {
    w.stops = starts_at_once(model, w.last + 1);
    w.last += w.stops ? 0 : 1;
  }
  return std::min(w.last, most);
}

// Long runs should keep off some devices, and cannot where memory is scarce. There a quick model may have one
// device alone, however many others idle. Larger batches leave it more of that device's time.
bool Deferral::in_the_way(ModelId model) const {
  return view_.placing.scarce() && view_.keep_off.devices(model) > 0;
}

// A batch of that place in the model's sizes does not wait for a larger one.
bool Deferral::starts_at_once(ModelId model, int index) const {
  const parts::Plan& plan = view_.plan;
  if (view_.options.defer <= 0) return true;
  if (plan.eager_contention() < view_.options.leisure && !in_the_way(model)) return true;
  const auto& average = plan.times(model);
  const int larger = index + 1;
  if (larger == average.batch_count()) return true;
  const auto size = static_cast<std::size_t>(average.batch_size(larger));
  if (const std::size_t most = plan.limit(model); most > 0 && size > most) return true;
  // Batching gains next to nothing.
  if (plan.known(model) && average.each(index) <= (1 + view_.options.least_gain) *
                                                      average.each(std::max(larger, plan.planned(model))))
    return true;
  // What a larger batch saves is worth less than the device that idles until it is there. A model that is not
  // known to be asked for gets no larger one, unless a burst has just begun.
  const double more = average.batch_size(larger) - average.batch_size(index);
  const double saved = average.batch_size(larger) * average.each(index) - to_seconds(average.exec(larger));
  const double price = view_.options.price * std::min(1.0, view_.shortage.contention());
  const double rate = plan.rate(model);
  return (rate > 0 || !view_.shortage.pressed()) && saved * rate <= price * more;
}

// A model that needs most devices waits for none but its own batches: small ones that ask early would have
// others ask ever earlier.
Deferral::Asking Deferral::asking(const Waiting::Head& head, TimePoint deadline, const Orders& out) const {
  const bool most = view_.plan.known(head.model) &&
                    2 * view_.plan.demand(head.model) > static_cast<double>(out.ledger().alive());
  return {.model = head.model,
          .deadline = deadline,
          .patience = saturating_add(out.ledger().request(head.id)->told.arrival, longest_wait),
          .early = !most,
          .small = most ? batches_.enough(head.model, out.ledger(), out.time()) : 0,
          .lead = std::nullopt};
}

// Until when a batch of that place in the model's sizes waits for a larger one.
TimePoint Deferral::ready_at(Asking& asking, int index, const Times& times, const Orders& out) {
  const TimePoint asks = asks_at(asking, index, times, out);
  return std::min({asks, fits(asking, index + 1, times), asking.patience}) -
         times.dispatch(*view_.free.fastest());
}

// ready_at() is not after now. Any of its three limits tells that.
bool Deferral::waited(Asking& asking, int index, const Times& times, const Orders& out) {
  const TimePoint start = out.time() + times.dispatch(*view_.free.fastest());
  return asks_at(asking, index, times, out) <= start || fits(asking, index + 1, times) <= start ||
         asking.patience <= start;
}

// When a batch of that place in the sizes has better ask for a device, which it may have to wait for.
TimePoint Deferral::asks_at(Asking& asking, int index, const Times& times, const Orders& out) {
  const TimePoint latest = fits(asking, index, times);
  Duration lead{0};
  if (asking.small == 0 ||
      static_cast<std::size_t>(view_.plan.times(asking.model).batch_size(index)) >= asking.small) {
    if (!asking.lead) asking.lead = waits_.lead(asking.model, view_.plan.wait(), out.time());
    lead = *asking.lead;
  }
  return saturating_add(latest, -lead - punctual_.late());
}

// Until when EXEC of such a batch may start on the fastest device.
TimePoint Deferral::fits(const Asking& asking, int index, const Times& times) const {
  return saturating_add(asking.deadline,
                        -times.span(*view_.free.fastest(), asking.model, static_cast<std::size_t>(index)));
}

}  // namespace carillon::schedule
