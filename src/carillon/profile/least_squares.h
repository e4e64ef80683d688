#pragma once

#include <cstddef>
#include <span>
#include <vector>

// Small linear least squares, for fits of tens of measurements with a handful of terms.
namespace carillon::profile {

// Rows of terms and what they should sum to: minimise |A x - y|^2. Rows are weighted by the caller, by
// multiplying a row's terms and its value with the square root of its weight.
class LinearSystem {
 public:
  explicit LinearSystem(std::size_t terms) : terms_(terms) {}

  std::size_t terms() const { return terms_; }
  std::size_t rows() const { return values_.size(); }
  // `row` has terms() entries; all finite.
  void add(std::span<const double> row, double value);
  double term(std::size_t row, std::size_t column) const { return matrix_[row * terms_ + column]; }
  double value(std::size_t row) const { return values_[row]; }

  // |A x - y|^2
  double squares(std::span<const double> solution) const;

  // The solution of least squares (Gram-Schmidt, twice for accuracy). A term that depends on those before it
  // gets 0. O(rows * terms^2).
  std::vector<double> solve() const;
  // The same with no entry below 0 (Lawson and Hanson 1974, chapter 23). Finds the one minimum where the
  // terms are independent.
  std::vector<double> solve_nonnegative() const;

 private:
  // Over the columns that `used` holds, ascending; 0 elsewhere.
  std::vector<double> solve_over(std::span<const std::size_t> used) const;

  std::size_t terms_;
  std::vector<double> matrix_;  // row after row
  std::vector<double> values_;
};

// The solution of |x * ratio - y| summed over the points, weighted by |x|: the weighted median of the ratios,
// which a few wild points cannot move. Points with x = 0 say nothing; 0 where none says anything.
struct Point {
  double x = 0;
  double y = 0;
};
double median_ratio(std::span<const Point> points);

}  // namespace carillon::profile
