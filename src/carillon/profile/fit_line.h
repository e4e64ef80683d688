#pragma once

#include <span>
#include <string>
#include <vector>

#include "carillon/profile/active_fit.h"
#include "carillon/profile/interference_fit.h"
#include "carillon/profile/least_squares.h"

// What the parts of the interference model's fit share. For its sources alone.
namespace carillon::profile {

std::string short_number(double value);  // four digits

Goodness goodness(std::span<const double> measured, std::span<const double> predicted);
// Over the samples that belong (`kept`, ascending), and the others as outliers, called by their places.
Goodness goodness(std::span<const double> measured, std::span<const double> predicted,
                  std::span<const std::size_t> kept, const std::vector<std::string>& places,
                  const char* unit);

struct Line {
  double slope = 0, start = 0;
  Goodness fit;
};
// y = slope * x + start, by plain least squares: what a reading of power or cache use is off by does not grow
// with it, and the high ones matter. The robust one does not fall, and leaves out what does not belong.
// `offset` is added to both sides where errors are told.
Line fit_line(std::span<const Point> points, FitMethod method, const std::vector<std::string>& places,
              const char* unit, double offset);

}  // namespace carillon::profile
