#include "carillon/profile/least_squares.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace carillon::profile {

void LinearSystem::add(std::span<const double> row, double value) {
  assert(row.size() == terms_);
  matrix_.insert(matrix_.end(), row.begin(), row.end());
  values_.push_back(value);
}

double LinearSystem::squares(std::span<const double> solution) const {
  double sum = 0;
  for (std::size_t i = 0; i < rows(); ++i) {
    double rest = -values_[i];
    for (std::size_t j = 0; j < terms_; ++j) rest += term(i, j) * solution[j];
    sum += rest * rest;
  }
  return sum;
}

std::vector<double> LinearSystem::solve() const {
  std::vector<std::size_t> all(terms_);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return solve_over(all);
}

std::vector<double> LinearSystem::solve_over(std::span<const std::size_t> used) const {
  const std::size_t n = rows(), m = used.size();
  std::vector<std::vector<double>> q(m, std::vector<double>(n));
  std::vector<double> r(m * m), rest = values_, projected(m);
  std::vector<bool> depends(m);
  const auto dot = [](std::span<const double> a, std::span<const double> b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  const auto take = [](std::vector<double>& from, double times, const std::vector<double>& what) {
    for (std::size_t i = 0; i < from.size(); ++i) from[i] -= times * what[i];
  };
  for (std::size_t j = 0; j < m; ++j) {
    for (std::size_t i = 0; i < n; ++i) q[j][i] = term(i, used[j]);
    const double length = std::sqrt(dot(q[j], q[j]));
    for (int pass = 0; pass < 2; ++pass)
      for (std::size_t k = 0; k < j; ++k) {
        if (depends[k]) continue;
        const double part = dot(q[k], q[j]);
        r[k * m + j] += part;
        take(q[j], part, q[k]);
      }
    const double left = std::sqrt(dot(q[j], q[j]));
    depends[j] = !(left > 1e-11 * length);
    if (depends[j]) continue;
    r[j * m + j] = left;
    for (double& x : q[j]) x /= left;
    projected[j] = dot(q[j], rest);
    take(rest, projected[j], q[j]);
  }
  std::vector<double> solution(terms_);
  for (std::size_t j = m; j-- > 0;) {
    if (depends[j]) continue;
    double x = projected[j];
    for (std::size_t k = j + 1; k < m; ++k) x -= r[j * m + k] * solution[used[k]];
    solution[used[j]] = x / r[j * m + j];
  }
  return solution;
}

std::vector<double> LinearSystem::solve_nonnegative() const {
  // Terms may differ by orders of magnitude: they are compared after scaling to length 1.
  std::vector<double> length(terms_);
  for (std::size_t j = 0; j < terms_; ++j) {
    for (std::size_t i = 0; i < rows(); ++i) length[j] += term(i, j) * term(i, j);
    length[j] = std::sqrt(length[j]);
  }
  const double size = std::sqrt(squares(std::vector<double>(terms_)));
  std::vector<double> x(terms_);
  std::vector<bool> in(terms_), barred(terms_);
  const auto used = [&] {
    std::vector<std::size_t> columns;
    for (std::size_t j = 0; j < terms_; ++j)
      if (in[j]) columns.push_back(j);
    return columns;
  };
  for (std::size_t round = 0; round < 10 * terms_ + 10; ++round) {
    // The term outside that would help most, by the slope of the squares.
    std::size_t best = terms_;
    double steepest = 1e-12 * size;
    for (std::size_t j = 0; j < terms_; ++j) {
      if (in[j] || barred[j] || length[j] == 0) continue;
      double slope = 0;
      for (std::size_t i = 0; i < rows(); ++i) {
        double rest = values_[i];
        for (std::size_t k = 0; k < terms_; ++k) rest -= term(i, k) * x[k];
        slope += term(i, j) * rest;
      }
      if (slope / length[j] > steepest) steepest = slope / length[j], best = j;
    }
    if (best == terms_) break;
    in[best] = true;
    std::vector<double> next = solve_over(used());
    // By rounding alone it may come out at 0: then it is of no use here.
    if (next[best] <= 0) {
      in[best] = false;
      barred[best] = true;
      continue;
    }
    while (true) {
      double step = 1;
      for (std::size_t j = 0; j < terms_; ++j)
        if (in[j] && next[j] <= 0) step = std::min(step, x[j] / (x[j] - next[j]));
      for (std::size_t j = 0; j < terms_; ++j) x[j] += step * (next[j] - x[j]);
      if (step >= 1) break;
      for (std::size_t j = 0; j < terms_; ++j)
        if (in[j] && next[j] <= 0 && x[j] <= 1e-14 * (std::abs(next[j]) + x[j])) in[j] = false, x[j] = 0;
      next = solve_over(used());
    }
    barred.assign(terms_, false);
  }
  for (double& each : x) each = std::max(0.0, each);
  return x;
}

double median_ratio(std::span<const Point> points) {
  std::vector<std::pair<double, double>> ratios;  // and their weights
  double total = 0;
  for (const Point& p : points) {
    if (p.x == 0) continue;
    ratios.emplace_back(p.y / p.x, std::abs(p.x));
    total += std::abs(p.x);
  }
  std::ranges::sort(ratios);
  double sum = 0;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    sum += ratios[i].second;
    if (sum > total / 2) return ratios[i].first;
    // Exactly half on each side: between the two.
    if (sum == total / 2 && i + 1 < ratios.size()) return (ratios[i].first + ratios[i + 1].first) / 2;
  }
  return ratios.empty() ? 0 : ratios.back().first;
}

}  // namespace carillon::profile
