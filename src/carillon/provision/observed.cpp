#include "carillon/provision/observed.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <nlohmann/json.hpp>

namespace carillon::provision {
namespace {

// The value of label `name` in `{a="b",c="d"}`; empty where it is missing. Quotes and backslashes in values
// are escaped there.
std::string label(std::string_view labels, std::string_view name) {
  std::string key = std::string(name) + "=\"";
  std::size_t at = 0;
  while ((at = labels.find(key, at)) != std::string_view::npos && at > 0 && labels[at - 1] != '{' &&
         labels[at - 1] != ',')
    ++at;
  std::string out;
  if (at == std::string_view::npos) return out;
  for (at += key.size(); at < labels.size() && labels[at] != '"'; ++at) {
    if (labels[at] == '\\' && at + 1 < labels.size()) {
      ++at;
      out += labels[at] == 'n' ? '\n' : labels[at];
    } else {
      out += labels[at];
    }
  }
  return out;
}

}  // namespace

Result<std::map<std::string, ObservedModel>> parse_metrics(std::string_view text, std::string_view where) {
  std::map<std::string, ObservedModel> models;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool rows = line.starts_with("carillon_rows_total{");
    if (!rows && !line.starts_with("carillon_slo_seconds{")) continue;
    const std::size_t close = line.rfind('}');
    if (close == std::string_view::npos) continue;
    const std::string number(line.substr(close + 1));
    const double value = std::strtod(number.c_str(), nullptr);
    const std::string model = label(line.substr(line.find('{'), close), "model");
    if (model.empty() || !(value >= 0) || !std::isfinite(value)) continue;
    if (rows)
      models[model].rows += value;
    else
      models[model].slo = from_seconds(std::min(value, 1e6));
  }
  if (models.empty())
    return invalid(std::string(where) +
                   ": tells no carillon_rows_total; it should be the metrics of a running 'carillon serve', "
                   "such as http://127.0.0.1:8002/metrics");
  return models;
}

Result<std::string> observed_workloads(const std::map<std::string, ObservedModel>& first,
                                       const std::map<std::string, ObservedModel>& second, double seconds,
                                       std::optional<Duration> slo) {
  auto workloads = nlohmann::ordered_json::array();
  for (const auto& [name, now] : second) {
    const auto before = first.find(name);
    const double came = now.rows - (before == first.end() ? 0 : before->second.rows);
    if (came < 0)
      return fail(ErrorCode::unavailable,
                  "the counter of model '" + name + "' went back: the server has started anew meanwhile");
    if (came == 0) continue;
    const std::optional<Duration> own = now.slo ? now.slo : slo;
    if (!own)
      return invalid("model '" + name +
                     "' has no SLO: give it the parameter slo_ms, or all such models one with "
                     "--slo-ms");
    workloads.push_back(
        {{"id", name}, {"model", name}, {"slo_ms", to_ms(*own)}, {"rate_rps", came / seconds}});
  }
  if (workloads.empty())
    return fail(ErrorCode::unavailable, "no request came in " + std::to_string(seconds) +
                                            " s, so there is no rate to plan for; look longer, or later");
  return nlohmann::ordered_json{{"workloads", workloads}}.dump(
      1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace carillon::provision
