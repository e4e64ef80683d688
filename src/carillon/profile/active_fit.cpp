#include "carillon/profile/active_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "carillon/profile/least_squares.h"
#include "carillon/profile/outliers.h"

namespace carillon::profile {
namespace {

// The time of a batch is N(b) / (share + k4) + k5. N is written as start + early * e(x) + late * l(x) with
// x = b - 1, e = x - x^2 / 2L and l = x^2 / 2L: `start` is N(1), `early` and `late` are its slopes at b = 1
// and at b = 1 + L. So N is positive and grows up to 1 + L exactly if none of the three is below 0.
struct Shape {
  std::size_t batch_terms = 1;  // of start, early, late
  bool has_k4 = false, has_k5 = false;
  double reach = 1;  // L

  explicit Shape(std::span<const ActiveSample> samples) {
    std::set<int> batches;
    std::set<double> shares;
    for (const ActiveSample& s : samples) batches.insert(s.batch), shares.insert(s.share_pct);
    batch_terms = std::clamp<std::size_t>(batches.size(), 1, 3);
    has_k5 = shares.size() >= 2;
    has_k4 = shares.size() >= 3;
    // A little further than measured, so that the last batch size is surely before the turn.
    if (!batches.empty()) reach = std::max(1.0, 1.25 * (*batches.rbegin() - 1));
  }

  std::size_t linear_terms() const { return batch_terms + (has_k5 ? 1 : 0); }
  std::size_t terms() const { return linear_terms() + (has_k4 ? 1 : 0); }

  // The terms of a sample; of two batch terms the second is a straight line.
  std::array<double, 4> row(const ActiveSample& s, double k4) const {
    const double x = s.batch - 1, inverse = 1 / (s.share_pct + k4);
    const double square = batch_terms == 3 ? x * x / (2 * reach) : 0;
    std::array<double, 4> terms{};
    const std::array<double, 3> batch{1, x - square, square};
    for (std::size_t i = 0; i < batch_terms; ++i) terms[i] = batch[i] * inverse;
    if (has_k5) terms[batch_terms] = 1;
    return terms;
  }
};

struct Solution {
  double k4 = 0;
  std::vector<double> linear;
  double squares = std::numeric_limits<double>::infinity();
};

class Fitter {
 public:
  Fitter(std::span<const ActiveSample> samples, FitMethod method, double share_unit)
      : samples_(samples), method_(method), shape_(samples) {
    double least_share = 100;
    for (const ActiveSample& s : samples) least_share = std::min(least_share, s.share_pct);
    // Below that, a share has no time: the samples' least in the paper's fit, half a unit in ours.
    lowest_k4_ = method == FitMethod::robust ? -std::min(least_share, share_unit) / 2 : -0.95 * least_share;
    least_share_ = least_share;
  }

  const Shape& shape() const { return shape_; }

  Solution fit(std::span<const std::size_t> subset) const {
    if (!shape_.has_k4) return at(0, subset);
    // Even steps of the logarithm of what the least share is divided by.
    constexpr int steps = 64;
    const double low = std::log(least_share_ + lowest_k4_), high = std::log(least_share_ + 100);
    const auto k4_of = [&](double step) {
      return std::exp(low + (high - low) * step / steps) - least_share_;
    };
    Solution best;
    int at_step = 0;
    for (int i = 0; i <= steps; ++i)
      if (Solution s = at(k4_of(i), subset); s.squares < best.squares) best = std::move(s), at_step = i;
    // Golden section between its neighbours.
    constexpr double part = 0.6180339887498949;
    double a = std::max(0, at_step - 1), b = std::min(steps, at_step + 1);
    double left = b - part * (b - a), right = a + part * (b - a);
    Solution from_left = at(k4_of(left), subset), from_right = at(k4_of(right), subset);
    for (int i = 0; i < 40; ++i) {
      if (from_left.squares < from_right.squares) {
        b = right, right = left, from_right = std::move(from_left);
        left = b - part * (b - a);
        from_left = at(k4_of(left), subset);
      } else {
        a = left, left = right, from_left = std::move(from_right);
        right = a + part * (b - a);
        from_right = at(k4_of(right), subset);
      }
      for (const Solution& s : {from_left, from_right})
        if (s.squares < best.squares) best = s;
    }
    return best;
  }

