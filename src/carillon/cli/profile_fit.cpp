#include "carillon/cli/profile_fit.h"

#include <CLI/CLI.hpp>
#include <spdlog/fmt/fmt.h>

#include "carillon/base/files.h"
#include "carillon/cli/commands.h"

namespace carillon::cli {
namespace {

Result<> write(const std::string& file, const std::string& text, const char* option) {
  if (file.empty()) return {};
  if (auto written = write_file(file, text); !written) return in_context(option, written.error());
  fmt::print(stderr, "wrote {}\n", file);
  return {};
}

void print_row(const std::string& model, const char* quantity, const profile::Goodness& g) {
  if (g.samples == 0) {
    fmt::print("{:<20}{:<12}{:>8}\n", model, quantity, "-");
    return;
  }
  fmt::print("{:<20}{:<12}{:>8}{:>10}{:>9.2f}%{:>9.2f}%{:>10}\n", model, quantity, g.samples,
             g.r2 ? fmt::format("{:.4f}", *g.r2) : "-", 100 * g.mean_error, 100 * g.max_error,
             g.outliers.size());
}

void print(const profile::InterferenceFit& fit) {
  fmt::print("{:<20}{:<12}{:>8}{:>10}{:>10}{:>10}{:>10}\n", "model", "quantity", "samples", "R2", "mean err",
             "max err", "outliers");
  for (const auto& [name, model] : fit.models) {
    print_row(name, "time", model.time);
    print_row("", "power", model.power);
    print_row("", "cache", model.cache);
    print_row("", "growth", model.growth);
  }
  print_row("(device)", "frequency", fit.frequency);
  print_row("", "scheduling", fit.scheduling);
  for (const auto& [name, model] : fit.models)
    for (const auto* goodness : {&model.time, &model.power, &model.cache})
      for (const std::string& outlier : goodness->outliers) fmt::print("left out: {}: {}\n", name, outlier);
  if (const auto& checks = fit.checks; checks.all.samples > 0) {
    fmt::print("\n{:<32}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "checks: latency together", "samples", "mean err",
               "median", "P95", "max");
    const auto row = [](const std::string& name, const profile::ErrorSummary& e) {
      fmt::print("{:<32}{:>10}{:>9.2f}%{:>9.2f}%{:>9.2f}%{:>9.2f}%\n", name, e.samples, 100 * e.mean,
                 100 * e.median, 100 * e.p95, 100 * e.max);
    };
    for (const auto& [name, each] : checks.by_set) row(name, each);
    row("all", checks.all);
  }
  for (const std::string& note : fit.notes) fmt::print("note: {}\n", note);
}

}  // namespace

void add_fit_options(CLI::App& command, FitArguments& arguments) {
  command
      .add_option(
          "--method", arguments.method,
          "How to fit: robust (relative errors, without wild samples, within what can be), or igniter "
          "(the paper's plain least squares)")
      ->check(CLI::IsMember({"robust", "igniter"}))
      ->capture_default_str();
  command.add_option("--out-coefficients", arguments.out_coefficients,
                     "File to write with the models' coefficients; 'plan --coefficients' reads it");
  command.add_option("--out-hardware", arguments.out_hardware,
                     "File to write with the device's coefficients; 'plan --hardware' reads it");
}

Result<> fit_and_report(const profile::InterferenceMeasurements& measurements, const FitArguments& arguments,
                        bool json) {
  const auto method =
      arguments.method == "igniter" ? profile::FitMethod::igniter : profile::FitMethod::robust;
  const auto fit = profile::fit_interference(measurements, method);
  if (!fit) return std::unexpected(fit.error());
  if (auto done = write(arguments.out_coefficients, profile::coefficients_json(*fit), "--out-coefficients");
      !done)
    return done;
  if (auto done = write(arguments.out_hardware, profile::hardware_json(*fit), "--out-hardware"); !done)
    return done;
  if (json)
    fmt::print("{}\n", profile::to_json(*fit));
  else
    print(*fit);
  return {};
}

int fit_files(const FitArguments& arguments, bool json) {
  const auto complain = [](int status, const Error& error) {
    fmt::print(stderr, "carillon profile: {}\n", error.message);
    return status;
  };
  profile::InterferenceMeasurements measurements;
  for (const std::string& file : arguments.files)
    if (const auto read = profile::add_measurements(std::filesystem::path(file), measurements); !read)
      return complain(exit_usage, read.error());
  if (const auto done = fit_and_report(measurements, arguments, json); !done)
    return complain(done.error().code == ErrorCode::invalid_argument ? exit_usage : exit_failure,
                    in_context("--fit", done.error()).error());
  return exit_success;
}

}  // namespace carillon::cli
