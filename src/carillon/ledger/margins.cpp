#include "carillon/ledger/margins.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace carillon::ledger {
namespace {

constexpr std::size_t search_every = 16;
constexpr double worth_telling = 0.05;
constexpr Duration doubt_every = 1ms;  // however many are refused, as it looks at all devices

bool differs(double now, double before) {
  return std::abs(now - before) > worth_telling * std::max(std::abs(now), std::abs(before));
}

bool differs(const Environment& a, const Environment& b) {
  const auto ns = [](Duration d) { return static_cast<double>(d.count()); };
  return differs(ns(a.dispatch), ns(b.dispatch)) || differs(ns(a.answer), ns(b.answer)) ||
         differs(a.overrun, b.overrun);
}

}  // namespace

bool TailWindow::add(double value, TimePoint now) {
  if (values_.empty()) values_.resize(capacity);
  values_[next_] = {value, now};
  next_ = (next_ + 1) % capacity;
  count_ = std::min(count_ + 1, capacity);
  recent_ = std::min(recent_ + 1, capacity);
  ++since_;
  const bool search = value > tail_ || since_ >= search_every || now - tail_at_ >= longest;
  if (!search && count_ > search_every) return false;
  std::array<Value, capacity> sorted;
  const auto end = std::copy_if(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(count_),
                                sorted.begin(), [&](const Value& v) { return now - v.at < longest; });
  const auto recent = end - sorted.begin();
  const auto at = end - 1 - static_cast<std::ptrdiff_t>(exceeded_ * static_cast<double>(recent));
  std::nth_element(sorted.begin(), at, end, [](const Value& a, const Value& b) {
    return std::pair(a.value, a.at) < std::pair(b.value, b.at);
  });
  const Value tail = *at;
  // Below it lies what is smaller.
  const auto middle = sorted.begin() + (at - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, at + 1,
                   [](const Value& a, const Value& b) { return a.value < b.value; });
  usual_ = middle->value;
  if (!search) return false;
  since_ = 0;
  recent_ = static_cast<std::size_t>(recent);
  tail_ = tail.value;
  tail_at_ = tail.at;
  return true;
}

void Margins::start(DeviceId device, bool alive) {
  const bool known = device.index() < devices_.size();
  if (known && !alive && !devices_[device.index()].alive) return;  // it had gone already
  if (!known) devices_.resize(device.index() + 1);
  devices_[device.index()] = fresh(alive);
  find_bounds();
}

Margins::Device Margins::fresh(bool alive) const {
  const TailWindow window(told_.miss_rate / 2);
  return {.alive = alive,
          .now = told_,
          .usual = told_,
          .heard = {},
          .patience = least_patience,
          .longest = Duration{0},
          .dispatch = window,
          .arrival = window,
          .answer = window,
          .delivery = window,
          .overrun = window};
}

bool Margins::observe(DeviceId id, const Execution& e) {
  if (!told_.measured) return false;
  Device& d = devices_[id.index()];
  const auto ns = [](Duration t) { return static_cast<double>(std::max(t, Duration{0}).count()); };
  d.heard = e.heard;
  d.longest = std::max(e.took, d.longest / 2);
  bool found = d.answer.add(ns(e.heard - e.end), e.heard);
  if (e.at_once) found |= d.dispatch.add(ns(e.start - e.decided), e.heard);
  found |= add_overrun(d, e.took, e.estimate, e.heard);
  if (d.answer.known()) d.patience = least_patience;
  // A doubt leaves what is usual as it was until there are some values again.
  find_usual(d);
  return found && look_again(d);
}

void Margins::arrived(DeviceId id, Duration after_order, TimePoint now) {
  if (!told_.measured) return;
  Device& d = devices_[id.index()];
  const bool found = d.arrival.add(static_cast<double>(std::max(after_order, Duration{0}).count()), now);
  find_usual(d);
  if (found) look_again(d);
}

