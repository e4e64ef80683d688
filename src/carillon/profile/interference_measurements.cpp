#include "carillon/profile/interference_measurements.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "carillon/profile/json_fields.h"

namespace carillon::profile {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* format = "carillon-interference-1";

// A number of a file that belongs in an optional: its name, where it is kept, and the range that makes sense.
template <typename T>
struct MeasuredField {
  const char* name;
  std::optional<double> T::*value;
  double least, most;
  const char* meaning;
};

using Device = InterferenceMeasurements;
constexpr std::array device_fields = {
    MeasuredField<Device>{"P_max_power_W", &Device::max_power_w, 1e-3, 1e6, "watts"},
    MeasuredField<Device>{"F_max_frequency_MHz", &Device::max_frequency_mhz, 1e-3, 1e6, "megahertz"},
    MeasuredField<Device>{"p_idle_W", &Device::idle_power_w, 0, 1e6, "watts"},
    MeasuredField<Device>{"B_pcie_bytes_per_ms", &Device::pcie_bytes_per_ms, 1, 1e12,
                          "bytes per millisecond"},
    MeasuredField<Device>{"r_max_percent", &Device::max_share_pct, 0.01, 100, "percent"},
    MeasuredField<Device>{"r_unit_percent", &Device::share_unit_pct, 0.01, 100, "percent"},
};
constexpr MeasuredField<Device> price_field{"price_usd_per_hour", &Device::price_usd_per_hour, 0, 1e6,
                                            "US dollars per hour"};

constexpr std::array measured_model_fields = {
    MeasuredField<ModelMeasurements>{"d_load_bytes", &ModelMeasurements::load_bytes, 0, 1e12,
                                     "bytes of one request"},
    MeasuredField<ModelMeasurements>{"d_feedback_bytes", &ModelMeasurements::feedback_bytes, 0, 1e12,
                                     "bytes of one result"},
    MeasuredField<ModelMeasurements>{"n_kernels", &ModelMeasurements::kernels, 0, 1e7, "a number of kernels"},
    MeasuredField<ModelMeasurements>{"k_sch_times_n_kernels_ms", &ModelMeasurements::schedule_ms, 0, 1e6,
                                     "milliseconds"},
};

constexpr MeasuredField<SoloSample> power_field{"power_W", &SoloSample::power_w, 0, 1e6, "watts"};
constexpr MeasuredField<SoloSample> frequency_field{"frequency_MHz", &SoloSample::frequency_mhz, 1e-3, 1e6,
                                                    "megahertz"};
constexpr MeasuredField<SoloSample> cache_field{"l2_pct", &SoloSample::cache_pct, 0, 1e4,
                                                "percent of peak cache use"};
constexpr MeasuredField<GrowthSample> growth_frequency{"frequency_MHz", &GrowthSample::frequency_mhz, 1e-3,
                                                       1e6, "megahertz"};
constexpr std::array run_fields = {
    MeasuredField<ColocatedRun>{"power_W", &ColocatedRun::power_w, 0, 1e6, "watts"},
    MeasuredField<ColocatedRun>{"frequency_MHz", &ColocatedRun::frequency_mhz, 1e-3, 1e6, "megahertz"},
};
constexpr std::array series_fields = {
    MeasuredField<SeriesSample>{"power_W", &SeriesSample::power_w, 0, 1e6, "watts"},
    MeasuredField<SeriesSample>{"frequency_MHz", &SeriesSample::frequency_mhz, 1e-3, 1e6, "megahertz"},
    MeasuredField<SeriesSample>{"scheduling_delay_per_kernel_ms", &SeriesSample::schedule_per_kernel_ms, 0,
                                1e6, "milliseconds"},
};
constexpr MeasuredField<Member> delay_field{"scheduling_ms", &Member::schedule_ms, 0, 1e9, "milliseconds"};

// Reads one document. Everything is remembered in the measurements at once; on an error the caller drops
// them.
class MeasurementsReader {
 public:
  MeasurementsReader(std::string_view where, InterferenceMeasurements& into) : fields_(where), into_(into) {}

  Result<> read(const json& document) {
    if (document.is_object() && document.contains("format")) {
      own(document);
    } else if (document.is_object() && document.contains("fit_samples")) {
      published_samples(document);
    } else if (document.is_object() && document.contains("hardware_coefficients")) {
      published_hardware(document);
    } else if (document.is_object() && document.contains("models")) {
      published_models(document);
    } else {
      fields_.wrong("document", std::string("is no file of measurements: it should be an object with "
                                            "\"format\": \"") +
                                    format +
                                    "\", or with one of \"fit_samples\", \"hardware_coefficients\" and "
                                    "\"models\" as in profiles/igniter");
    }
    if (fields_.failed()) return fields_.error();
    return {};
  }

