#include "carillon/provision/plan_json.h"

#include <cmath>
#include <map>
#include <set>

#include "carillon/profile/json_fields.h"

namespace carillon::provision {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using profile::JsonFields;

constexpr std::size_t most_workloads = 100'000;

std::string known_models(std::span<const DeviceType> types) {
  std::set<std::string> names;
  for (const DeviceType& type : types)
    for (const auto& [name, model] : type.models.models) names.insert(name);
  std::string list;
  std::size_t told = 0;
  for (const std::string& name : names) {
    if (++told > 20) return list + ", ...";
    list += (list.empty() ? "" : ", ") + name;
  }
  return list;
}

// A share in percent, without what its binary form adds.
double to_percent(double share) {
  return std::round(share * 1e8) / 1e6;
}

// Infinity has no JSON.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json();
}

}  // namespace

Result<std::vector<Workload>> parse_workloads(std::string_view text, std::string_view where,
                                              std::span<const DeviceType> types) {
  const auto document = profile::parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  const json& list = fields.array(*document, "document", "workloads", true);
  if (!fields.failed() && list.empty())
    fields.wrong("workloads", "is empty, but should hold at least one workload");
  if (list.size() > most_workloads)
    fields.wrong("workloads",
                 "has " + std::to_string(list.size()) + " entries, but should have at most 100000");
  std::vector<Workload> workloads;
  std::map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < list.size() && !fields.failed(); ++i) {
    const std::string place = JsonFields::at("workloads", i);
    Workload workload;
    workload.id = fields.text(list[i], place, "id", true);
    workload.model = fields.text(list[i], place, "model", true);
    workload.slo_ms = fields.number(list[i], place, "slo_ms", 1e-3, 1e7, "milliseconds");
    workload.rate_rps = fields.number(list[i], place, "rate_rps", 1e-6, 1e9, "requests per second");
    if (fields.failed()) break;
    if (workload.id.empty()) fields.wrong(place + ".id", "is empty, but should name the workload");
    if (const auto [first, is_new] = seen.try_emplace(workload.id, i); !is_new)
      fields.wrong(place + ".id", "is '" + workload.id + "' like that of " +
                                      JsonFields::at("workloads", first->second) + ", but ids should differ");
    bool known = false;
    for (const DeviceType& type : types) known = known || type.find(workload.model) != nullptr;
    if (!known)
      fields.wrong(place + ".model",
                   "is '" + workload.model + "', but there are coefficients only of " + known_models(types));
    workloads.push_back(std::move(workload));
  }
  if (fields.failed()) return fields.error();
  return workloads;
}

Result<std::vector<Workload>> read_workloads(const std::filesystem::path& file,
                                             std::span<const DeviceType> types) {
  const auto text = profile::read_text(file, "a file of workloads");
  if (!text) return std::unexpected(text.error());
  return parse_workloads(*text, file.string(), types);
}

Result<Plan> parse_existing(std::string_view text, std::string_view where,
                            std::span<const Workload> workloads, std::span<const DeviceType> types,
                            std::size_t& removed) {
  const auto document = profile::parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  const json& list = fields.array(*document, "document", "devices", true);
  std::map<std::string, std::size_t> index;
  for (std::size_t w = 0; w < workloads.size(); ++w) index[workloads[w].id] = w;
  Plan plan;
  std::set<int> numbers;
  removed = 0;
  for (std::size_t d = 0; d < list.size() && !fields.failed(); ++d) {
    const std::string place = JsonFields::at("devices", d);
    PlannedDevice device;
    const double read = fields.number(list[d], place, "device", 1, 1e9, "a whole number");
    device.number = static_cast<int>(read);
    if (!fields.failed() && read != device.number)
      fields.wrong(place + ".device", "should be a whole number");
    if (!fields.failed() && !numbers.insert(device.number).second)
      fields.wrong(place + ".device", "is " + std::to_string(device.number) + " for the second time");
    const std::string name = fields.text(list[d], place, "type", true);
    std::string names;
    device.type = types.size();
    for (std::size_t t = 0; t < types.size(); ++t) {
      names += (t == 0 ? "'" : ", '") + types[t].hardware.name + "'";
      if (device.type == types.size() && types[t].hardware.name == name) device.type = t;
    }
    if (!fields.failed() && device.type == types.size())
      fields.wrong(place + ".type", "is '" + name + "', but the types given by --hardware are " + names);
    const json& placed = fields.array(list[d], place, "workloads", true);
    for (std::size_t i = 0; i < placed.size() && !fields.failed(); ++i) {
      const std::string id = fields.text(placed[i], JsonFields::at(place + ".workloads", i), "id", true);
      if (const auto found = index.find(id); found != index.end())
        device.placements.push_back({.workload = found->second});
      else
        ++removed;
    }
    if (!fields.failed()) plan.devices.push_back(std::move(device));
  }
  if (fields.failed()) return fields.error();
  return plan;
}