void Margins::delivered(DeviceId id, Duration after_end, TimePoint now) {
  if (!told_.measured) return;
  Device& d = devices_[id.index()];
  const bool found = d.delivery.add(static_cast<double>(std::max(after_end, Duration{0}).count()), now);
  find_usual(d);
  if (found) look_again(d);
}

void Margins::find_usual(Device& d) {
  if (d.arrival.some())
    d.usual.dispatch = told_.dispatch + from_ns(d.arrival.usual());
  else if (d.dispatch.some())
    d.usual.dispatch = from_ns(d.dispatch.usual());
  if (!d.answer.some()) return;
  const double delivery = d.delivery.some() ? d.delivery.usual() : 0;
  d.usual.answer = told_.client + from_ns(std::max(d.answer.usual(), delivery));
}

void Margins::recall(DeviceId id, Duration took, Duration estimate, TimePoint at) {
  if (!told_.measured) return;
  Device& d = devices_[id.index()];
  if (add_overrun(d, took, estimate, at)) look_again(d);
}

// True where the tail may have changed.
bool Margins::add_overrun(Device& d, Duration took, Duration estimate, TimePoint at) {
  if (estimate <= Duration{0}) return false;
  const auto over = static_cast<double>(std::max(took - estimate, Duration{0}).count());
  const bool found =
      d.overrun.add(over / static_cast<double>(std::max(estimate, told_.shortest).count()), at);
  if (d.overrun.some()) d.usual.overrun = d.overrun.usual();
  return found;
}

// True where something changed by more than a twentieth.
bool Margins::look_again(Device& d) {
  const Environment before = d.now;
  const auto measured = [&](const TailWindow& window, Duration told) {
    const Duration tail = from_ns(window.tail());
    return window.known() ? tail : std::max(tail, told);
  };
  d.now.dispatch =
      d.arrival.known() ? told_.dispatch + from_ns(d.arrival.tail()) : measured(d.dispatch, told_.dispatch);
  d.now.answer =
      told_.client + std::max(measured(d.answer, told_.answer - told_.client), from_ns(d.delivery.tail()));
  d.now.overrun = d.overrun.known() ? d.overrun.tail() : std::max(d.overrun.tail(), told_.overrun);
  // Small steps are saved up, so that what is made of the margins is not made anew at every report.
  const bool changed = differs(d.now, before);
  if (!changed) d.now = before;
  if (changed) find_bounds();
  return changed;
}

bool Margins::doubt(Duration left, Duration exec, TimePoint now) {
  if (!told_.measured || now < doubt_from_ || told_.dispatch + told_.span(exec) > left) return false;
  doubt_from_ = saturating_add(now, doubt_every);
  bool any = false;
  for (Device& d : devices_) {
    const bool worse =
        d.now.dispatch > told_.dispatch || d.now.answer > told_.answer || d.now.overrun > told_.overrun;
    if (!d.alive || !worse || now - d.heard < std::max(d.patience, 2 * d.longest)) continue;
    Device anew = fresh(true);
    anew.usual = d.usual;
    anew.heard = now;
    anew.patience = std::min(2 * d.patience, most_patience);
    d = std::move(anew);
    any = true;
  }
  if (any) find_bounds();
  return any;
}

void Margins::find_bounds() {
  ++version_;
  worst_ = least_ = told_;
  bool first = true;
  for (const Device& d : devices_) {
    if (!d.alive) continue;
    worst_.dispatch = first ? d.now.dispatch : std::max(worst_.dispatch, d.now.dispatch);
    worst_.answer = first ? d.now.answer : std::max(worst_.answer, d.now.answer);
    worst_.overrun = first ? d.now.overrun : std::max(worst_.overrun, d.now.overrun);
    least_.dispatch = first ? d.now.dispatch : std::min(least_.dispatch, d.now.dispatch);
    least_.answer = first ? d.now.answer : std::min(least_.answer, d.now.answer);
    least_.overrun = first ? d.now.overrun : std::min(least_.overrun, d.now.overrun);
    first = false;
  }
}

}  // namespace carillon::ledger