  FitToSome to_some(std::span<const std::size_t> subset, bool with_leverage) const {
    const Solution solution = fit(subset);
    FitToSome out;
    for (const ActiveSample& s : samples_) out.predicted.push_back(predicted(solution, s));
    if (with_leverage) out.leverage = leverage(solution, subset);
    return out;
  }

  double predicted(const Solution& solution, const ActiveSample& s) const {
    const auto row = shape_.row(s, solution.k4);
    return std::inner_product(solution.linear.begin(), solution.linear.end(), row.begin(), 0.0);
  }

 private:
  double weight(const ActiveSample& s) const { return method_ == FitMethod::robust ? 1 / s.active_ms : 1; }

  Solution at(double k4, std::span<const std::size_t> subset) const {
    LinearSystem system(shape_.linear_terms());
    for (const std::size_t i : subset) {
      auto row = shape_.row(samples_[i], k4);
      for (double& each : row) each *= weight(samples_[i]);
      system.add(std::span(row).first(system.terms()), samples_[i].active_ms * weight(samples_[i]));
    }
    Solution solution{.k4 = k4,
                      .linear = method_ == FitMethod::robust ? system.solve_nonnegative() : system.solve()};
    solution.squares = system.squares(solution.linear);
    return solution;
  }

  // By the slopes of the predictions to all coefficients, k4 among them.
  std::vector<double> leverage(const Solution& solution, std::span<const std::size_t> subset) const {
    const auto slopes = [&](const ActiveSample& s) {
      const auto row = shape_.row(s, solution.k4);
      std::vector<double> all(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(shape_.linear_terms()));
      const double k5 = shape_.has_k5 ? solution.linear[shape_.batch_terms] : 0;
      if (shape_.has_k4) all.push_back(-(predicted(solution, s) - k5) / (s.share_pct + solution.k4));
      for (double& each : all) each *= weight(s);
      return all;
    };
    std::vector<double> out(samples_.size());
    // What sample k's noise of 1 does to every prediction.
    for (const std::size_t k : subset) {
      LinearSystem system(shape_.terms());
      for (const std::size_t i : subset) system.add(slopes(samples_[i]), i == k ? 1 : 0);
      const auto moved = system.solve();
      for (std::size_t i = 0; i < samples_.size(); ++i) {
        const auto slope = slopes(samples_[i]);
        const double by = std::inner_product(slope.begin(), slope.end(), moved.begin(), 0.0);
        out[i] += by * by;
      }
    }
    return out;
  }

  std::span<const ActiveSample> samples_;
  FitMethod method_;
  Shape shape_;
  double lowest_k4_ = 0, least_share_ = 100;
};

}  // namespace

ActiveFit fit_active(std::span<const ActiveSample> samples, FitMethod method, double share_unit_pct) {
  const Fitter fitter(samples, method, share_unit_pct);
  const Shape& shape = fitter.shape();
  ActiveFit fit{.terms = shape.terms()};
  if (method == FitMethod::robust) {
    std::vector<double> measured;
    for (const ActiveSample& s : samples) measured.push_back(s.active_ms);
    fit.kept =
        belonging(measured, fit.terms, [&](auto subset, bool with) { return fitter.to_some(subset, with); });
  } else {
    fit.kept.resize(samples.size());
    std::iota(fit.kept.begin(), fit.kept.end(), std::size_t{0});
  }
  const Solution solution = fitter.fit(fit.kept);
  const auto term = [&](std::size_t i) { return i < shape.batch_terms ? solution.linear[i] : 0; };
  fit.k4 = solution.k4;
  if (shape.has_k5) fit.k5 = solution.linear[shape.batch_terms];
  if (shape.batch_terms == 3) fit.k1 = (term(2) - term(1)) / (2 * shape.reach);
  fit.k2 = term(1) - 2 * fit.k1;
  fit.k3 = term(0) - term(1) + fit.k1;
  return fit;
}

}  // namespace carillon::profile
