#include "carillon/profile/fit_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "carillon/profile/outliers.h"

namespace carillon::profile {

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

Goodness goodness(std::span<const double> measured, std::span<const double> predicted) {
  Goodness g{.samples = measured.size()};
  if (measured.empty()) return g;
  const double mean = std::accumulate(measured.begin(), measured.end(), 0.0) / static_cast<double>(g.samples);
  double rest = 0, spread = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    rest += std::pow(predicted[i] - measured[i], 2);
    spread += std::pow(measured[i] - mean, 2);
    const double error = measured[i] == 0 ? 0 : std::abs(predicted[i] / measured[i] - 1);
    g.mean_error += error / static_cast<double>(g.samples);
    g.max_error = std::max(g.max_error, error);
  }
  if (spread > 0) g.r2 = 1 - rest / spread;
  return g;
}

Goodness goodness(std::span<const double> measured, std::span<const double> predicted,
                  std::span<const std::size_t> kept, const std::vector<std::string>& places,
                  const char* unit) {
  std::vector<double> m, p;
  for (const std::size_t i : kept) m.push_back(measured[i]), p.push_back(predicted[i]);
  Goodness g = goodness(m, p);
  for (std::size_t i = 0; i < measured.size(); ++i)
    if (!std::ranges::binary_search(kept, i))
      g.outliers.push_back(places[i] + ": " + short_number(measured[i]) + " " + unit + ", by the others " +
                           short_number(predicted[i]) + " " + unit);
  return g;
}

Line fit_line(std::span<const Point> points, FitMethod method, const std::vector<std::string>& places,
              const char* unit, double offset) {
  const auto fit = [&](std::span<const std::size_t> subset) {
    LinearSystem rising(2), level(1);
    for (const std::size_t i : subset) {
      rising.add(std::array{points[i].x, 1.0}, points[i].y);
      level.add(std::array{1.0}, points[i].y);
    }
    auto solution = rising.solve();
    if (method == FitMethod::robust && solution[0] < 0) solution = {0, level.solve()[0]};
    return solution;
  };
  const auto to_some = [&](std::span<const std::size_t> subset, bool) {
    const auto solution = fit(subset);
    FitToSome out;
    double mean = 0, spread = 0;
    for (const std::size_t i : subset) mean += points[i].x / static_cast<double>(subset.size());
    for (const std::size_t i : subset) spread += std::pow(points[i].x - mean, 2);
    for (const Point& p : points) {
      out.predicted.push_back(solution[0] * p.x + solution[1]);
      out.leverage.push_back(1 / static_cast<double>(subset.size()) +
                             (spread > 0 ? std::pow(p.x - mean, 2) / spread : 0));
    }
    return out;
  };
  std::vector<double> measured;
  for (const Point& p : points) measured.push_back(p.y);
  std::vector<std::size_t> kept(points.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  if (method == FitMethod::robust && points.size() >= 5) kept = belonging(measured, 2, to_some);
  const auto solution = fit(kept);
  Line line{.slope = solution[0], .start = solution[1], .fit = {}};
  std::vector<double> predicted;
  for (std::size_t i = 0; i < points.size(); ++i) {
    predicted.push_back(line.slope * points[i].x + line.start + offset);
    measured[i] += offset;
  }
  line.fit = goodness(measured, predicted, kept, places, unit);
  return line;
}

}  // namespace carillon::profile
