#include "carillon/simulate/plot.h"

#include <algorithm>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "carillon/simulate/panels.h"

namespace carillon::simulate {
namespace {

using namespace panels;

void latency_panel(std::string& svg, double top, const workload::Scenario& scenario, Figures& figures) {
  std::vector<Duration> all;
  for (const ModelFigures& m : figures.models) all.insert(all.end(), m.latencies.begin(), m.latencies.end());
  std::sort(all.begin(), all.end());
  std::uint64_t offered = 0;
  for (const ModelFigures& m : figures.models) offered += m.offered;
  const double most = all.empty() ? 1 : std::max(1e-3, to_ms(all.back()));
  frame(svg, top, "Latency of answers, as a share of all requests", "latency (ms)", most, "share", 1);
  std::set<Duration> slos;
  for (const auto& m : scenario.models) {
    slos.insert(m.slo);
    slos.insert(m.slos.begin(), m.slos.end());
  }
  if (slos.size() <= 5)
    for (const Duration slo : slos)
      if (to_ms(slo) <= most) {
        const double x = left + inner * to_ms(slo) / most;
        svg += fmt::format(
            "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#e15759\" "
            "stroke-dasharray=\"4 3\"/>\n",
            x, top, top + panel);
        text(svg, x - 4, top + 14, "SLO", "end");
      }
  svg += "<polyline fill=\"none\" stroke=\"#4e79a7\" stroke-width=\"2\" points=\"";
  svg += fmt::format("{:.1f},{:.1f} ", left, top + panel);
  constexpr std::size_t points = 400;
  for (std::size_t i = 1; i <= points && !all.empty(); ++i) {
    const std::size_t at = all.size() * i / points;
    if (at == 0) continue;
    const double share = static_cast<double>(at) / static_cast<double>(std::max<std::uint64_t>(1, offered));
    svg += fmt::format("{:.1f},{:.1f} ", left + inner * to_ms(all[at - 1]) / most, top + panel * (1 - share));
  }
  svg += "\"/>\n";
}

void batch_panel(std::string& svg, double top, const Figures& figures) {
  double most = 0;
  std::size_t largest = 1;
  for (std::size_t b = 1; b < figures.batch_sizes.size(); ++b) {
    const auto requests = static_cast<double>(figures.batch_sizes[b] * b);
    if (requests > 0) largest = b;
    most = std::max(most, requests);
  }
  most = std::max(most, 1.0);
  const auto span = static_cast<double>(largest + 1);
  frame(svg, top, "Requests by the size of their batch", "batch size", span, "requests", most);
  for (std::size_t b = 1; b <= largest && b < figures.batch_sizes.size(); ++b) {
    const double height = panel * static_cast<double>(figures.batch_sizes[b] * b) / most;
    svg +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"#4e79a7\"/>\n",
                    left + inner * (static_cast<double>(b) - 0.4) / span, top + panel - height,
                    inner * 0.8 / span, height);
  }
}

void timeline_panel(std::string& svg, double top, const Figures& figures) {
  const std::size_t devices = std::max<std::size_t>(1, figures.busy.size());
  TimePoint first = TimePoint::max(), last = TimePoint::min();
  for (const Execution& e : figures.timeline) {
    first = std::min(first, e.start);
    last = std::max(last, e.end);
  }
  const double most = figures.timeline.empty() ? 1 : std::max(1e-3, to_ms(last - first));
  frame(svg, top,
        figures.timeline.empty() ? "Devices: nothing ran"
                                 : fmt::format("Devices, {} batches from {:.3f} s on; a colour a model",
                                               figures.timeline.size(), to_seconds(first - TimePoint{})),
        "ms", most, "device (0 at the bottom)", static_cast<double>(devices), false);
  const double row = panel / static_cast<double>(devices);
  for (const Execution& e : figures.timeline) {
    const double x = left + inner * to_ms(e.start - first) / most;
    const double w = std::max(0.5, inner * to_ms(e.end - e.start) / most - 0.5);
    const double y = top + panel - row * (e.device.value + 1);
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
                       x, y + row * 0.1, w, row * 0.8, colours[e.model.index() % colours.size()]);
    if (w > 14 && row > 10)
      svg += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"9\" fill=\"white\">{}</text>\n",
          x + w / 2, y + row / 2 + 3, e.batch);
  }
}

struct Line {
  std::string label;
  std::vector<double> values;  // one an interval
};

void series_panel(std::string& svg, double top, std::string_view title, std::string_view y_label,
                  Duration interval, const std::vector<Line>& lines) {
  double most = 1;
  std::size_t count = 1;
  for (const Line& line : lines) {
    count = std::max(count, line.values.size());
    for (const double v : line.values) most = std::max(most, v);
  }
  const double seconds = to_seconds(interval) * static_cast<double>(count);
  const bool minutes = seconds > 600;
  frame(svg, top, title, minutes ? "minutes" : "seconds", minutes ? seconds / 60 : seconds, y_label,
        most * 1.05);
  for (std::size_t l = 0; l < lines.size(); ++l) {
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"", colours[l]);
    for (std::size_t i = 0; i < lines[l].values.size(); ++i)
      svg += fmt::format("{:.1f},{:.1f} ",
                         left + inner * (static_cast<double>(i) + 0.5) / static_cast<double>(count),
                         top + panel * (1 - lines[l].values[i] / (most * 1.05)));
    svg += "\"/>\n";
    label(svg, top, lines[l].label, colours[l], lines.size() - 1 - l);
  }
}

}  // namespace

std::string to_svg(const workload::Scenario& scenario, std::string_view scheduler, Figures& figures,
                   Duration interval) {
  const bool series = !figures.intervals.empty();
  const double height = (series ? 5 : 3) * (panel + gap) + 50;
  std::string svg = opening(height);
  text(svg, left, 24, fmt::format("{} under {}, seed {}", scenario.name, scheduler, scenario.seed), "start",
       16);
  latency_panel(svg, 60, scenario, figures);
  batch_panel(svg, 60 + panel + gap, figures);
  timeline_panel(svg, 60 + 2 * (panel + gap), figures);
  if (series) {
    Line offered{"offered", {}}, on_time{"on time", {}}, used{"devices that ran something", {}},
        busy{"busy devices, mean", {}};
    for (const IntervalFigures& in : figures.intervals) {
      const double s = to_seconds(in.length);
      offered.values.push_back(static_cast<double>(in.offered) / s);
      on_time.values.push_back(static_cast<double>(in.on_time) / s);
      used.values.push_back(in.devices_used);
      busy.values.push_back(to_seconds(in.busy) / s);
    }
    series_panel(svg, 60 + 3 * (panel + gap), "Requests", "requests/s", interval, {offered, on_time});
    series_panel(svg, 60 + 4 * (panel + gap), "Devices", "devices", interval, {used, busy});
  }
  return svg + closing;
}

}  // namespace carillon::simulate
