#include <array>

#include "carillon/profile/interference.h"
#include "carillon/profile/json_fields.h"

namespace carillon::profile {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// A number of the file: its name, where it is kept, the range that makes sense, and what it is.
template <typename T>
struct Field {
  const char* name;
  double T::*value;
  double least, most;
  const char* meaning;
};

using Model = ModelCoefficients;
constexpr std::array model_fields = {
    Field<Model>{"d_load_bytes", &Model::load_bytes, 0, 1e12, "bytes of one request"},
    Field<Model>{"d_feedback_bytes", &Model::feedback_bytes, 0, 1e12, "bytes of one result"},
    Field<Model>{"n_kernels", &Model::kernels, 0, 1e7, "a number of kernels"},
    Field<Model>{"k_sch_times_n_kernels_ms", &Model::schedule_ms, 0, 1e6, "milliseconds"},
    Field<Model>{"k1", &Model::k1, -1e9, 1e9, "ms * percent per batch^2"},
    Field<Model>{"k2", &Model::k2, -1e9, 1e9, "ms * percent per batch"},
    Field<Model>{"k3", &Model::k3, -1e9, 1e9, "ms * percent"},
    Field<Model>{"k4", &Model::k4, -100, 1e6, "percent"},
    Field<Model>{"k5", &Model::k5, -1e6, 1e6, "milliseconds"},
    Field<Model>{"alpha_power_W_per_rps", &Model::alpha_power, -1e6, 1e6, "watts per request/s"},
    Field<Model>{"beta_power_W", &Model::beta_power, -1e6, 1e6, "watts"},
    Field<Model>{"alpha_cacheutil_pct_per_rps", &Model::alpha_cacheutil, -1e6, 1e6, "percent per request/s"},
    Field<Model>{"beta_cacheutil_pct", &Model::beta_cacheutil, -1e6, 1e6, "percent"},
    Field<Model>{"alpha_cache_per_pct", &Model::alpha_cache, 0, 1e3, "a growth per percent"},
};

using Hardware = HardwareCoefficients;
constexpr std::array hardware_fields = {
    Field<Hardware>{"P_max_power_W", &Hardware::max_power_w, 1e-3, 1e6, "watts"},
    Field<Hardware>{"F_max_frequency_MHz", &Hardware::max_frequency_mhz, 1e-3, 1e6, "megahertz"},
    Field<Hardware>{"p_idle_W", &Hardware::idle_power_w, 0, 1e6, "watts"},
    Field<Hardware>{"B_pcie_bytes_per_ms", &Hardware::pcie_bytes_per_ms, 1, 1e12, "bytes per millisecond"},
    Field<Hardware>{"alpha_f_MHz_per_W", &Hardware::alpha_f, -1e6, 0, "megahertz per watt"},
    Field<Hardware>{"alpha_sch_ms_per_kernel_per_workload", &Hardware::alpha_sch, -1e3, 1e3,
                    "milliseconds per kernel and workload"},
    Field<Hardware>{"beta_sch_ms_per_kernel", &Hardware::beta_sch, -1e3, 1e3, "milliseconds per kernel"},
};

constexpr const char* measured_batch = "largest_measured_batch";
constexpr int most_measured_batch = 65'536;

ModelCoefficients read_model(JsonFields& fields, const json& object, const std::string& place) {
  ModelCoefficients model;
  for (const auto& field : model_fields)
    model.*field.value = fields.number(object, place, field.name, field.least, field.most, field.meaning);
  model.measured_batch =
      static_cast<int>(fields.integer(object, place, measured_batch, 1, most_measured_batch, 0));
  // The least that a batch can take: a whole device, one request.
  if (!fields.failed() && !(active_ms(model, 1, 100) < std::numeric_limits<double>::infinity()))
    fields.wrong(place, "k1 to k5 give a batch of one on a whole device no time above 0");
  return model;
}

}  // namespace

Result<CoefficientSet> parse_coefficients(std::string_view text, std::string_view where) {
  const auto document = parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  CoefficientSet set;
  set.device = fields.text(*document, "document", "gpu", false);
  const json& models = fields.object(*document, "document", "models", true);
  if (!fields.failed() && models.empty()) fields.wrong("models", "is empty, but should hold a model's name");
  for (const auto& [name, model] : models.items()) {
    const std::string place = JsonFields::at("models", name);
    const json& coefficients = fields.object(model, place, "coefficients", true);
    set.models[name] = read_model(fields, coefficients, JsonFields::at(place, "coefficients"));
    if (fields.failed()) break;
  }
  if (fields.failed()) return fields.error();
  return set;
}

Result<HardwareType> parse_hardware(std::string_view text, std::string_view where) {
  const auto document = parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  HardwareType type;
  type.name = fields.text(*document, "document", "gpu", true);
  if (!fields.failed() && type.name.empty())
    fields.wrong("gpu", "is empty, but should name a type of device");
  type.price_usd_per_hour =
      fields.number(*document, "document", "price_usd_per_hour", 0, 1e6, "US dollars per hour");
  const std::string place = "hardware_coefficients";
  const json& object = fields.object(*document, "document", place, true);
  for (const auto& field : hardware_fields)
    type.coefficients.*field.value =
        fields.number(object, place, field.name, field.least, field.most, field.meaning);
  HardwareCoefficients& c = type.coefficients;
  c.max_share_pct = fields.number(object, place, "r_max_percent", 0.01, 100, "percent", 100);
  // At least 0.01: planners keep a table with an entry a unit.
  c.share_unit_pct = fields.number(object, place, "r_unit_percent", 0.01, c.max_share_pct, "percent",
                                   std::min(2.5, c.max_share_pct));
  if (fields.failed()) return fields.error();
  return type;
}

Result<CoefficientSet> read_coefficients(const std::filesystem::path& file) {
  const auto text = read_text(file, "a file of models' coefficients");
  if (!text) return std::unexpected(text.error());
  return parse_coefficients(*text, file.string());
}

Result<HardwareType> read_hardware(const std::filesystem::path& file) {
  const auto text = read_text(file, "a file of a device type's coefficients");
  if (!text) return std::unexpected(text.error());
  return parse_hardware(*text, file.string());
}

std::string to_json(const CoefficientSet& set) {
  ordered_json document;
  document["gpu"] = set.device;
  ordered_json& models = document["models"] = ordered_json::object();
  for (const auto& [name, model] : set.models) {
    ordered_json& coefficients = models[name]["coefficients"];
    for (const auto& field : model_fields) coefficients[field.name] = model.*field.value;
    if (model.measured_batch > 0) coefficients[measured_batch] = model.measured_batch;
  }
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string to_json(const HardwareType& type) {
  ordered_json document;
  document["gpu"] = type.name;
  ordered_json& coefficients = document["hardware_coefficients"];
  for (const auto& field : hardware_fields) coefficients[field.name] = type.coefficients.*field.value;
  coefficients["r_unit_percent"] = type.coefficients.share_unit_pct;
  coefficients["r_max_percent"] = type.coefficients.max_share_pct;
  document["price_usd_per_hour"] = type.price_usd_per_hour;
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace carillon::profile
