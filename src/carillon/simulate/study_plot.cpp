#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "carillon/simulate/panels.h"
#include "carillon/simulate/study_report.h"

namespace carillon::simulate {
namespace {

using namespace panels;

struct StudyAxis {
  double seconds = 1;
  bool minutes = false;

  double x(TimePoint at) const {
    return left + inner * std::clamp(to_seconds(at - TimePoint{}) / seconds, 0.0, 1.0);
  }
  const char* label() const { return minutes ? "minutes" : "seconds"; }
  double most() const { return minutes ? seconds / 60 : seconds; }
};

// The share of each of so many parts of the run in which each device ran a trial: white to dark.
void heat_panel(std::string& svg, double top, const workload::Study& study, const StudyFigures& figures,
                const StudyAxis& axis) {
  const std::size_t rows = study.devices.size();
  frame(svg, top, "How busy each device was: dark, all the time", axis.label(), axis.most(),
        "device (0 at the bottom)", static_cast<double>(rows), rows <= 16);
  constexpr std::size_t columns = 100;
  const double wide = axis.seconds / columns;
  // Of trials that share a device the time counts once: the union of their stretches.
  std::vector<std::vector<std::pair<double, double>>> of(rows);
  for (const DeviceStretch& s : figures.stretches)
    of[s.device].push_back({to_seconds(s.from - TimePoint{}), to_seconds(s.until - TimePoint{})});
  const double height = panel / static_cast<double>(rows);
  for (std::size_t d = 0; d < rows; ++d) {
    std::ranges::sort(of[d]);
    std::vector<double> busy(columns);
    double until = 0;
    for (const auto& [begin, end] : of[d]) {
      const double from = std::max(begin, until);
      until = std::max(until, end);
      for (auto c = std::min(columns - 1, static_cast<std::size_t>(from / wide));
           c < columns && static_cast<double>(c) * wide < until; ++c)
        busy[c] += std::max(0.0, std::min(until, wide * static_cast<double>(c + 1)) -
                                     std::max(from, wide * static_cast<double>(c)));
    }
    for (std::size_t c = 0; c < columns; ++c) {
      const double share = std::min(1.0, busy[c] / wide);
      if (share < 0.01) continue;
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"#1f4e79\" "
          "fill-opacity=\"{:.2f}\"/>\n",
          left + inner * static_cast<double>(c) / columns, top + panel - height * static_cast<double>(d + 1),
          inner / columns, height, share);
    }
  }
}

// Which trial ran where; trials that share a device lie one above the other.
void trials_panel(std::string& svg, double top, const workload::Study& study, const StudyFigures& figures,
                  const StudyAxis& axis) {
  const std::size_t rows = study.devices.size();
  frame(svg, top, fmt::format("Trials, a colour each, {} of them", figures.trials.size()), axis.label(),
        axis.most(), "device (0 at the bottom)", static_cast<double>(rows), rows <= 16);
  const double height = panel / static_cast<double>(rows);
  std::vector<std::vector<TimePoint>> ends(rows);  // of the sub-rows of each device
  std::vector<std::size_t> sub(figures.stretches.size());
  std::vector<std::size_t> order(figures.stretches.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return figures.stretches[i].from; });
  for (const std::size_t i : order) {
    const DeviceStretch& s = figures.stretches[i];
    auto& rows_of = ends[s.device];
    std::size_t row = 0;
    while (row < rows_of.size() && rows_of[row] > s.from) ++row;
    if (row == rows_of.size()) rows_of.push_back(s.until);
    rows_of[row] = s.until;
    sub[i] = row;
  }
  for (std::size_t i = 0; i < figures.stretches.size(); ++i) {
    const DeviceStretch& s = figures.stretches[i];
    const double x = axis.x(s.from), width = axis.x(s.until) - x;
    if (width < 0.2) continue;
    const double part = 0.9 * height / static_cast<double>(ends[s.device].size());
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                       x, top + panel - height * (s.device + 0.95) + part * static_cast<double>(sub[i]),
                       width, part, colours[s.trial % colours.size()]);
  }
}

void metric_panel(std::string& svg, double top, const workload::Study& study, const StudyFigures& figures,
                  const StudyAxis& axis) {
  double low = figures.best.front().metric, high = low;
  for (const BestSoFar& b : figures.best) {
    low = std::min(low, b.metric);
    high = std::max(high, b.metric);
  }
  if (study.target) {
    low = std::min(low, *study.target);
    high = std::max(high, *study.target);
  }
  const double from = std::min(0.0, low), most = std::max(1e-9, (high - from) * 1.05);
  frame(svg, top, "Best metric so far", axis.label(), axis.most(), "metric", from + most, from == 0);
  const auto y = [&](double metric) { return top + panel * (1 - (metric - from) / most); };
  svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"", colours[0]);
  double last = y(figures.best.front().metric);
  for (const BestSoFar& b : figures.best) {
    svg += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", axis.x(b.at), last, axis.x(b.at), y(b.metric));
    last = y(b.metric);
  }
  svg += fmt::format("{:.1f},{:.1f}\"/>\n", left + inner, last);
  if (study.target)
    svg += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-dasharray=\"4 "
        "3\"/>\n",
        left, left + inner, y(*study.target), y(*study.target), colours[3]);
}

}  // namespace

std::string to_svg(const workload::Study& study, std::string_view scheduler, const StudyFigures& figures) {
  StudyAxis axis;
  axis.seconds = std::max(1e-6, to_seconds(figures.last - TimePoint{}));
  axis.minutes = axis.seconds > 600;
  const bool metric = !figures.best.empty();
  std::string svg = opening((metric ? 3 : 2) * (panel + gap) + 50);
  text(svg, left, 24, fmt::format("{} under {}, seed {}", study.name, scheduler, study.seed), "start", 16);
  heat_panel(svg, 60, study, figures, axis);
  trials_panel(svg, 60 + panel + gap, study, figures, axis);
  if (metric) metric_panel(svg, 60 + 2 * (panel + gap), study, figures, axis);
  return svg + closing;
}

}  // namespace carillon::simulate
