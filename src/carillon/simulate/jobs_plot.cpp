#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "carillon/simulate/jobs_report.h"
#include "carillon/simulate/panels.h"

namespace carillon::simulate {
namespace {

using namespace panels;

// The axis of time: minutes where seconds would be many.
struct TimeAxis {
  TimePoint first;
  double seconds = 1;
  bool minutes = false;

  double x(TimePoint at) const {
    return left + inner * std::clamp(to_seconds(at - first) / seconds, 0.0, 1.0);
  }
  const char* label() const { return minutes ? "minutes" : "seconds"; }
  double most() const { return minutes ? seconds / 60 : seconds; }
};

void share_line(std::string& svg, double top, std::vector<double> values, double of, double most,
                const char* colour) {
  std::ranges::sort(values);
  svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{:.1f},{:.1f} ",
                     colour, left, top + panel);
  constexpr std::size_t points = 400;
  const std::size_t steps = std::min(points, values.size());
  for (std::size_t i = 1; i <= steps; ++i) {
    const std::size_t at = values.size() * i / steps;
    svg += fmt::format("{:.1f},{:.1f} ", left + inner * values[at - 1] / most,
                       top + panel * (1 - static_cast<double>(at) / of));
  }
  svg += "\"/>\n";
}

void completion_panel(std::string& svg, double top, const workload::Jobs& jobs, const JobsFigures& figures) {
  std::vector<double> completion, queueing;
  for (std::size_t i = 0; i < figures.jobs.size(); ++i) {
    const JobFigures& f = figures.jobs[i];
    if (f.outcome == JobOutcome::finished) completion.push_back(to_seconds(f.ended - jobs.jobs[i].arrival));
    if (f.began) queueing.push_back(to_seconds(*f.began - f.came));
  }
  double most = 1e-3;
  for (const double s : completion) most = std::max(most, s);
  for (const double s : queueing) most = std::max(most, s);
  const bool minutes = most > 600;
  frame(svg, top, "Completion times of jobs, and queueing, as a share of all jobs",
        minutes ? "minutes" : "seconds", minutes ? most / 60 : most, "share", 1);
  const auto all = static_cast<double>(std::max<std::size_t>(1, figures.jobs.size()));
  share_line(svg, top, queueing, all, most, colours[1]);
  share_line(svg, top, completion, all, most, colours[0]);
  label(svg, top, "completion", colours[0], 1);
  label(svg, top, "queueing", colours[1], 0);
}

// What ran in each lane: of each pixel's time, the model that had most of it.
void lanes_panel(std::string& svg, double top, const workload::Jobs& jobs, const JobsFigures& figures,
                 const TimeAxis& axis) {
  std::map<std::string_view, std::size_t> models;
  for (const workload::Job& job : jobs.jobs) models.try_emplace(job.model, models.size());
  std::uint32_t rows = 1;
  for (const LaneStretch& s : figures.stretches) rows = std::max(rows, s.row + 1);
  rows = std::min(rows, 64U);
  const bool by_job = models.size() == 1;
  frame(svg, top,
        fmt::format("Lanes, a colour a {}{}", by_job ? "job" : "model",
                    by_job ? "" : fmt::format(", {} of them", models.size())),
        axis.label(), axis.most(), "lane (0 at the bottom)", rows, rows <= 16);
  const double row_height = panel / rows;
  constexpr auto columns = static_cast<std::size_t>(inner);
  std::vector<std::map<std::size_t, std::vector<double>>> cells(rows);  // row: colour: seconds in each column
  const double wide = axis.seconds / static_cast<double>(columns);
  for (const LaneStretch& s : figures.stretches) {
    if (s.row >= rows) continue;
    const std::size_t colour = (by_job ? s.job : models.at(jobs.jobs[s.job].model)) % colours.size();
    auto& seconds = cells[s.row][colour];
    seconds.resize(columns);
    const double from = to_seconds(s.from - axis.first), until = to_seconds(s.until - axis.first);
    const auto last = std::min(columns - 1, static_cast<std::size_t>(std::max(0.0, until / wide)));
    for (auto c = std::min(columns - 1, static_cast<std::size_t>(std::max(0.0, from / wide))); c <= last; ++c)
      seconds[c] += std::max(0.0, std::min(until, wide * static_cast<double>(c + 1)) -
                                      std::max(from, wide * static_cast<double>(c)));
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    constexpr std::size_t none = 99;
    std::vector<std::size_t> shown(columns + 1, none);
    for (std::size_t c = 0; c < columns; ++c) {
      double best = wide * 0.02;
      for (const auto& [colour, seconds] : cells[row])
        if (seconds[c] > best) {
          best = seconds[c];
          shown[c] = colour;
        }
    }
    for (std::size_t c = 0, from = 0; c < columns; ++c) {
      if (shown[c + 1] == shown[c]) continue;
      if (shown[c] != none)
        svg +=
            fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
                        left + static_cast<double>(from), top + panel - row_height * (row + 0.95),
                        static_cast<double>(c + 1 - from), row_height * 0.9, colours[shown[c]]);
      from = c + 1;
    }
  }
}

