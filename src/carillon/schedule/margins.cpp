#include "carillon/schedule/margins.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule {
namespace {

constexpr std::size_t search_every = 16;
constexpr double worth_telling = 0.05;

bool differs(double now, double before) {
  return std::abs(now - before) > worth_telling * std::max(std::abs(now), std::abs(before));
}

bool differs(const Environment& a, const Environment& b) {
  const auto ns = [](Duration d) { return static_cast<double>(d.count()); };
  return differs(ns(a.dispatch), ns(b.dispatch)) || differs(ns(a.answer), ns(b.answer)) ||
         differs(a.overrun, b.overrun);
}

}  // namespace

bool TailWindow::add(double value) {
  values_[next_] = value;
  next_ = (next_ + 1) % capacity;
  count_ = std::min(count_ + 1, capacity);
  ++since_;
  if (value <= tail_ && since_ < search_every) return false;
  since_ = 0;
  auto sorted = values_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(count_);
  const auto above = static_cast<std::ptrdiff_t>(exceeded_ * static_cast<double>(count_));
  const auto at = end - 1 - above;
  std::nth_element(sorted.begin(), at, end);
  tail_ = *at;
  return true;
}

void Margins::start(DeviceId device, bool alive) {
  if (devices_.size() <= device.index()) devices_.resize(device.index() + 1);
  devices_[device.index()] = Device{.alive = alive, .now = told_};
  find_bounds();
}

bool Margins::observe(DeviceId id, const Execution& e) {
  if (!told_.measured) return false;
  Device& d = devices_[id.index()];
  const auto ns = [](Duration t) { return static_cast<double>(std::max(t, Duration{0}).count()); };
  bool found = d.answer.add(ns(e.heard - e.end));
  if (e.at_once) found |= d.dispatch.add(ns(e.start - e.decided));
  if (e.estimate > Duration{0}) found |= d.overrun.add(std::max(0.0, ns(e.took) / ns(e.estimate) - 1));
  if (!found) return false;
  const Environment before = d.now;
  const auto measured = [&](const TailWindow& window, Duration told) {
    const Duration tail = from_ns(window.tail());
    return window.known() ? tail : std::max(tail, told);
  };
  d.now.dispatch = measured(d.dispatch, told_.dispatch);
  d.now.answer = told_.client + measured(d.answer, told_.answer - told_.client);
  d.now.overrun = d.overrun.known() ? d.overrun.tail() : std::max(d.overrun.tail(), told_.overrun);
  // Small steps are saved up, so that what is made of the margins is not made anew at every report.
  if (!differs(d.now, before)) {
    d.now = before;
    return false;
  }
  find_bounds();
  return true;
}

void Margins::find_bounds() {
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

}  // namespace carillon::schedule