 private:
  template <typename T>
  void optional(const json& object, const std::string& place, const MeasuredField<T>& field, T& into) {
    const json* value = fields_.field(object, place, field.name, false);
    // The published files say null for what is not known.
    if (value == nullptr || value->is_null() || (into.*field.value).has_value()) return;
    into.*field.value = fields_.number(object, place, field.name, field.least, field.most, field.meaning);
  }

  int whole(const json& object, const std::string& place, const char* name, int most, const char* meaning) {
    const double read = fields_.number(object, place, name, 1, most, meaning);
    if (read != static_cast<int>(read))
      fields_.wrong(JsonFields::at(place, name),
                    std::string("is not a whole number, but should be ") + meaning);
    return static_cast<int>(read);
  }
  int batch(const json& object, const std::string& place) {
    return whole(object, place, "batch", 65'536, "a batch size");
  }
  double share(const json& object, const std::string& place) {
    return fields_.number(object, place, "r_pct", 1e-3, 100, "percent of the device");
  }
  double time(const json& object, const std::string& place, const char* name) {
    return fields_.number(object, place, name, 1e-6, 1e9, "milliseconds");
  }

  // Calls `each` with every object of a list and its place.
  template <typename Function>
  void list(const json& parent, const std::string& place, const char* name, bool required, Function each) {
    const json& array = fields_.array(parent, place, name, required);
    const std::string path = place == "document" ? name : JsonFields::at(place, name);
    for (std::size_t i = 0; i < array.size() && !fields_.failed(); ++i)
      each(array[i], JsonFields::at(path, i));
  }

  void device_name(const json& object, const char* name) {
    const std::string text = fields_.text(object, "document", name, false);
    if (into_.device.empty()) into_.device = text;
  }

  SoloSample solo(const json& object, const std::string& place) {
    SoloSample sample{
        batch(object, place), share(object, place), time(object, place, "gpu_latency_ms"), {}, {}, {}};
    for (const auto& field : {power_field, frequency_field, cache_field})
      optional(object, place, field, sample);
    return sample;
  }

  void own(const json& document) {
    if (const std::string read = fields_.text(document, "document", "format", true); read != format)
      return fields_.wrong("format", "is \"" + read + "\", but should be \"" + format + "\"");
    const json& device = fields_.object(document, "document", "device", false);
    if (const std::string name = fields_.text(device, "device", "name", false); into_.device.empty())
      into_.device = name;
    optional(device, "device", price_field, into_);
    for (const auto& field : device_fields) optional(device, "device", field, into_);
    for (const auto& [name, object] : fields_.object(document, "document", "models", false).items()) {
      const std::string place = JsonFields::at("models", name);
      ModelMeasurements& model = into_.models[name];
      for (const auto& field : measured_model_fields) optional(object, place, field, model);
      list(object, place, "solo", false,
           [&](const json& each, const std::string& at) { model.solo.push_back(solo(each, at)); });
      list(object, place, "growth", false, [&](const json& each, const std::string& at) {
        GrowthSample sample{time(each, at, "active_time_alone_ms"),
                            time(each, at, "active_time_together_ms"),
                            fields_.number(each, at, "others_l2_pct", 0, 1e4, "percent of peak cache use"),
                            {}};
        optional(each, at, growth_frequency, sample);
        model.growth.push_back(sample);
      });
    }
    list(document, "document", "colocated", false,
         [&](const json& each, const std::string& at) { colocated(each, at); });
    list(document, "document", "series", false, [&](const json& each, const std::string& at) {
      SeriesSample sample;
      sample.workloads = whole(each, at, "workloads", 1000, "a number of workloads");
      for (const auto& field : series_fields) optional(each, at, field, sample);
      into_.series.push_back(sample);
    });
    checks(document, "checks", false);
    const json& missing = fields_.array(document, "document", "not_measured", false);
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (!missing[i].is_string())
        return fields_.wrong(JsonFields::at("not_measured", i),
                             "is not a string, but should say what is missing");
      into_.not_measured.push_back(missing[i]);
    }
  }

