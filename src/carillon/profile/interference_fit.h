#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/profile/active_fit.h"
#include "carillon/profile/interference.h"
#include "carillon/profile/interference_measurements.h"

// The coefficients of the interference model from measurements (iGniter, section 3.1, "Obtaining Model
// Coefficients").
namespace carillon::profile {

// How well a line or curve meets what it was fitted to. Errors are |predicted / measured - 1|.
struct Goodness {
  std::size_t samples = 0;   // that belong, and were fitted to
  std::optional<double> r2;  // none where the samples do not differ
  double mean_error = 0;
  double max_error = 0;
  std::vector<std::string> outliers;  // "batch 16, share 50%: 103.2 ms, by the others 71.4 ms"
};

struct ModelFit {
  Goodness time;    // execution alone: equations 4, 5 and 11
  Goodness power;   // of the whole device, below its cap
  Goodness cache;   // use of the cache
  Goodness growth;  // active time beside others: equation 8
};

struct ErrorSummary {
  std::size_t samples = 0;
  double mean = 0, median = 0, p95 = 0, max = 0;  // of |predicted / measured - 1|
};

// Predicted against measured latencies: all, by the names of the models that ran together ("alexnet + ssd"),
// and by model.
struct CheckErrors {
  ErrorSummary all;
  std::map<std::string, ErrorSummary, std::less<>> by_set, by_model;
};

struct InterferenceFit {
  CoefficientSet coefficients;
  HardwareType hardware;
  std::map<std::string, ModelFit, std::less<>> models;
  Goodness frequency;   // equation 9, above the cap
  Goodness scheduling;  // equation 6, per kernel; or, where no delays were measured, times together (4 to 8)
  CheckErrors checks;
  std::vector<std::string> notes;  // what was not measured, and what that leaves out
};

// Fits all coefficients; what was not measured is left out of the model (its coefficients are 0, or as large
// as it takes) and noted. The robust method also leaves out samples that do not belong (outliers.h).
//
// Fails where there is no model with samples alone, where a model that ran with others has none, where
// samples are fewer than the terms that they should tell, and where plain least squares give a model no time.
//
// Where co-located runs tell scheduling delays (or a series does), the delays' line is fitted first, and then
// the growth by the cache from the active times. Where no run tells them, both are fitted together.
Result<InterferenceFit> fit_interference(const InterferenceMeasurements& measurements,
                                         FitMethod method = FitMethod::robust);

// Runs with a model that `coefficients` lacks are left out.
CheckErrors check_predictions(const CoefficientSet& coefficients, const HardwareCoefficients& hardware,
                              std::span<const CheckRun> checks);

// The two files that `carillon plan` reads (interference.h), with the goodness of fit beside the
// coefficients, and all of a fit as one object.
std::string coefficients_json(const InterferenceFit& fit);
std::string hardware_json(const InterferenceFit& fit);
std::string to_json(const InterferenceFit& fit);

}  // namespace carillon::profile
