#include "carillon/provision/counted_demand.h"

#include <algorithm>
#include <string>

#include "carillon/base/assert.h"
#include "carillon/provision/weighed.h"

namespace carillon::provision {

CountedDemand::CountedDemand(std::span<const WantedFigures> before, const DemandOptions& options)
    : options_(options), wanted_(WantedByGroup::make({.quiet = options.quiet}).value()) {
  for (const WantedFigures& told : before) {
    if (told.group.empty() || told.wanted < 1 || told.wanted > most_told) continue;
    const auto begun = wanted_.begin(told.group, told.wanted);
    CARILLON_ASSERT(begun);
  }
}

void CountedDemand::ran(std::uint32_t number, std::size_t model_number, std::size_t rows, Duration busy) {
  Group& of = group(number);
  busy = std::max(busy, Duration{0});
  of.busy += busy;
  if (rows == 0) return;
  Model& ran = model(of, model_number);
  ran.ran += rows;
  ran.busy += busy;
  of.ran += rows;
  of.ran_busy += busy;
}

void CountedDemand::ended(std::uint32_t number, std::size_t model_number, bool bad) {
  Group& of = group(number);
  const Model& its = model(of, model_number);
  const double weight = request_weight(its.busy, its.ran, of.ran_busy, of.ran);
  of.requests += weight;
  of.bad += bad ? weight : 0;
}

void CountedDemand::look(TimePoint now, std::span<const int> present) {
  if (!first_look_) first_look_ = now;
  for (std::size_t i = present.size(); i < groups_.size(); ++i) wanted_.remove(std::to_string(i));
  if (groups_.size() > present.size()) groups_.resize(present.size());
  if (!present.empty()) group(static_cast<std::uint32_t>(present.size()) - 1);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& of = groups_[i];
    const AutoscaleAdvice advice = of.window.observe(now, present[i],
                                                     {.requests = static_cast<std::uint64_t>(of.requests),
                                                      .bad = static_cast<std::uint64_t>(of.bad),
                                                      .busy = of.busy});
    const std::string name = std::to_string(i);
    if (!wanted_.groups().contains(name) && (present[i] == 0 || now - *first_look_ < options_.period))
      continue;
    const auto looked = wanted_.look(now, name, present[i], advice);
    CARILLON_ASSERT(looked);  // a window makes shares of any counters
  }
}

CountedDemand::Group& CountedDemand::group(std::uint32_t number) {
  while (groups_.size() <= number) groups_.emplace_back().window = AutoscaleWindow(options_.period);
  return groups_[number];
}

CountedDemand::Model& CountedDemand::model(Group& of, std::size_t number) {
  if (of.models.size() <= number) of.models.resize(number + 1);
  return of.models[number];
}

}  // namespace carillon::provision