void memory_panel(std::string& svg, double top, const JobsFigures& figures, const TimeAxis& axis) {
  double most = 0;
  for (const MemorySample& m : figures.memory) {
    most = std::max(most, static_cast<double>((m.persistent + m.ephemeral).count));
    most = std::max(most, static_cast<double>(m.capacity.count));
  }
  most = std::max(1.0, most) * 1.05;
  frame(svg, top, "Memory: persistent below, lanes above", axis.label(), axis.most(), "GB", most / 1e9);
  const auto y = [&](Bytes size) { return top + panel * (1 - static_cast<double>(size.count) / most); };
  const auto area = [&](auto&& low, auto&& high, const char* colour) {
    std::string upper, lower;
    double last = -1;
    for (std::size_t i = 0; i < figures.memory.size(); ++i) {
      const MemorySample& m = figures.memory[i];
      const double from = axis.x(m.at);
      const double to = i + 1 < figures.memory.size() ? axis.x(figures.memory[i + 1].at) : left + inner;
      if (to - from < 0.2 && from - last < 0.5) continue;  // nobody would see it
      last = from;
      upper += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", from, y(high(m)), to, y(high(m)));
      lower.insert(0, fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", to, y(low(m)), from, y(low(m))));
    }
    if (!upper.empty()) svg += fmt::format("<polygon fill=\"{}\" points=\"{}{}\"/>\n", colour, upper, lower);
  };
  area([](const MemorySample&) { return Bytes{}; }, [](const MemorySample& m) { return m.persistent; },
       colours[0]);
  area([](const MemorySample& m) { return m.persistent; },
       [](const MemorySample& m) { return m.persistent + m.ephemeral; }, colours[1]);
  svg += "<polyline fill=\"none\" stroke=\"#e15759\" stroke-dasharray=\"4 3\" points=\"";
  Bytes capacity;
  for (const MemorySample& m : figures.memory) {
    if (&m == &figures.memory.front()) capacity = m.capacity;
    if (m.capacity != capacity || &m == &figures.memory.front())
      svg +=
          fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", axis.x(m.at), y(capacity), axis.x(m.at), y(m.capacity));
    capacity = m.capacity;
  }
  svg += fmt::format("{:.1f},{:.1f}\"/>\n", left + inner, y(capacity));
  label(svg, top, "persistent", colours[0], 2);
  label(svg, top, "lanes", colours[1], 1);
  label(svg, top, "capacity", colours[3], 0);
}

}  // namespace

std::string to_svg(const workload::Jobs& jobs, std::string_view scheduler, const JobsFigures& figures) {
  TimeAxis axis{.first = figures.first};
  axis.seconds = std::max(1e-6, to_seconds(figures.last - figures.first));
  axis.minutes = axis.seconds > 600;
  std::string svg = opening(3 * (panel + gap) + 50);
  text(svg, left, 24, fmt::format("{} under {}, seed {}", jobs.name, scheduler, jobs.seed), "start", 16);
  completion_panel(svg, 60, jobs, figures);
  lanes_panel(svg, 60 + panel + gap, jobs, figures, axis);
  memory_panel(svg, 60 + 2 * (panel + gap), figures, axis);
  return svg + closing;
}

}  // namespace carillon::simulate
