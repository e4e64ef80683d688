#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "carillon/base/result.h"
#include "carillon/profile/interference_fit.h"

namespace carillon::cli {

// 'carillon profile --fit': the interference model's coefficients from files of measurements.
struct FitArguments {
  std::vector<std::string> files;
  std::string method = "robust";
  std::string out_coefficients;
  std::string out_hardware;
};

// --method, --out-coefficients and --out-hardware, which fits of new measurements take too.
void add_fit_options(CLI::App& command, FitArguments& arguments);

// Exit status. `json`: the fit as one object on standard output.
int fit_files(const FitArguments& arguments, bool json);

// Fits, writes the files that are asked for, and prints. Errors name what of the measurements was wrong.
Result<> fit_and_report(const profile::InterferenceMeasurements& measurements, const FitArguments& arguments,
                        bool json);

}  // namespace carillon::cli
