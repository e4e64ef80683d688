#include <nlohmann/json.hpp>

#include "carillon/profile/interference_fit.h"

namespace carillon::profile {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const Goodness& g) {
  ordered_json object;
  object["samples"] = g.samples;
  if (g.samples == 0) return object;
  object["r2"] = g.r2 ? ordered_json(*g.r2) : ordered_json(nullptr);
  object["mean_error_pct"] = 100 * g.mean_error;
  object["max_error_pct"] = 100 * g.max_error;
  if (!g.outliers.empty()) object["outliers"] = g.outliers;
  return object;
}

ordered_json json_of(const ModelFit& fit) {
  return {{"time", json_of(fit.time)},
          {"power", json_of(fit.power)},
          {"cache", json_of(fit.cache)},
          {"growth", json_of(fit.growth)}};
}

ordered_json json_of(const ErrorSummary& e) {
  return {{"samples", e.samples},
          {"mean_error_pct", 100 * e.mean},
          {"median_error_pct", 100 * e.median},
          {"p95_error_pct", 100 * e.p95},
          {"max_error_pct", 100 * e.max}};
}

ordered_json json_of(const CheckErrors& checks) {
  ordered_json object = json_of(checks.all);
  for (const auto& [name, each] : checks.by_model) object["by_model"][name] = json_of(each);
  for (const auto& [name, each] : checks.by_set) object["by_set"][name] = json_of(each);
  return object;
}

ordered_json device_fit(const InterferenceFit& fit) {
  return {{"frequency", json_of(fit.frequency)}, {"scheduling", json_of(fit.scheduling)}};
}

ordered_json coefficients(const InterferenceFit& fit) {
  ordered_json document = ordered_json::parse(to_json(fit.coefficients));
  for (const auto& [name, model] : fit.models) document["models"][name]["fit"] = json_of(model);
  return document;
}

ordered_json hardware(const InterferenceFit& fit) {
  ordered_json document = ordered_json::parse(to_json(fit.hardware));
  document["fit"] = device_fit(fit);
  document["notes"] = fit.notes;
  return document;
}

std::string text_of(const ordered_json& document) {
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string coefficients_json(const InterferenceFit& fit) {
  return text_of(coefficients(fit)) + "\n";
}

std::string hardware_json(const InterferenceFit& fit) {
  return text_of(hardware(fit)) + "\n";
}

std::string to_json(const InterferenceFit& fit) {
  ordered_json document;
  document["coefficients"] = coefficients(fit);
  document["hardware"] = hardware(fit);
  document["checks"] = fit.checks.all.samples == 0 ? ordered_json(nullptr) : json_of(fit.checks);
  document["notes"] = fit.notes;
  return text_of(document);
}

}  // namespace carillon::profile
