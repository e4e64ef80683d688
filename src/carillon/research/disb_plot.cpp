#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "carillon/base/assert.h"
#include "carillon/research/disb_report.h"
#include "carillon/simulate/panels.h"

namespace carillon::research {
namespace {

using namespace simulate::panels;

// A bar of a scheduler: from `low` to `high` on an axis up to `most`.
void bar(std::string& svg, double top, double x, double wide, double low, double high, double most,
         const char* colour) {
  svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x,
                     top + panel * (1 - high / most), wide, panel * (high - low) / most, colour);
}

// The left end of bar `i` of scheduler `run`, of as many bars as are `beside` each other, and how wide it is.
struct Place {
  double x, wide;
};
Place place_of(std::size_t run, std::size_t runs, int i, int beside) {
  const double part = inner / static_cast<double>(runs);
  const double wide = std::min(80.0, part * 0.8 / beside);
  return {left + part * (static_cast<double>(run) + 0.5) + wide * (i - beside / 2.0), wide};
}

void value_at(std::string& svg, double top, const Place& place, double value, double most) {
  text(svg, place.x + place.wide / 2, top + panel * (1 - value / most) - 4, fmt::format("{:.4g}", value),
       "middle", 11);
}

void real_time_panel(std::string& svg, double top, std::span<const DisbReport> runs,
                     std::span<const std::string> names) {
  double most = 0;
  for (const DisbReport& r : runs) most = std::max(most, r.real_time.p99_ms);
  most = most > 0 ? most * 1.15 : 1;  // room for what is written above a bar
  frame(svg, top, "Latency of real-time requests", names, "latency (ms)", most);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double values[] = {runs[i].real_time.mean_ms, runs[i].real_time.p99_ms};
    for (int b = 0; b < 2; ++b) {
      const Place place = place_of(i, runs.size(), b, 2);
      bar(svg, top, place.x, place.wide, 0, values[b], most, colours[static_cast<std::size_t>(b)]);
      value_at(svg, top, place, values[b], most);
    }
  }
  label(svg, top, "mean", colours[0], 1);
  label(svg, top, "99th percentile", colours[1], 0);
}

void throughput_panel(std::string& svg, double top, std::span<const DisbReport> runs,
                      std::span<const std::string> names) {
  double most = 0;
  for (const DisbReport& r : runs) most = std::max(most, r.total_rps);
  most = most > 0 ? most * 1.15 : 1;
  frame(svg, top, "Requests answered", names, "requests/s", most);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Place place = place_of(i, runs.size(), 0, 1);
    bar(svg, top, place.x, place.wide, 0, runs[i].real_time.rps, most, colours[0]);
    bar(svg, top, place.x, place.wide, runs[i].real_time.rps, runs[i].total_rps, most, colours[2]);
    value_at(svg, top, place, runs[i].total_rps, most);
  }
  label(svg, top, "best-effort", colours[2], 1);
  label(svg, top, "real-time", colours[0], 0);
}

void cdf_panel(std::string& svg, double top, std::span<const DisbReport> runs) {
  // A few that took long would squeeze all others.
  double most = 0;
  for (const DisbReport& r : runs) most = std::max(most, r.real_time.p999_ms);
  if (most <= 0) most = 1;
  frame(svg, top, "Latency of real-time requests, as a share of those answered",
        "latency (ms), to the largest 99.9th percentile", most, "share", 1);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& sorted = runs[i].real_time_latencies;
    const char* colour = colours[i % colours.size()];
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"", colour);
    constexpr std::size_t points = 400;
    for (std::size_t p = 0; p <= points && !sorted.empty(); ++p) {
      const std::size_t at = std::min(sorted.size() - 1, sorted.size() * p / points);
      const double share = static_cast<double>(p) / points;
      if (to_ms(sorted[at]) > most) break;
      svg +=
          fmt::format("{:.1f},{:.1f} ", left + inner * to_ms(sorted[at]) / most, top + panel * (1 - share));
    }
    svg += "\"/>\n";
    // Within the panel, where no line comes: at the lower right.
    label_at(svg, left + inner - 8, top + panel - 10 - 15 * static_cast<double>(runs.size() - 1 - i),
             runs[i].scheduler, colour);
  }
}

}  // namespace

std::string to_svg(std::span<const DisbReport> runs) {
  CARILLON_ASSERT(!runs.empty());
  std::vector<std::string> names;
  for (const DisbReport& r : runs) names.push_back(r.scheduler);
  std::string svg = opening(3 * (panel + gap) + 50);
  text(svg, left, 24,
       fmt::format("DISB {}, {:g} s, seed {}", runs[0].workload, runs[0].seconds, runs[0].seed), "start", 16);
  real_time_panel(svg, 60, runs, names);
  throughput_panel(svg, 60 + panel + gap, runs, names);
  cdf_panel(svg, 60 + 2 * (panel + gap), runs);
  return svg + closing;
}

}  // namespace carillon::research
