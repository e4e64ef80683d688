#include "carillon/schedule/parts/keep_off.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace carillon::schedule::parts {
namespace {

// Those behind quick requests are at most so long: what is not twice as long is no other kind.
constexpr int much_longer = 2;

// Batch sizes that are looked at for those beside quick ones, each half of the one before.
constexpr std::size_t sizes = 4;

// Requests of one kind together.
struct Kind {
  double rate = 0;    // a second
  double demand = 0;  // devices
  double exec = 0;    // that one waits for on average, seconds
  Duration least_slack = Duration::max(), most_slack{0};
};

// The share that comes too late on so many devices.
double late_on(std::size_t devices, const Kind& kind) {
  if (devices == 0) return 1;
  const auto room = static_cast<double>(devices);
  if (kind.demand >= room) return 1 - room / kind.demand;
  if (kind.exec <= 0) return 0;
  // Who waits, waits so much longer with that chance.
  return symphony::chance_to_wait(kind.demand, devices) *
         std::exp(-(room - kind.demand) * to_seconds(kind.least_slack) / kind.exec);
}

using Rest = std::array<Kind, sizes>;

// What is not quick, in batches of several sizes. They grow while they wait, up to the largest of which two
// in a row fit into the SLO.
Rest rest_in_batches(const Plan& plan, ModelId model, const std::vector<ModelId>& rest) {
  Rest found;
  std::array<double, sizes> runs{};  // a second
  for (const ModelId other : rest) {
    const auto& times = plan.times(other);
    int largest = 0;
    while (largest + 1 < times.batch_count() && 2 * times.span(largest + 1) <= plan.slo(other)) ++largest;
    for (std::size_t i = 0; i < sizes; ++i) {
      const int at = std::max(0, times.index_for(static_cast<std::size_t>(times.batch_size(largest)) >> i));
      found[i].rate += plan.rate(other);
      found[i].demand += plan.rate(other) * times.each(at);
      runs[i] += plan.rate(other) / times.batch_size(at);
      if (other == model) found[i].least_slack = std::max(Duration{0}, plan.slo(other) - times.span(at));
    }
  }
  // Batches of one size take equally long: by the M/D/c queue, waits are half of those of Erlang's formula.
  for (std::size_t i = 0; i < sizes; ++i)
    if (runs[i] > 0) found[i].exec = found[i].demand / runs[i] / 2;
  return found;
}

// Answers a second that are lost where the long ones keep off `off` devices.
double lost(std::size_t off, std::size_t devices, const Kind& quick, const Kind& rest, const Rest& batches) {
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
  double rest_late = 1;
  for (const Kind& batch : batches) rest_late = std::min(rest_late, late_on(may, batch));
  return rest.rate * rest_late + quick.rate * late;
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
    std::vector<ModelId> not_quick;
    for (const ModelId other : known) {
      const bool waits =
          slack(other) > Duration{0} && one(model) > slack(other) && one(model) > much_longer * one(other);
      Kind& kind = waits ? quick : rest;
      if (!waits) not_quick.push_back(other);
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
    const Rest batches = rest_in_batches(plan, model, not_quick);
    double least = lost(0, devices, quick, rest, batches);
    for (std::size_t off = 1; off < devices; ++off)
      if (const double there = lost(off, devices, quick, rest, batches); there < least) {
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
