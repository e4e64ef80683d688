#include "carillon/workload/scenario_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "carillon/base/files.h"
#include "carillon/base/random.h"

namespace carillon::workload {

std::ifstream open_or_throw(std::string_view what, const std::filesystem::path& file) {
  auto in = open_to_read(what, file);
  if (!in) throw Problem{in.error().message};
  return *std::move(in);
}

std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells;
  std::string cell;
  for (const char c : line) {
    if (c == ',') {
      cells.push_back(std::move(cell));
      cell.clear();
    } else if (c != '\r') {
      cell += c;
    }
  }
  cells.push_back(std::move(cell));
  return cells;
}

double csv_number(const std::string& cell, const std::filesystem::path& file, std::size_t line) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc{} || end != cell.data() + cell.size() || !std::isfinite(value) || value < 0 ||
      value > 1e9)
    throw Problem{file.string() + ":" + std::to_string(line) + ": '" + cell +
                  "' is not a number from 0 to 1e9"};
  return value;
}

std::vector<ProfileRow> read_profile_csv(const std::filesystem::path& file) {
  std::ifstream in = open_or_throw("the profile", file);
  std::string line;
  std::getline(in, line);
  const auto header = csv_cells(line);
  if (header.empty() || header[0] != "model")
    throw Problem{file.string() + ":1: the first column of a profile is 'model'"};
  std::vector<ProfileRow> rows;
  for (std::size_t n = 2; std::getline(in, line); ++n) {
    if (line.empty()) continue;
    const auto cells = csv_cells(line);
    if (cells.size() != header.size())
      throw Problem{file.string() + ":" + std::to_string(n) + ": " + std::to_string(cells.size()) +
                    " cells, but the header has " + std::to_string(header.size())};
    ProfileRow row{.name = cells[0], .latency = {}, .slo = {}, .load = {}, .weights = {}};
    for (std::size_t i = 1; i < cells.size(); ++i) {
      const std::string& column = header[i];
      if (cells[i].empty()) continue;  // not known
      if (column == "alpha_ms") {
        row.latency.alpha = from_ms(csv_number(cells[i], file, n));
        row.latency.linear = true;
      } else if (column == "beta_ms") {
        row.latency.beta = from_ms(csv_number(cells[i], file, n));
      } else if (column == "slo_ms") {
        row.slo = from_ms(csv_number(cells[i], file, n));
      } else if (column == "weights_MB") {
        row.weights = Bytes{static_cast<std::uint64_t>(csv_number(cells[i], file, n) * 1e6)};
      } else if (column == "transfer_ms") {
        row.load = from_ms(csv_number(cells[i], file, n));
      } else if (column.starts_with("exec_b") && column.ends_with("_ms")) {
        const double batch = csv_number(column.substr(6, column.size() - 9), file, 1);
        row.latency.table.emplace_back(static_cast<int>(batch), from_ms(csv_number(cells[i], file, n)));
      }
    }
    std::sort(row.latency.table.begin(), row.latency.table.end());
    if (!row.latency.linear && row.latency.table.empty())
      throw Problem{file.string() + ":1: a profile has the columns alpha_ms and beta_ms, or exec_b<N>_ms"};
    rows.push_back(std::move(row));
  }
  return rows;
}

