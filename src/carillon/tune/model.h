#pragma once

#include <optional>
#include <span>
#include <string>

#include "carillon/base/result.h"

// How long a trial takes by its width: equation 3.2 of Fluid, and what follows from it.
namespace carillon::tune {

// A trial's time on `width` devices over its time alone on one device (equation 3.2): alpha^(1/width - 1)
// below 1, where 1/width trials share a device, and beta^(width - 1) / width from 1 on.
double height(double width, double alpha, double beta);

// k of a width of 1/k; 1 of whole devices.
int sharers_of(double width);

// c by equation 3.1 with T^p = alpha^(p - 1): the largest p, `most` at most, with
// 1 - (p - 1)/p * alpha > threshold for it and all before it. At least 1.
int packing_limit(double alpha, double threshold, int most);
// The same from measured times: times[p - 1] is the mean time of an iteration with p on a device.
int packing_limit(std::span<const double> times, double threshold, int most);

// d: the largest width, `most` at most, at which height() is still below that of one device fewer.
int scaling_limit(double beta, int most);

// Whether a file's alpha and beta can go with its c and d: alpha in [1, c/(c-1)), beta in [1, 1 + 1/d).
// Errors name the value and its range.
Result<> check_overheads(double alpha, double beta, std::optional<int> c, std::optional<int> d);

// A number in an error, as %g has it. (The Python package compiles this layer, and has no library for texts.)
std::string number_text(double value);

}  // namespace carillon::tune
