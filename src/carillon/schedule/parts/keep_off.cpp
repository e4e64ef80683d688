#include "carillon/schedule/parts/keep_off.h"

#include <algorithm>
#include <cmath>

namespace carillon::schedule::parts {
namespace {

// Those behind quick requests are at most so long: what is not twice as long is no other kind.
constexpr int much_longer = 2;

// Requests of one kind together.
struct Kind {
  double rate = 0;    // a second
  double demand = 0;  // devices
  double exec = 0;    // of one alone on average, seconds
  Duration least_slack = Duration::max(), most_slack{0};
};

// The share that comes too late on so many devices.
double late_on(std::size_t devices, const Kind& kind) {
  if (devices == 0) return 1;
  const auto room = static_cast<double>(devices);
  if (kind.demand >= room) return 1 - room / kind.demand;
  // Who waits, waits so much longer with that chance.
  return symphony::chance_to_wait(kind.demand, devices) *
         std::exp(-(room - kind.demand) * to_seconds(kind.least_slack) / kind.exec);
}

// Answers a second that are lost where the long ones keep off `off` devices.
double lost(std::size_t off, std::size_t devices, const Kind& quick, const Kind& rest) {
  const std::size_t may = devices - off;
  const double room = static_cast<double>(may), busy = std::min(1.0, rest.demand / room);
  double late = 0;
  for (std::size_t k = 0; k <= may; ++k) {  // of which so many are busy with long runs: a binomial law
    const double of = static_cast<double>(k);
    const double chance =
        busy >= 1 ? (k == may ? 1 : 0)
                  : std::exp(std::lgamma(room + 1) - std::lgamma(of + 1) - std::lgamma(room - of + 1) +
                             of * std::log(std::max(busy, 1e-12)) + (room - of) * std::log(1 - busy));
    if (chance > 1e-9) late += chance * late_on(devices - k, quick);
  }
  return rest.rate * std::max(0.0, 1 - room / rest.demand) + quick.rate * late;
}

}  // namespace

void KeepOff::plan(const Plan& plan, std::size_t devices) {
  models_.assign(plan.models(), {});
  std::vector<ModelId> known;
  for (std::uint32_t m = 0; m < plan.models(); ++m)
    if (plan.known(ModelId{m})) known.push_back(ModelId{m});
  const auto one = [&](ModelId model) { return plan.times(model).exec(0); };
  const auto slack = [&](ModelId model) { return plan.slo(model) - plan.times(model).span(0); };
  Duration tightest = Duration::max();
  for (const ModelId model : known)
    if (slack(model) > Duration{0}) tightest = std::min(tightest, slack(model));
  for (const ModelId model : known) {
    if (one(model) <= tightest) continue;
    Kind quick, rest;
    for (const ModelId other : known) {
      const bool waits =
          slack(other) > Duration{0} && one(model) > slack(other) && one(model) > much_longer * one(other);
      Kind& kind = waits ? quick : rest;
      kind.rate += plan.rate(other);
      kind.demand += plan.demand(other);
      kind.exec += plan.rate(other) * to_seconds(one(other));
      kind.least_slack = std::min(kind.least_slack, slack(other));
      kind.most_slack = std::max(kind.most_slack, slack(other));
    }
    if (quick.rate <= 0 || quick.exec <= 0) continue;
    quick.exec /= quick.rate;
    Model& own = models_[model.index()];
    own.longer = quick.most_slack;
    double least = lost(0, devices, quick, rest);
    for (std::size_t off = 1; off < devices; ++off)
      if (const double there = lost(off, devices, quick, rest); there < least) {
        least = there;
        own.devices = off;
      }
  }
}

bool KeepOff::may_run(const ledger::Ledger& ledger, DeviceId device, ModelId model) const {
  if (model.index() >= models_.size() || models_[model.index()].devices == 0) return true;
  const Model& own = models_[model.index()];
  std::size_t busy = 1;
  for (std::uint32_t i = 0; i < ledger.devices(); ++i) {
    if (DeviceId{i} == device || !ledger.device(DeviceId{i}).alive) continue;
    const auto& runs = ledger.device(DeviceId{i}).under_way[static_cast<std::size_t>(ledger::Lane::exec)];
    busy +=
        std::ranges::any_of(runs, [&](std::uint32_t run) { return ledger.at(run).expected > own.longer; });
  }
  return busy + own.devices <= ledger.alive();
}

}  // namespace carillon::schedule::parts