void deal_trace(Scenario& scenario, int functions_per_model, int spread_hottest, double skew) {
  std::ifstream in = open_or_throw("the trace", scenario.trace);
  std::string line;
  std::getline(in, line);
  const auto header = csv_cells(line);
  std::size_t first = 0;
  while (first < header.size() &&
         (header[first].empty() || header[first].find_first_not_of("0123456789") != std::string::npos))
    ++first;
  const std::size_t minutes = header.size() - first;
  if (minutes == 0) throw Problem{scenario.trace.string() + ":1: no column is a minute (a number)"};
  const auto wanted = static_cast<std::size_t>((scenario.duration + std::chrono::minutes{1} - Duration{1}) /
                                               std::chrono::minutes{1});
  if (wanted > minutes)
    throw Problem{scenario.trace.string() + ": the trace has " + std::to_string(minutes) +
                  " minutes; the run may last at most " + std::to_string(60 * minutes) + " s"};
  std::vector<std::vector<double>> functions;
  for (std::size_t n = 2; std::getline(in, line); ++n) {
    if (line.empty()) continue;
    const auto cells = csv_cells(line);
    if (cells.size() != header.size())
      throw Problem{scenario.trace.string() + ":" + std::to_string(n) + ": the row has " +
                    std::to_string(cells.size()) + " cells, the header " + std::to_string(header.size())};
    std::vector<double> counts(wanted);
    for (std::size_t m = 0; m < wanted; ++m) counts[m] = csv_number(cells[first + m], scenario.trace, n);
    functions.push_back(std::move(counts));
    if (functions.size() > 1'000'000)
      throw Problem{scenario.trace.string() + ": more than a million functions"};
  }
  if (functions.empty()) throw Problem{scenario.trace.string() + ": no functions"};
  double total = 0;
  std::vector<double> sums;
  for (const auto& f : functions) {
    double sum = 0;
    for (const double c : f) sum += c;
    sums.push_back(sum);
    total += sum;
  }
  if (total <= 0)
    throw Problem{scenario.trace.string() + ": no requests in the first " + std::to_string(wanted) +
                  " minutes"};
  const double scale = scenario.rate > 0 ? scenario.rate * 60 * static_cast<double>(wanted) / total : 1;

  Random random(scenario.seed ^ 0x7ace7aceULL);
  const std::size_t count = scenario.models.size();
  std::vector<std::vector<std::size_t>> users(functions.size());
  std::vector<std::size_t> deck(functions.size());
  for (std::size_t i = 0; i < deck.size(); ++i) deck[i] = i;
  std::size_t next = deck.size();
  for (int k = 0; k < functions_per_model; ++k)
    for (std::size_t m = 0; m < count; ++m) {
      if (next == deck.size()) {
        for (std::size_t i = deck.size(); i > 1; --i) std::swap(deck[i - 1], deck[random.below(i)]);
        next = 0;
      }
      users[deck[next++]].push_back(m);
    }
  for (std::size_t f = 0; f < functions.size(); ++f) {
    // A hot function is spread further, in proportion to its part of all requests.
    const auto least = std::min<std::size_t>(
        count, static_cast<std::size_t>(
                   std::ceil(spread_hottest * sums[f] / *std::max_element(sums.begin(), sums.end()))));
    while (users[f].size() < std::max<std::size_t>(1, least)) users[f].push_back(random.below(count));
    std::sort(users[f].begin(), users[f].end());
    users[f].erase(std::unique(users[f].begin(), users[f].end()), users[f].end());
  }
  std::vector<std::vector<double>> expected(count, std::vector<double>(wanted));
  for (std::size_t f = 0; f < functions.size(); ++f) {
    // Which of its models has the most is as random as which models it has: they are shuffled once more.
    for (std::size_t i = users[f].size(); skew > 0 && i > 1; --i)
      std::swap(users[f][i - 1], users[f][random.below(i)]);
    double weights = 0;
    for (std::size_t i = 0; i < users[f].size(); ++i) weights += std::pow(static_cast<double>(i + 1), -skew);
    for (std::size_t i = 0; i < users[f].size(); ++i) {
      const double share = scale * std::pow(static_cast<double>(i + 1), -skew) / weights;
      for (std::size_t minute = 0; minute < wanted; ++minute)
        expected[users[f][i]][minute] += functions[f][minute] * share;
    }
  }
  for (std::size_t m = 0; m < count; ++m) {
    auto& counts = scenario.models[m].per_minute;
    counts.resize(wanted);
    for (std::size_t minute = 0; minute < wanted; ++minute) {
      const double whole = std::floor(expected[m][minute]);
      if (whole > 4e9) throw Problem{"the trace gives a model more than four billion requests a minute"};
      counts[minute] =
          static_cast<std::uint32_t>(whole) + (random.uniform() < expected[m][minute] - whole ? 1U : 0U);
    }
  }
}

}  // namespace carillon::workload
