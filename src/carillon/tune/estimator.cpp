#include "carillon/tune/estimator.h"

#include <algorithm>
#include <cmath>

namespace carillon::tune {

void Estimator::Sums::add(double x_, double z_, double y_, double sign) {
  n += sign;
  x += sign * x_;
  z += sign * z_;
  y += sign * y_;
  xx += sign * x_ * x_;
  zz += sign * z_ * z_;
  xz += sign * x_ * z_;
  xy += sign * x_ * y_;
  zy += sign * z_ * y_;
  yy += sign * y_ * y_;
}

void Estimator::account(const Sums& t, double sign) {
  if (t.n <= 0) return;
  within_.n += sign * (t.n - 1);
  within_.xx += sign * (t.xx - t.x * t.x / t.n);
  within_.zz += sign * (t.zz - t.z * t.z / t.n);
  within_.xz += sign * (t.xz - t.x * t.z / t.n);
  within_.xy += sign * (t.xy - t.x * t.y / t.n);
  within_.zy += sign * (t.zy - t.z * t.y / t.n);
  within_.yy += sign * (t.yy - t.y * t.y / t.n);
  means_.add(t.x / t.n, t.z / t.n, t.y / t.n, sign);
}

void Estimator::add(const Sample& sample) {
  if (sample.trial >= trials_.size()) trials_.resize(sample.trial + 1);
  const double x = sample.company - 1, z = sample.width - 1;
  const double y = std::log(sample.seconds * sample.width * sample.speed);
  Sums& t = trials_[sample.trial];
  account(t, -1);
  t.add(x, z, y);
  account(t, 1);
  const auto put = [&](std::vector<Level>& levels, int at) {
    if (static_cast<std::size_t>(at) >= levels.size()) levels.resize(static_cast<std::size_t>(at) + 1);
    Level& level = levels[static_cast<std::size_t>(at)];
    level.n += 1;
    level.y += y;
    level.yy += y * y;
  };
  if (sample.width == 1) put(company_, sample.company);
  if (sample.company == 1) put(width_, sample.width);
  if (sample.company > 1) ++packed_;
  if (sample.width > 1) ++scaled_;
  stale_ = true;
}

void Estimator::forget(std::uint32_t trial) {
  if (trial < trials_.size()) trials_[trial] = {};
}

void Estimator::add_move(double seconds) {
  moves_ += 1;
  move_sum_ += seconds;
  move_squares_ += seconds * seconds;
}

// The slope of the levels' means over the levels, weighted by how many there are, with the error that the
// spread within levels gives.
Estimator::Slope Estimator::between(const std::vector<Level>& levels) {
  double n = 0, x = 0, y = 0, seen = 0, squares = 0;
  for (std::size_t k = 1; k < levels.size(); ++k) {
    const Level& l = levels[k];
    if (l.n == 0) continue;
    n += l.n;
    x += l.n * static_cast<double>(k);
    y += l.y;
    squares += l.yy - l.y * l.y / l.n;
    ++seen;
  }
  if (seen < 2) return {};
  double xx = 0, xy = 0;
  for (std::size_t k = 1; k < levels.size(); ++k) {
    const Level& l = levels[k];
    if (l.n == 0) continue;
    const double dx = static_cast<double>(k) - x / n;
    xx += l.n * dx * dx;
    xy += dx * (l.y - l.n * y / n);
  }
  const double noise = n > seen ? std::max(0.0, squares) / (n - seen) : 1;
  return {xy / xx, noise / xx, true};
}

const Estimator::Fit& Estimator::fit() const {
  if (!stale_) return fit_;
  stale_ = false;
  fit_ = {};
  // What rounding leaves of a sum that is 0.
  constexpr double nothing = 1e-9;
  const Sums& s = within_;
  const bool x = s.xx > nothing, z = s.zz > nothing;
  const double det = s.xx * s.zz - s.xz * s.xz;
  double explained = 0;
  if (x && z && det > nothing * s.xx * s.zz) {
    fit_.a = {(s.xy * s.zz - s.zy * s.xz) / det, s.zz / det, true};
    fit_.b = {(s.zy * s.xx - s.xy * s.xz) / det, s.xx / det, true};
    explained = fit_.a.value * s.xy + fit_.b.value * s.zy;
  } else if (x && z) {
    // Who had more devices had less company, always: which of the two made the difference is not known.
  } else if (x) {
    fit_.a = {s.xy / s.xx, 1 / s.xx, true};
    explained = fit_.a.value * s.xy;
  } else if (z) {
    fit_.b = {s.zy / s.zz, 1 / s.zz, true};
    explained = fit_.b.value * s.zy;
  }
  const double freedom = s.n - (fit_.a.known ? 1 : 0) - (fit_.b.known ? 1 : 0);
  fit_.noise = freedom >= 1 ? std::max(0.0, s.yy - explained) / freedom : 0;
  fit_.a.variance *= fit_.noise;
  fit_.b.variance *= fit_.noise;
  if (!fit_.a.known) fit_.a = between(company_);
  if (!fit_.b.known) fit_.b = between(width_);
  return fit_;
}

namespace {

Measured overhead(double log_value, double variance, bool known, std::uint64_t seen) {
  if (!known) return {};
  // Company and more devices never make an iteration's work less; what says so is noise.
  const double value = std::max(1.0, std::exp(log_value));
  return {value, value * std::sqrt(variance), seen, true};
}

}  // namespace

Measured Estimator::alpha() const {
  const Fit& f = fit();
  return overhead(f.a.value, f.a.variance, f.a.known, packed_);
}

Measured Estimator::beta() const {
  const Fit& f = fit();
  return overhead(f.b.value, f.b.variance, f.b.known, scaled_);
}

Measured Estimator::move() const {
  if (moves_ == 0) return {.value = 0};
  const double mean = move_sum_ / moves_;
  const double variance =
      moves_ > 1 ? std::max(0.0, move_squares_ - moves_ * mean * mean) / (moves_ - 1) : mean * mean;
  return {mean, std::sqrt(variance / moves_), static_cast<std::uint64_t>(moves_), true};
}

Measured Estimator::iteration(std::uint32_t trial) const {
  const Fit& f = fit();
  const double a = f.a.known ? std::max(0.0, f.a.value) : 0, b = f.b.known ? std::max(0.0, f.b.value) : 0;
  if (trial < trials_.size() && trials_[trial].n > 0) {
    const Sums& t = trials_[trial];
    const double x = t.x / t.n, z = t.z / t.n;
    const double tau = std::exp(t.y / t.n - a * x - b * z);
    const double variance = f.noise / t.n + x * x * f.a.variance + z * z * f.b.variance;
    return {tau, tau * std::sqrt(variance), static_cast<std::uint64_t>(t.n), true};
  }
  if (!(means_.n > 0.5)) return {};
  const double y = means_.y / means_.n;
  const double tau = std::exp(y - a * means_.x / means_.n - b * means_.z / means_.n);
  const double variance = means_.n > 1.5 ? std::max(0.0, means_.yy / means_.n - y * y) : 1;
  return {tau, tau * std::sqrt(variance), 0, true};
}

}  // namespace carillon::tune
