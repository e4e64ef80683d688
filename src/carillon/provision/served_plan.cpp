#include "carillon/provision/served_plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "carillon/profile/json_fields.h"

namespace carillon::provision {
namespace {

using nlohmann::json;
using profile::JsonFields;

constexpr std::size_t most_on_device = 1000;  // of one device
constexpr double standby_more_pct = 10;       // iGniter, section 4.2
constexpr double share_rounding = 1e-6;

ServedWorkload read_workload(JsonFields& fields, const json& object, const std::string& place) {
  ServedWorkload out;
  out.id = fields.text(object, place, "id", true);
  out.model = fields.text(object, place, "model", true);
  out.share_pct = fields.number(object, place, "share_pct", 1e-3, 100, "percent of the device");
  const double batch = fields.number(object, place, "batch", 1, 65'536, "requests");
  if (!fields.failed() && batch != std::floor(batch))
    fields.wrong(place + ".batch", "is not whole, but should be a number of requests");
  out.batch = static_cast<int>(batch);
  out.slo = from_ms(2 * fields.number(object, place, "half_slo_ms", 1e-3, 1e7, "milliseconds"));
  return out;
}

}  // namespace

Result<ServedDevice> parse_served_device(std::string_view text, std::string_view where,
                                         std::optional<int> number) {
  const auto document = profile::parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  const json& devices = fields.array(*document, "document", "devices", true);
  const json* chosen = nullptr;
  std::size_t index = 0;
  std::string numbers;
  for (std::size_t i = 0; i < devices.size() && !fields.failed(); ++i) {
    const double own =
        fields.number(devices[i], JsonFields::at("devices", i), "device", 1, 1e6, "the device's number");
    if (i < 20) numbers += (i == 0 ? "" : ", ") + std::to_string(static_cast<int>(own));
    if (number ? own == *number : devices.size() == 1) {
      chosen = &devices[i];
      index = i;
    }
  }
  if (!fields.failed() && chosen == nullptr) {
    if (devices.empty())
      fields.wrong("devices", "is empty, but should hold the device that this server is");
    else if (number)
      fields.wrong("devices", "has no device " + std::to_string(*number) + "; there is: " + numbers);
    else
      fields.wrong("devices", "has " + std::to_string(devices.size()) +
                                  " devices; say which of them this server is: " + numbers);
  }
  ServedDevice out;
  if (!fields.failed()) {
    const std::string place = JsonFields::at("devices", index);
    out.number = static_cast<int>((*chosen)["device"].get<double>());
    out.type = fields.text(*chosen, place, "type", false);
    const json& workloads = fields.array(*chosen, place, "workloads", true);
    if (!fields.failed() && (workloads.empty() || workloads.size() > most_on_device))
      fields.wrong(place + ".workloads",
                   "has " + std::to_string(workloads.size()) + " entries, but should have 1 to 1000");
    double sum = 0;
    std::set<std::string> models;
    for (std::size_t i = 0; i < workloads.size() && !fields.failed(); ++i) {
      const std::string here = JsonFields::at(place + ".workloads", i);
      ServedWorkload workload = read_workload(fields, workloads[i], here);
      if (!fields.failed() && !models.insert(workload.model).second)
        fields.wrong(here + ".model",
                     "is '" + workload.model +
                         "' like that of another workload of the device, but requests are "
                         "told apart by their models: give it a repository entry of its own");
      sum += workload.share_pct;
      out.workloads.push_back(std::move(workload));
    }
    if (!fields.failed() && sum > 100 + share_rounding)
      fields.wrong(place + ".workloads",
                   "have shares that sum to " + std::to_string(sum) + "%, but a device has 100%");
    const double left = std::max(0.0, 100 - sum);
    for (ServedWorkload& workload : out.workloads)
      if (left > share_rounding)
        workload.standby_share_pct = workload.share_pct + std::min(standby_more_pct, left);
  }
  if (fields.failed()) return fields.error();
  return out;
}

Result<ServedDevice> read_served_device(const std::filesystem::path& file, std::optional<int> number) {
  const auto text = profile::read_text(file, "a plan");
  if (!text) return std::unexpected(text.error());
  return parse_served_device(*text, file.string(), number);
}

}  // namespace carillon::provision
