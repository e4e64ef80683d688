#include "carillon/schedule/parts/shares.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule::parts {
namespace {

constexpr Duration gone_after = 3 * Shares::window;
// A tenant's first request is taken to ask for as much in this share of the window.
constexpr double least_since = 0.25;
constexpr double least_step = 1e-7, step_of = 0.05;

double windows(Duration since) {
  return to_seconds(since) / to_seconds(Shares::window);
}

// The share that counts at `now` of what was asked for until `seen`.
double kept(TimePoint seen, TimePoint now) {
  return seen == TimePoint::min() ? 0 : std::exp(-windows(now - seen));
}

// What a tenant that asks for one device all the time has asked for, device seconds.
double one_device(TimePoint first, TimePoint now) {
  return to_seconds(Shares::window) * (1 - std::exp(-std::max(least_since, windows(now - first))));
}

}  // namespace

// The place of the request's tenant; the crowd where it has none yet.
std::uint32_t Shares::find(const Request& request) const {
  if (applications_ > 0 && request.app != AppId{}) {
    const std::uint32_t* const place = places_.find(request.app);
    return place == nullptr ? crowd : *place;
  }
  if (models_ <= 0) return unnamed;
  return request.model.index() < of_model_.size() ? of_model_[request.model.index()] : crowd;
}

std::uint32_t Shares::find_or_make(const Request& request) {
  const std::uint32_t found = find(request);
  const bool application = applications_ > 0 && request.app != AppId{};
  const bool full = application && places_.size() >= most_applications;
  if (found != crowd || full) {
    if (found <= unnamed) tenants_[found].weight = applications_;
    return found;
  }
  auto place = static_cast<std::uint32_t>(tenants_.size());
  if (left_.empty()) {
    tenants_.emplace_back();
  } else {
    place = left_.back();
    left_.pop_back();
  }
  tenants_[place].weight = application ? applications_ : models_;
  if (application) {
    tenants_[place].app = request.app;
    places_.insert(request.app, place);
    return place;
  }
  if (request.model.index() >= of_model_.size()) of_model_.resize(request.model.index() + 1, crowd);
  return of_model_[request.model.index()] = place;
}

bool Shares::modest(const Tenant& tenant, double asks, TimePoint now) const {
  const double weight = tenant.weight > 0 ? tenant.weight : std::max(models_, applications_);
  return asks <= weight * level_ * one_device(std::min(tenant.first, now), now);
}

bool Shares::asked(const Request& request, double work, TimePoint now) {
  Tenant& tenant = tenants_[find_or_make(request)];
  const double keeps = kept(tenant.seen, now);
  tenant.asks = tenant.asks * keeps + work;
  tenant.joined *= keeps;
  tenant.first = std::min(tenant.first, now);
  tenant.seen = now;
  return modest(tenant, tenant.asks, now);
}

bool Shares::modest(const Request& request, double work, TimePoint now) const {
  const Tenant& tenant = tenants_[find(request)];
  return modest(tenant, tenant.asks * kept(tenant.seen, now) + work, now);
}

void Shares::urgent(double work, TimePoint now) {
  urgent_.asks = urgent_.asks * kept(urgent_.seen, now) + work;
  urgent_.first = std::min(urgent_.first, now);
  urgent_.seen = now;
}

// How many devices the tenant asks for.
double Shares::devices_of(const Tenant& tenant, TimePoint now) {
  return tenant.asks * kept(tenant.seen, now) / one_device(std::min(tenant.first, now), now);
}

bool Shares::joins(const Request& request, double work, TimePoint now) {
  Tenant& tenant = tenants_[find(request)];
  if (tenant.joined + work > level_ * one_device(tenant.first, now)) return false;
  tenant.joined += work;
  return true;
}

void Shares::step(std::size_t devices, TimePoint now) {
  if (!passing_) {
    if (begun_ != TimePoint::min() && now - begun_ < every) return;
    begun_ = now;
    passing_ = true;
    next_ = 0;
    asked_for_.fill({});
  }
  const std::size_t end = std::min(tenants_.size(), next_ + tenants_at_a_time);
  for (; next_ < end; ++next_) look(static_cast<std::uint32_t>(next_), now);
  if (next_ < tenants_.size()) return;
  passing_ = false;
  find_level(std::max(0.0, static_cast<double>(devices) - devices_of(urgent_, now)));
}

void Shares::look(std::uint32_t place, TimePoint now) {
  Tenant& tenant = tenants_[place];
  if (tenant.weight <= 0 || tenant.seen == TimePoint::min()) return;
  if (tenant.app != AppId{} && now - tenant.seen > gone_after) {
    places_.erase(tenant.app);
    tenant = {};
    left_.push_back(place);
    return;
  }
  const double asks = devices_of(tenant, now);
  if (asks < least_step) return;
  const double at = std::log(asks / least_step) / step_of;
  Step& step = asked_for_[std::min(steps - 1, static_cast<std::size_t>(at))];
  step.asks += asks;
  ++step.tenants;
}

// By water-filling: a tenant that asks for less than an equal part of what is left has what it asks for. One
// that asks for more than there is, alone, may have all; whoever comes beside it is modest up to as much.
void Shares::find_level(double devices) {
  std::uint32_t all = 0;
  for (const Step& step : asked_for_) all += step.tenants;
  level_ = unlimited;
  double left = devices;
  for (const Step& step : asked_for_) {
    if (step.asks * all > left * step.tenants) {
      level_ = left / all;
      return;
    }
    left -= step.asks;
    all -= step.tenants;
  }
}

}  // namespace carillon::schedule::parts
