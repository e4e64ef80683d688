#include "carillon/simulate/goodput.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>
#include <vector>

namespace carillon::simulate {

Goodput find_goodput(const workload::Scenario& scenario,
                     const std::function<std::unique_ptr<schedule::Scheduler>()>& make,
                     std::string_view scheduler, const GoodputOptions& options) {
  Goodput found;
  const auto run_at = [&](double rate) {
    workload::Scenario at = scenario;
    workload::set_rate(at, rate);
    const auto policy = make();
    Figures figures = run(at, *policy);
    return make_report(at, scheduler, figures);
  };
  double low = 0;
  std::optional<double> high;
  // Runs all rates, ascending; false where the user has had enough.
  const auto try_rates = [&](const std::vector<double>& rates) {
    std::vector<Report> reports(rates.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < rates.size(); ++i)
      threads.emplace_back([&, i] { reports[i] = run_at(rates[i]); });
    reports[0] = run_at(rates[0]);
    for (std::thread& t : threads) t.join();
    bool go_on = true;
    bool below = true;  // all rates so far passed
    for (std::size_t i = 0; i < rates.size(); ++i) {
      ++found.runs;
      const bool passed = reports[i].offered > 0 && reports[i].worst_finish_rate >= options.on_time_share;
      if (passed && below) {
        low = rates[i];
        found.rate = rates[i];
        found.report = std::move(reports[i]);
      } else if (below) {
        below = false;
        high = rates[i];
      }
      if (options.progress) go_on = options.progress(rates[i], passed, low, high.value_or(0)) && go_on;
    }
    return go_on;
  };
  const int jobs = std::max(1, options.jobs);
  double start = scenario.rate > 0 ? scenario.rate : 1;
  // Down to where it passes, or up to where it does not.
  bool go_on = try_rates({start});
  while (go_on && found.rate == 0 && start > 1e-3) {
    start /= 2;
    go_on = try_rates({start});
  }
  while (go_on && found.rate > 0 && !high) {
    if (low > 1e9) break;
    std::vector<double> rates;
    for (int i = 1; i <= jobs; ++i) rates.push_back(low * (1 + static_cast<double>(i) / jobs));
    go_on = try_rates(rates);
  }
  while (go_on && found.rate > 0 && high && *high > low * (1 + options.precision)) {
    std::vector<double> rates;
    for (int i = 1; i <= jobs; ++i) rates.push_back(low + (*high - low) * i / (jobs + 1));
    go_on = try_rates(rates);
  }
  found.interrupted = !go_on;
  if (found.rate > 0) {
    const double seconds = to_seconds(scenario.duration - scenario.warmup);
    double fewest = 1e18;
    for (const auto& m : found.report.models) fewest = std::min(fewest, m.offered_rps * seconds);
    found.fewest_requests = static_cast<std::uint64_t>(std::llround(fewest));
  }
  return found;
}

}  // namespace carillon::simulate
