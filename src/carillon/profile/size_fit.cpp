#include "carillon/profile/size_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include "carillon/base/assert.h"
#include "carillon/profile/least_squares.h"

namespace carillon::profile {
namespace {

constexpr int steps_a_doubling = 4;
constexpr double promised = 0.99;  // the share of runs that expected() covers
constexpr double wild = 2;         // so many times all others of its kind
constexpr int rounds = 4;          // of weighing what lies far off
constexpr int told_apart = 3;      // sizes of one row that it takes to tell operations and bytes apart

double ns(Duration d) {
  return static_cast<double>(d.count());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

int size_step(const Effort& effort) {
  return static_cast<int>(std::floor(steps_a_doubling * std::log2(std::max(1.0, effort.size()))));
}

void SizeFit::add(const SizedRun& run, Duration took) {
  CARILLON_ASSERT(took > Duration{0} && run.runs >= 1 && run.rows >= 1);
  ++added_;
  const int step = size_step(run.effort);
  auto kind = std::ranges::find_if(
      kinds_, [&](const Kind& k) { return k.step == step && k.runs == run.runs && k.rows == run.rows; });
  if (kind == kinds_.end()) {
    if (kinds_.size() == most_kinds) kinds_.erase(std::ranges::min_element(kinds_, {}, &Kind::newest));
    kinds_.push_back({.step = step, .runs = run.runs, .rows = run.rows, .newest = 0, .samples = {}});
    kind = std::prev(kinds_.end());
  }
  kind->newest = added_;
  if (kind->samples.size() < window) {
    kind->samples.push_back({run.effort, took});
    return;
  }
  kind->samples[kind->next] = {run.effort, took};
  kind->next = (kind->next + 1) % window;
}

void SizeFit::forget(int rows) {
  if (std::erase_if(kinds_, [rows](const Kind& k) { return k.rows == rows; }) > 0) ++added_;
}

double SizeFit::Fitted::at(int runs, const Effort& effort) const {
  const double size =
      both ? operation * static_cast<double>(effort.operations) + byte * static_cast<double>(effort.bytes)
           : byte * effort.size();
  return run * runs + size;
}

SizeFit::Fitted SizeFit::fit() const {
  struct Ran {
    int runs = 1;
    Effort effort;
    double took = 0;
  };
  std::vector<Ran> points;
  std::set<int> sizes;
  double most_operations = 1, most_bytes = 1, most_size = 1, most_runs = 1;
  for (const Kind& kind : kinds_) {
    // One alone that is far longer than its like was met by an accident.
    double longest = 0, next = 0;
    for (const Kind::Sample& sample : kind.samples) {
      const double took = ns(sample.took);
      next = std::max(next, std::min(took, longest));
      longest = std::max(longest, took);
    }
    for (const Kind::Sample& sample : kind.samples) {
      if (kind.samples.size() > 2 && ns(sample.took) > wild * next) continue;
      points.push_back({kind.runs, sample.effort, ns(sample.took)});
      most_operations = std::max(most_operations, static_cast<double>(sample.effort.operations));
      most_bytes = std::max(most_bytes, static_cast<double>(sample.effort.bytes));
      most_size = std::max(most_size, sample.effort.size());
      most_runs = std::max(most_runs, static_cast<double>(kind.runs));
      if (kind.runs == 1) {
        const auto rows = static_cast<std::uint64_t>(kind.rows);
        sizes.insert(size_step({sample.effort.operations / rows, sample.effort.bytes / rows}));
      }
    }
  }
  Fitted out{.both = sizes.size() >= told_apart};
  std::vector<double> weights(points.size(), 1);
  for (int round = 0; round < rounds; ++round) {
    // The size first: where one point alone is there, all of its time counts by the size.
    LinearSystem system(out.both ? 3 : 2);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Ran& p = points[i];
      const double w = weights[i] / p.took;
      const double runs = w * p.runs / most_runs;
      const std::array<double, 3> apart{w * static_cast<double>(p.effort.operations) / most_operations,
                                        w * static_cast<double>(p.effort.bytes) / most_bytes, runs};
      const std::array<double, 2> together{w * p.effort.size() / most_size, runs};
      system.add(out.both ? std::span<const double>(apart) : std::span<const double>(together), weights[i]);
    }
    const std::vector<double> found = system.solve_nonnegative();
    out.operation = out.both ? found[0] / most_operations : 0;
    out.byte = out.both ? found[1] / most_bytes : found[0] / most_size;
    out.run = found.back() / most_runs;
    std::vector<double> off;
    for (const Ran& p : points) off.push_back(std::abs(out.at(p.runs, p.effort) / p.took - 1));
    const double usual = std::max(0.02, 1.5 * median(off));
    for (std::size_t i = 0; i < points.size(); ++i)
      weights[i] = std::sqrt(std::min(1.0, usual / std::max(1e-9, off[i])));
  }
  std::vector<double> longer;
  for (const Ran& p : points) longer.push_back(p.took / std::max(1.0, out.at(p.runs, p.effort)));
  std::ranges::sort(longer);
  const auto place = static_cast<std::size_t>(std::ceil(promised * static_cast<double>(longer.size()))) - 1;
  out.longer = std::max(1.0, longer[place]);
  return out;
}

Duration SizeFit::expected(const SizedRun& run) const {
  if (!known()) return Duration{0};
  if (fitted_at_ != added_) {
    fitted_ = fit();
    fitted_at_ = added_;
  }
  const double longest = 86'400e9;
  return std::max(Duration{1}, from_ns(std::min(longest, fitted_.longer * fitted_.at(run.runs, run.effort))));
}

}  // namespace carillon::profile