Result<Plan> read_existing(const std::filesystem::path& file, std::span<const Workload> workloads,
                           std::span<const DeviceType> types, std::size_t& removed) {
  const auto text = profile::read_text(file, "a plan as 'carillon plan --json' prints it");
  if (!text) return std::unexpected(text.error());
  return parse_existing(*text, file.string(), workloads, types, removed);
}

std::string to_json(const Plan& plan, std::span<const Workload> workloads, std::span<const DeviceType> types,
                    const PlanReport& report) {
  ordered_json document;
  document["strategy"] = report.strategy;
  ordered_json& devices = document["devices"] = ordered_json::array();
  for (const PlannedDevice& device : plan.devices) {
    const DeviceType& type = types[device.type];
    ordered_json object;
    object["device"] = device.number;
    object["type"] = type.hardware.name;
    object["price_usd_per_hour"] = type.hardware.price_usd_per_hour;
    object["used_pct"] = type.share_pct(device.units());
    ordered_json& placed = object["workloads"] = ordered_json::array();
    const auto forecasts = forecast(device, workloads, types);
    for (std::size_t i = 0; i < forecasts.size(); ++i) {
      const Placement& p = device.placements[i];
      const Workload& w = workloads[p.workload];
      placed.push_back({{"id", w.id},
                        {"model", w.model},
                        {"share_pct", type.share_pct(p.units)},
                        {"batch", p.batch},
                        {"rate_rps", p.rate_rps},
                        {"predicted_latency_ms", number(forecasts[i].latency_ms)},
                        {"half_slo_ms", w.half_slo_ms()},
                        {"predicted_rps", forecasts[i].throughput_rps}});
      if (p.expected) placed.back()["expected_on_time"] = p.expected->on_time;
      if (forecasts[i].violated) placed.back()["violated"] = true;
    }
    devices.push_back(std::move(object));
  }
  document["device_count"] = plan.devices.size();
  document["cost_usd_per_hour"] = cost_usd_per_hour(plan, types);
  document["predicted_violations"] = predicted_violations(plan, workloads, types);
  if (report.queue != nullptr) {
    document["arrivals"] = report.queue->arrivals.text;
    document["percentile"] = to_percent(report.queue->percentile);
    document["model_error_pct"] = to_percent(report.queue->model_error);
    ordered_json& expected = document["expected"] = ordered_json::array();
    for (const auto& [w, on_time] : expected_on_time(plan))
      expected.push_back({{"id", workloads[w].id}, {"slo_ms", workloads[w].slo_ms}, {"on_time", on_time}});
  }
  ordered_json& infeasible = document["infeasible"] = ordered_json::array();
  for (const Infeasible& left_out : plan.infeasible) {
    const Workload& w = workloads[left_out.workload];
    ordered_json object = {{"id", w.id},
                           {"model", w.model},
                           {"slo_ms", w.slo_ms},
                           {"rate_rps", w.rate_rps},
                           {"reason", left_out.reason}};
    object["smallest_slo_ms"] = left_out.smallest_slo_ms ? number(*left_out.smallest_slo_ms) : ordered_json();
    object["largest_rate_rps"] =
        left_out.largest_rate_rps ? number(*left_out.largest_rate_rps) : ordered_json();
    infeasible.push_back(std::move(object));
  }
  document["seconds"] = report.seconds;
  if (report.best != nullptr) {
    document["lower_bound_usd_per_hour"] = report.best->lower_bound_usd_per_hour;
    document["proven_cheapest"] = plan.proven_cheapest;
    document["greedy_usd_per_hour"] = report.best->greedy_usd_per_hour;
    document["stopped"] = report.best->stopped;
    if (report.changes)
      document["changes"] = {{"moved", report.best->moved},
                             {"added", report.best->added},
                             {"removed", report.removed},
                             {"devices_opened", report.best->opened},
                             {"devices_closed", report.best->closed}};
  }
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace carillon::provision
