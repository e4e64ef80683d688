#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/workload/scenario.h"

// The files that a scenario names: for the sources that read scenarios and jobs alone.
namespace carillon::workload {

// What is wrong with a file, thrown as far as the edge of reading a scenario.
struct Problem {
  std::string message;
};

// As open_to_read(); what is wrong is a Problem.
std::ifstream open_or_throw(std::string_view what, const std::filesystem::path& file);

// The cells of a CSV line; nothing is quoted.
std::vector<std::string> csv_cells(const std::string& line);
// A cell that is a number from 0 to 1e9; else a Problem that names file and line.
double csv_number(const std::string& cell, const std::filesystem::path& file, std::size_t line);

// A row of a profile CSV: columns alpha_ms, beta_ms, slo_ms, or exec_b<N>_ms; weights_MB, transfer_ms.
struct ProfileRow {
  std::string name;
  LatencyModel latency;
  std::optional<Duration> slo, load;
  std::optional<Bytes> weights;
};

// Throws a Problem that names file and line.
std::vector<ProfileRow> read_profile_csv(const std::filesystem::path& file);

// The functions of a trace, dealt over the models. Every function's requests of a minute are shared by the
// models that have it; fractions become whole requests by the seed, so that the mean rate is kept. Throws a
// Problem.
void deal_trace(Scenario& scenario, int functions_per_model, int spread_hottest, double skew);

}  // namespace carillon::workload
