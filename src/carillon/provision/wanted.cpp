#include "carillon/provision/wanted.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "carillon/base/assert.h"

namespace carillon::provision {

namespace {

constexpr double most_growth = 8;      // 1-r is held at one in so many
constexpr double most_spare = 3;       // devices beside the work, by its root
constexpr double hysteresis = 0.25;    // of a device that is kept against noise
constexpr double sum_rounding = 1e-9;  // sums of shares that should be whole
constexpr Duration least_period = 1s;  // of an advice that says something
constexpr std::size_t start_ups_remembered = 8;

Result<> check_limits(int least, int most) {
  if (least < 1) return invalid(fmt::format("at least {} devices: it must be 1 or more", least));
  if (most < least) return invalid(fmt::format("at most {} devices, but at least {}", most, least));
  return {};
}

// NaN is no share: it compares as false.
Result<> check_share(std::string_view what, double value) {
  if (value >= 0 && value <= 1) return {};
  return invalid(fmt::format("{} of {} is no share from 0 to 1", what, value));
}

Result<> check_span(std::string_view what, Duration value) {
  if (value > Duration{0}) return {};
  return invalid(fmt::format("{} of {:g} s must be above 0", what, to_seconds(value)));
}

Result<> check_advice(int present, const AutoscaleAdvice& advice) {
  if (present < 0) return invalid(fmt::format("{} devices cannot be present", present));
  if (auto good = check_share("a bad rate", advice.bad_rate); !good) return good;
  if (auto good = check_share("an idle fraction", advice.idle_fraction); !good) return good;
  if (!(advice.devices >= 0 && std::isfinite(advice.devices)))
    return invalid(fmt::format("{} devices on average is no number of devices", advice.devices));
  if (advice.period < Duration{0})
    return invalid(fmt::format("a period of {:g} s is below 0", to_seconds(advice.period)));
  return {};
}

int whole_devices(double devices) {
  return static_cast<int>(std::ceil(std::min(devices, 1e9) - sum_rounding));
}

}  // namespace

Result<Wanted> Wanted::make(const WantedOptions& options) {
  if (auto good = check_limits(options.least, options.most); !good) return std::unexpected(good.error());
  if (!(options.threshold > 0 && options.threshold < 1))
    return invalid(
        fmt::format("a bad rate of {} as threshold: it must be above 0 and below 1", options.threshold));
  for (const auto& [what, value] :
       {std::pair{"a quiet time", options.quiet}, std::pair{"a time to give up", options.give_up},
        std::pair{"a time to remember", options.remember}})
    if (auto good = check_span(what, value); !good) return std::unexpected(good.error());
  if (!(options.tolerance >= 0 && options.tolerance < 1))
    return invalid(fmt::format("a tolerance of {}: it must be 0 or more, and below 1", options.tolerance));
  if (options.before < 0)
    return invalid(fmt::format("{} devices before: it must be 0 or more", options.before));
  return Wanted(options);
}

Result<> Wanted::limit(int least, int most) {
  if (auto good = check_limits(least, most); !good) return good;
  options_.least = least;
  options_.most = most;
  const int before = wanted_;
  if (begun_ && least > wanted_) {
    needs_.clear();
    needs_.push_back({last_, noticed(least)});
    wanted_ = needs_.front().devices;
  }
  wanted_ = held(wanted_);
  if (begun_) ask(last_, wanted_ - before);
  return {};
}

Result<int> Wanted::look(TimePoint now, int present, const AutoscaleAdvice& advice) {
  if (auto good = check_advice(present, advice); !good) return std::unexpected(good.error());
  if (begun_ && now < last_)
    return invalid(fmt::format("a look {:g} s before the last one", to_seconds(last_ - now)));
  const bool begins = !begun_;
  if (begins) {
    begun_ = true;
    first_ = now;
    present_ = present;
  }
  last_ = now;
  count(now, present);
  int need = noticed(needed(now, advice));
  if (now - first_ < options_.quiet) need = std::max({need, present, options_.before});
  if (need > 0) {
    while (!needs_.empty() && needs_.back().devices <= need) needs_.pop_back();
    needs_.push_back({now, need});
  }
  const Duration quiet_now = quiet(now);
  while (!needs_.empty() && now - needs_.front().at > quiet_now) needs_.pop_front();
  const int before = wanted_;
  if (!needs_.empty()) wanted_ = held(needs_.front().devices);
  // Of devices that others have asked for before nobody knows when that was.
  ask(now, begins ? 0 : wanted_ - before);
  return wanted_;
}

Duration Wanted::start_up() const {
  return start_ups_.empty() ? Duration{0} : *std::ranges::max_element(start_ups_);
}

Duration Wanted::quiet(TimePoint now) const {
  const Duration waits = asked_.empty() ? Duration{0} : now - asked_.front().at;
  return std::max({options_.quiet, start_up(), waits});
}

int Wanted::held(int count) const {
  return std::clamp(count, options_.least, options_.most);
}

// Those who start devices ignore a small rise of the wanted number. So the number rises at least so far that
// they act. They compare it with all devices that are present or started.
int Wanted::noticed(int need) const {
  const int there = std::max(present_, wanted_);
  if (need <= there) return need;
  return std::max(need, static_cast<int>(std::floor(there * (1 + options_.tolerance) + sum_rounding)) + 1);
}

// Devices that came, the one first that was asked for first; those that take too long.
void Wanted::count(TimePoint now, int present) {
  if (present != present_) changed_ = now;
  int came = std::max(0, present - present_);
  present_ = present;
  while (came > 0 && !asked_.empty()) {
    Asked& first = asked_.front();
    const int these = std::min(came, first.devices);
    if (first.measured) {
      start_ups_.push_back(std::min(now - first.at, options_.give_up));
      if (start_ups_.size() > start_ups_remembered) start_ups_.pop_front();
    }
    came -= these;
    coming_ -= these;
    first.devices -= these;
    if (first.devices == 0) asked_.pop_front();
  }
  while (!asked_.empty() && now - asked_.front().at >= options_.give_up) {
    given_up_ += asked_.front().devices;
    coming_ -= asked_.front().devices;
    asked_.pop_front();
  }
}

// Asks for what is missing and was not asked for, of which `risen` are wanted anew; takes back what is not
// missing any more, the last first.
void Wanted::ask(TimePoint now, int risen) {
  const int missing = std::max(0, wanted_ - present_);
  given_up_ = std::min(given_up_, missing);
  int more = missing - given_up_ - coming_;
  while (more < 0) {
    CARILLON_ASSERT(!asked_.empty());
    Asked& newest = asked_.back();
    const int these = std::min(-more, newest.devices);
    newest.devices -= these;
    coming_ -= these;
    more += these;
    if (newest.devices == 0) asked_.pop_back();
  }
  const int anew = std::clamp(risen, 0, more);
  if (more > anew) asked_.push_back({now, more - anew, false});
  if (anew > 0) asked_.push_back({now, anew, true});
  coming_ += more;
}

int Wanted::needed(TimePoint now, const AutoscaleAdvice& advice) {
  if (advice.period < least_period || present_ == 0 || advice.devices <= 0) return 0;
  const double allowed = options_.threshold * static_cast<double>(advice.requests);
  const double bad = advice.bad_rate * static_cast<double>(advice.requests);
  // Two standard deviations above what the threshold allows, and one request: of few requests some may be bad
  // by chance.
  const bool found_short = bad > allowed + 2 * std::sqrt(allowed) + 1;
  if (found_short) {
    const int need = needed_short(now, advice);
    short_ = true;
    // None is released meanwhile.
    return std::max(need, std::min(present_, wanted_));
  }
  short_ = false;
  if (now - spare_at_ >= options_.remember) spare_ = 0;
  const double busy = advice.devices * (1 - advice.idle_fraction);
  return std::clamp(whole_devices(busy + spare_ * std::sqrt(busy) + hysteresis), 1, present_);
}

int Wanted::needed_short(TimePoint now, const AutoscaleAdvice& advice) {
  const double good = std::max(1 - advice.bad_rate, 1 / most_growth);
  const double work = advice.devices * (1 - advice.idle_fraction) / good;
  if (now - advice.period < changed_) return whole_devices(work + spare_ * std::sqrt(work));
  // The smallest of one shortage: as it begins, the period reaches back to when devices were enough.
  const double spare = work > 0 ? std::clamp((present_ - work) / std::sqrt(work), 0.0, most_spare) : 0;
  spare_ = short_ && spare_at_ >= changed_ ? std::min(spare_, spare) : spare;
  spare_at_ = now;
  double need = present_ / good;
  const double idle = advice.devices * advice.idle_fraction;
  if (idle >= 1) need = std::min(need, std::max<double>(work, present_) + 1);
  return whole_devices(std::min(need, work + most_spare * std::sqrt(work) + 1));
}

Result<WantedByGroup> WantedByGroup::make(const WantedOptions& options) {
  if (auto one = Wanted::make(options); !one) return std::unexpected(one.error());
  return WantedByGroup(options);
}

Result<> WantedByGroup::begin(std::string_view group, int before) {
  if (groups_.contains(group)) return {};
  WantedOptions options = options_;
  options.before = before;
  auto made = Wanted::make(options);
  if (!made) return in_context(fmt::format("group '{}'", group), made.error());
  groups_.emplace(group, *std::move(made));
  return {};
}

Result<> WantedByGroup::limit(std::string_view group, int least, int most) {
  const auto found = groups_.find(group);
  if (found != groups_.end()) {
    auto done = found->second.limit(least, most);
    return done ? done : in_context(fmt::format("group '{}'", group), done.error());
  }
  WantedOptions options = options_;
  options.least = least;
  options.most = most;
  auto made = Wanted::make(options);
  if (!made) return in_context(fmt::format("group '{}'", group), made.error());
  groups_.emplace(group, *std::move(made));
  return {};
}

Result<int> WantedByGroup::look(TimePoint now, std::string_view group, int present,
                                const AutoscaleAdvice& advice) {
  auto found = groups_.find(group);
  if (found == groups_.end()) {
    // A group whose first advice is wrong does not begin.
    if (auto good = check_advice(present, advice); !good)
      return in_context(fmt::format("group '{}'", group), good.error());
    found = groups_.emplace(group, Wanted::make(options_).value()).first;
  }
  auto looked = found->second.look(now, present, advice);
  if (!looked) return in_context(fmt::format("group '{}'", group), looked.error());
  return looked;
}

void WantedByGroup::remove(std::string_view group) {
  if (const auto found = groups_.find(group); found != groups_.end()) groups_.erase(found);
}

std::vector<WantedFigures> wanted_figures(const WantedByGroup& wanted) {
  std::vector<WantedFigures> out;
  for (const auto& [name, of] : wanted.groups())
    if (of.begun())
      out.push_back({name, of.wanted(), of.present(), of.coming(), of.given_up(), of.start_up()});
  return out;
}

}  // namespace carillon::provision
