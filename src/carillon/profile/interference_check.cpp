#include <algorithm>
#include <cmath>
#include <numeric>

#include "carillon/profile/interference_fit.h"

namespace carillon::profile {
namespace {

ErrorSummary summary(std::vector<double>& errors) {
  std::ranges::sort(errors);
  ErrorSummary s{.samples = errors.size()};
  if (errors.empty()) return s;
  const auto rank = [&](double q) {
    return errors[static_cast<std::size_t>(
        std::max(0.0, std::ceil(q * static_cast<double>(errors.size())) - 1))];
  };
  s.mean = std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
  s.median = rank(0.5), s.p95 = rank(0.95), s.max = errors.back();
  return s;
}

}  // namespace

CheckErrors check_predictions(const CoefficientSet& coefficients, const HardwareCoefficients& hardware,
                              std::span<const CheckRun> checks) {
  std::vector<double> all;
  std::map<std::string, std::vector<double>> by_set, by_model;
  for (const CheckRun& run : checks) {
    std::vector<Resident> residents;
    std::string together;
    for (std::size_t i = 0; i < run.models.size(); ++i) {
      const auto found = coefficients.models.find(run.models[i]);
      if (found == coefficients.models.end()) break;
      residents.push_back({&found->second, run.batches[i], run.share_pct[i]});
      together += (i == 0 ? "" : " + ") + run.models[i];
    }
    if (residents.size() != run.models.size()) continue;
    const auto predictions = predict(hardware, residents);
    for (std::size_t i = 0; i < residents.size(); ++i) {
      const double error = std::abs(predictions[i].latency_ms / run.latency_ms[i] - 1);
      all.push_back(error);
      by_set[together].push_back(error);
      by_model[run.models[i]].push_back(error);
    }
  }
  CheckErrors errors{.all = summary(all), .by_set = {}, .by_model = {}};
  for (auto& [name, each] : by_set) errors.by_set[name] = summary(each);
  for (auto& [name, each] : by_model) errors.by_model[name] = summary(each);
  return errors;
}

}  // namespace carillon::profile
