#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

// Finds the measurements that do not belong with the rest, whatever is fitted to them.
namespace carillon::profile {

// What a fit to some of the samples says about all of them: the predicted values, and how uncertain they are:
// the variance of a prediction in multiples of a sample's own (the sample's leverage, for those in the fit).
struct FitToSome {
  std::vector<double> predicted;
  std::vector<double> leverage;  // may be left empty unless asked for
};
using FitFunction = std::function<FitToSome(std::span<const std::size_t> samples, bool with_leverage)>;

// The samples that belong together, ascending. Least trimmed squares (Rousseeuw 1984) of the logarithms of
// predicted over measured: of all ways to leave some out, the one whose rest fits best; as few as bring the
// deviation to 6% or halve it. Where there are too many ways, the best of seeded tries to leave out as many
// as may be wrong. Then whoever lies within five deviations of what the rest predict comes back; a deviation
// is taken as 4% at least, since that much is a model's own misfit.
//
// At most half of the samples beyond the fit's `terms`, and a third of all, can be told to be wrong: with 9
// samples and 5 terms, two. Measured values should be > 0; one that is not is left out.
std::vector<std::size_t> belonging(std::span<const double> measured, std::size_t terms,
                                   const FitFunction& fit);

}  // namespace carillon::profile