  void colocated(const json& object, const std::string& place) {
    ColocatedRun run;
    for (const auto& field : run_fields) optional(object, place, field, run);
    list(object, place, "members", true, [&](const json& each, const std::string& at) {
      Member member{fields_.text(each, at, "model", true),
                    batch(each, at),
                    share(each, at),
                    time(each, at, "gpu_latency_ms"),
                    {}};
      optional(each, at, delay_field, member);
      run.members.push_back(std::move(member));
    });
    if (!fields_.failed() && run.members.size() < 2)
      fields_.wrong(JsonFields::at(place, "members"), "should hold at least two models that ran together");
    into_.colocated.push_back(std::move(run));
  }

  // A list of numbers in [least, most].
  std::vector<double> numbers(const json& object, const std::string& place, const char* name, double least,
                              double most, const char* meaning) {
    std::vector<double> read;
    const json& array = fields_.array(object, place, name, true);
    const std::string path = JsonFields::at(place, name);
    for (std::size_t i = 0; i < array.size() && !fields_.failed(); ++i) {
      // As a field of an object, for the same check and the same words.
      const std::string key = "[" + std::to_string(i) + "]";
      read.push_back(fields_.number(json{{key, array[i]}}, path, key, least, most, meaning));
    }
    return read;
  }

  void checks(const json& document, const char* name, bool required) {
    list(document, "document", name, required, [&](const json& each, const std::string& at) {
      CheckRun run;
      const json& names = fields_.array(each, at, "models", true);
      for (const json& model : names) {
        if (!model.is_string())
          return fields_.wrong(JsonFields::at(at, "models"), "should hold models' names");
        run.models.push_back(model);
      }
      for (const double size : numbers(each, at, "batches", 1, 65'536, "a batch size")) {
        if (size != std::floor(size))
          fields_.wrong(JsonFields::at(at, "batches"), "should hold whole numbers");
        run.batches.push_back(static_cast<int>(size));
      }
      run.share_pct = numbers(each, at, "r_pct", 1e-3, 100, "percent of the device");
      run.latency_ms = numbers(each, at, "latency_ms", 1e-6, 1e9, "milliseconds");
      const std::size_t count = run.models.size();
      if (!fields_.failed() && (count == 0 || run.batches.size() != count || run.share_pct.size() != count ||
                                run.latency_ms.size() != count))
        fields_.wrong(at,
                      "\"models\", \"batches\", \"r_pct\" and \"latency_ms\" should have one entry for "
                      "each model");
      into_.checks.push_back(std::move(run));
    });
  }

  void published_samples(const json& document) {
    device_name(document, "gpu");
    const json& samples = fields_.object(document, "document", "fit_samples", true);
    for (const auto& [name, object] : samples.items()) {
      const std::string place = JsonFields::at("fit_samples", name);
      std::vector<SoloSample> grid;
      list(object, place, "grid", true,
           [&](const json& each, const std::string& at) { grid.push_back(solo(each, at)); });
      list(object, place, "l2_utilization", false, [&](const json& each, const std::string& at) {
        const int size = batch(each, at);
        const double part = share(each, at);
        SoloSample* match = nullptr;
        for (SoloSample& sample : grid)
          if (sample.batch == size && sample.share_pct == part) match = &sample;
        if (match == nullptr)
          return fields_.wrong(at, "has a batch and a share that no sample of \"grid\" has");
        optional(each, at, cache_field, *match);
      });
      auto& into = into_.models[name].solo;
      into.insert(into.end(), grid.begin(), grid.end());
    }
    checks(document, "pair_samples", false);
  }

  void published_models(const json& document) {
    device_name(document, "gpu");
    for (const auto& [name, object] : fields_.object(document, "document", "models", true).items()) {
      const std::string place = JsonFields::at("models", name);
      ModelMeasurements& model = into_.models[name];
      const json& coefficients = fields_.object(object, place, "coefficients", true);
      for (const auto& field : measured_model_fields)
        optional(coefficients, JsonFields::at(place, "coefficients"), field, model);
      if (!object.contains("pair_measurement") || fields_.failed()) continue;
      const std::string at = JsonFields::at(place, "pair_measurement");
      const json& pair = fields_.object(object, place, "pair_measurement", true);
      model.growth.push_back(
          {time(pair, at, "active_time_alone_ms"), time(pair, at, "active_time_two_ms"),
           fields_.number(pair, at, "l2_utilization_pct", 0, 1e4, "percent of peak cache use"),
           fields_.number(pair, at, "frequency_two_MHz", 1e-3, 1e6, "megahertz")});
    }
  }

  void published_hardware(const json& document) {
    device_name(document, "gpu");
    optional(document, "document", price_field, into_);
    const json& object = fields_.object(document, "document", "hardware_coefficients", true);
    for (const auto& field : device_fields) optional(object, "hardware_coefficients", field, into_);
    const std::string place = "raw_measurements";
    const json& raw = fields_.object(document, "document", place, false);
    if (raw.empty()) return;
    // "n_colocated_" and the model's name.
    std::string counted;
    for (const auto& [key, value] : raw.items())
      if (key.starts_with("n_colocated")) counted = key;
    if (counted.empty())
      return fields_.wrong(place, "has no \"n_colocated_MODEL\" with the numbers of workloads");
    const auto workloads = numbers(raw, place, counted.c_str(), 1, 1000, "a number of workloads");
    const auto power = numbers(raw, place, "total_power_W", 0, 1e6, "watts");
    const auto frequency = numbers(raw, place, "frequency_MHz", 1e-3, 1e6, "megahertz");
    const auto delay = numbers(raw, place, "scheduling_delay_per_kernel_ms", 0, 1e6, "milliseconds");
    if (fields_.failed()) return;
    if (power.size() != workloads.size() || frequency.size() != workloads.size() ||
        delay.size() != workloads.size())
      return fields_.wrong(place, "should have lists of one length");
    for (std::size_t i = 0; i < workloads.size(); ++i)
      into_.series.push_back({static_cast<int>(workloads[i]), power[i], frequency[i], delay[i]});
  }

  JsonFields fields_;
  InterferenceMeasurements& into_;
};

template <typename T, typename Fields>
void write(ordered_json& object, const T& from, const Fields& fields) {
  for (const auto& field : fields)
    if (from.*field.value) object[field.name] = *(from.*field.value);
}

}  // namespace

Result<> add_measurements(std::string_view text, std::string_view where,
                          InterferenceMeasurements& measurements) {
  const auto document = parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  InterferenceMeasurements grown = measurements;
  if (auto read = MeasurementsReader(where, grown).read(*document); !read) return read;
  measurements = std::move(grown);
  return {};
}

Result<> add_measurements(const std::filesystem::path& file, InterferenceMeasurements& measurements) {
  const auto text = read_text(file, "a file of measurements");
  if (!text) return std::unexpected(text.error());
  return add_measurements(*text, file.string(), measurements);
}

std::string to_json(const InterferenceMeasurements& m) {
  ordered_json document;
  document["format"] = format;
  ordered_json& device = document["device"] = ordered_json::object();
  device["name"] = m.device;
  write(device, m, std::array{price_field});
  write(device, m, device_fields);
  ordered_json& models = document["models"] = ordered_json::object();
  for (const auto& [name, model] : m.models) {
    ordered_json& object = models[name] = ordered_json::object();
    write(object, model, measured_model_fields);
    object["solo"] = ordered_json::array();
    for (const SoloSample& s : model.solo) {
      ordered_json each = {{"batch", s.batch}, {"r_pct", s.share_pct}, {"gpu_latency_ms", s.gpu_ms}};
      write(each, s, std::array{power_field, frequency_field, cache_field});
      object["solo"].push_back(std::move(each));
    }
    for (const GrowthSample& s : model.growth) {
      ordered_json each = {{"active_time_alone_ms", s.alone_ms},
                           {"active_time_together_ms", s.together_ms},
                           {"others_l2_pct", s.others_cache_pct}};
      write(each, s, std::array{growth_frequency});
      object["growth"].push_back(std::move(each));
    }
  }
  for (const ColocatedRun& run : m.colocated) {
    ordered_json object = ordered_json::object();
    write(object, run, run_fields);
    for (const Member& member : run.members) {
      ordered_json each = {{"model", member.model},
                           {"batch", member.batch},
                           {"r_pct", member.share_pct},
                           {"gpu_latency_ms", member.gpu_ms}};
      write(each, member, std::array{delay_field});
      object["members"].push_back(std::move(each));
    }
    document["colocated"].push_back(std::move(object));
  }
  for (const SeriesSample& s : m.series) {
    ordered_json each = {{"workloads", s.workloads}};
    write(each, s, series_fields);
    document["series"].push_back(std::move(each));
  }
  for (const CheckRun& run : m.checks)
    document["checks"].push_back({{"models", run.models},
                                  {"batches", run.batches},
                                  {"r_pct", run.share_pct},
                                  {"latency_ms", run.latency_ms}});
  if (!m.not_measured.empty()) document["not_measured"] = m.not_measured;
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace carillon::profile
