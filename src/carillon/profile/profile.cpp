#include "carillon/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "carillon/base/assert.h"
#include "carillon/base/files.h"
#include "carillon/base/statistics.h"
#include "carillon/profile/batch_line.h"
#include "carillon/profile/json_fields.h"

namespace carillon::profile {
namespace {

using nlohmann::json;

constexpr double longest_ms = 1e9;  // eleven days: any longer is a mistake, and stays far from overflow
constexpr int largest_batch = 65'536;
constexpr std::int64_t largest_length = std::int64_t{1} << 40;
constexpr int most_parts = 65'536;
constexpr std::size_t most_widths = 4'096;
constexpr std::int64_t largest_count = std::int64_t{1} << 53;

Duration milliseconds(JsonFields& reader, const json& object, const std::string& place,
                      const std::string& name, std::optional<Duration> otherwise = std::nullopt) {
  return from_ms(reader.number(object, place, name, 0, longest_ms, "milliseconds",
                               otherwise ? std::optional(to_ms(*otherwise)) : std::nullopt));
}

// `suffix` is "_ms" where the unit is in the fields' own names.
Times read_times(JsonFields& reader, const json& object, const std::string& place,
                 const std::string& suffix) {
  Times t;
  t.p50 = milliseconds(reader, object, place, "p50" + suffix);
  t.p99 = milliseconds(reader, object, place, "p99" + suffix);
  t.mean = milliseconds(reader, object, place, "mean" + suffix, t.p50);
  t.min = milliseconds(reader, object, place, "min" + suffix, std::min(t.p50, t.mean));
  t.max = milliseconds(reader, object, place, "max" + suffix, std::max(t.p99, t.mean));
  t.n = reader.integer(object, place, "n", 1, largest_count, 1);
  if (!reader.failed() && !(t.min <= t.p50 && t.p50 <= t.p99 && t.p99 <= t.max))
    reader.wrong(place, "is out of order: min <= p50 <= p99 <= max does not hold");
  if (!reader.failed() && !(t.min <= t.mean && t.mean <= t.max))
    reader.wrong(place, "has a mean outside of min..max");
  return t;
}

std::vector<BatchTimes> read_batches(JsonFields& reader, const json& object, const std::string& place) {
  std::vector<BatchTimes> out;
  const json& batches = reader.array(object, place, "batches", true);
  if (!reader.failed() && batches.empty())
    reader.wrong(place + ".batches", "is empty, but should hold one entry a batch size");
  for (std::size_t i = 0; i < batches.size() && !reader.failed(); ++i) {
    const std::string here = JsonFields::at(place + ".batches", i);
    BatchTimes entry;
    entry.batch = static_cast<int>(reader.integer(batches[i], here, "batch", 1, largest_batch));
    entry.exec = read_times(reader, batches[i], here, "_ms");
    if (!reader.failed() && !out.empty() && entry.batch <= out.back().batch)
      reader.wrong(here + ".batch", "is " + std::to_string(entry.batch) + " after " +
                                        std::to_string(out.back().batch) + ", but batch sizes should ascend");
    out.push_back(entry);
  }
  return out;
}

std::vector<Duration> read_by_width(JsonFields& reader, const json& kernel, const std::string& place) {
  std::vector<Duration> out;
  const json& widths = reader.array(kernel, place, "by_width_ms", false);
  if (widths.size() > most_widths)
    reader.wrong(place + ".by_width_ms", "has " + std::to_string(widths.size()) +
                                             " entries, but should have at most " +
                                             std::to_string(most_widths));
  for (std::size_t i = 0; i < widths.size() && !reader.failed(); ++i)
    out.push_back(from_ms(
        reader.number(widths[i], JsonFields::at(place + ".by_width_ms", i), 0, longest_ms, "milliseconds")));
  return out;
}

ModelProfile read_model_profile(JsonFields& reader, const json& object, const std::string& place) {
  ModelProfile model;
  model.name = reader.text(object, place, "name", true);
  if (!reader.failed() && model.name.empty())
    reader.wrong(place + ".name", "is empty, but should name a model");
  model.version = reader.integer(object, place, "version", 1, largest_count, 1);
  if (std::string precision = reader.text(object, place, "precision", false); !precision.empty())
    model.precision = std::move(precision);
  model.weights.count =
      static_cast<std::uint64_t>(reader.integer(object, place, "weights_bytes", 0, largest_count));
  if (const json* load = reader.field(object, place, "load_ms", true))
    model.load = read_times(reader, *load, place + ".load_ms", "");

  model.batches = read_batches(reader, object, place);
  const json& lengths = reader.array(object, place, "lengths", false);
  for (std::size_t i = 0; i < lengths.size() && !reader.failed(); ++i) {
    const std::string here = JsonFields::at(place + ".lengths", i);
    LengthTimes entry;
    entry.length = reader.integer(lengths[i], here, "length", 1, largest_length);
    entry.batches = read_batches(reader, lengths[i], here);
    if (!reader.failed() && !model.lengths.empty() && entry.length <= model.lengths.back().length)
      reader.wrong(here + ".length", "is " + std::to_string(entry.length) + " after " +
                                         std::to_string(model.lengths.back().length) +
                                         ", but lengths should ascend");
    model.lengths.push_back(std::move(entry));
  }

  const json& sizes = reader.array(object, place, "sizes", false);
  for (std::size_t i = 0; i < sizes.size() && !reader.failed(); ++i) {
    const std::string here = JsonFields::at(place + ".sizes", i);
    constexpr std::int64_t most = std::int64_t{1} << 60;
    SizeTimes entry;
    const json& extents = reader.array(sizes[i], here, "extents", true);
    for (const json& extent : extents) {
      if (!extent.is_number_integer() || extent.get<std::int64_t>() < 1) {
        reader.wrong(here + ".extents",
                     "is " + JsonFields::brief(extent.dump()) + ", but should be whole numbers from 1");
        break;
      }
      entry.extents.push_back(extent.get<std::int64_t>());
    }
    entry.row.operations = static_cast<std::uint64_t>(reader.integer(sizes[i], here, "operations", 0, most));
    entry.row.bytes = static_cast<std::uint64_t>(reader.integer(sizes[i], here, "bytes", 0, most));
    entry.batches = read_batches(reader, sizes[i], here);
    model.sizes.push_back(std::move(entry));
  }

  const json& kernels = reader.array(object, place, "kernels", false);
  for (std::size_t i = 0; i < kernels.size() && !reader.failed(); ++i) {
    const std::string here = JsonFields::at(place + ".kernels", i);
    KernelTimes entry;
    entry.batch = static_cast<int>(reader.integer(kernels[i], here, "batch", 1, largest_batch));
    entry.name = reader.text(kernels[i], here, "name", true);
    entry.mean = milliseconds(reader, kernels[i], here, "mean_ms");
    entry.length = reader.integer(kernels[i], here, "length", 0, largest_length, 0);
    entry.parts = static_cast<int>(reader.integer(kernels[i], here, "parts", 1, most_parts, 1));
    entry.by_width = read_by_width(reader, kernels[i], here);
    model.kernels.push_back(std::move(entry));
  }
  return model;
}

json times_object(const Times& t, const std::string& suffix) {
  return {{"p50" + suffix, to_ms(t.p50)}, {"p99" + suffix, to_ms(t.p99)}, {"mean" + suffix, to_ms(t.mean)},
          {"min" + suffix, to_ms(t.min)}, {"max" + suffix, to_ms(t.max)}, {"n", t.n}};
}

nlohmann::ordered_json batches_array(std::span<const BatchTimes> batches) {
  auto array = nlohmann::ordered_json::array();
  for (const BatchTimes& entry : batches) {
    nlohmann::ordered_json row;
    row["batch"] = entry.batch;
    row.update(nlohmann::ordered_json(times_object(entry.exec, "_ms")));
    array.push_back(std::move(row));
  }
  return array;
}

}  // namespace

Times summarize(std::span<Duration> measured) {
  CARILLON_ASSERT(!measured.empty());
  Times t;
  Duration sum{0};
  for (const Duration d : measured) sum += d;
  t.n = static_cast<std::int64_t>(measured.size());
  t.mean = sum / t.n;
  t.p50 = percentile(measured, 0.5);
  t.p99 = percentile(measured, 0.99);
  const auto [least, most] = std::minmax_element(measured.begin(), measured.end());
  t.min = *least;
  t.max = *most;
  return t;
}

const ModelProfile* DeviceProfile::find(std::string_view name) const {
  const ModelProfile* found = nullptr;
  for (const ModelProfile& model : models)
    if (model.name == name && (found == nullptr || model.version > found->version)) found = &model;
  return found;
}

Result<DeviceProfile> parse_profile(std::string_view text, std::string_view where) {
  const auto parsed = parse_json(text, where);
  if (!parsed) return std::unexpected(parsed.error());
  const json& document = *parsed;
  try {
    JsonFields reader(where);
    DeviceProfile profile;
    profile.device = reader.text(document, "profile", "device", true);
    profile.created = reader.text(document, "profile", "created", false);
    profile.carillon = reader.text(document, "profile", "carillon", false);
    profile.threads = static_cast<int>(reader.integer(document, "profile", "threads", 1, 65'536, 1));
    const json& models = reader.array(document, "profile", "models", true);
    std::set<std::pair<std::string, std::int64_t>> seen;
    for (std::size_t i = 0; i < models.size() && !reader.failed(); ++i) {
      const std::string place = JsonFields::at("models", i);
      ModelProfile model = read_model_profile(reader, models[i], place);
      if (!reader.failed() && !seen.insert({model.name, model.version}).second)
        reader.wrong(place, "is the second profile of model '" + model.name + "' version " +
                                std::to_string(model.version) + ", but there should be one");
      profile.models.push_back(std::move(model));
    }
    if (reader.failed()) return reader.error();
    return profile;
  } catch (const json::exception& error) {
    return invalid(std::string(where) + ": " + error.what());
  }
}

Result<DeviceProfile> read_profile(const std::filesystem::path& file) {
  const auto text = read_text(file, "a profile", 256);
  if (!text) return std::unexpected(text.error());
  return parse_profile(*text, file.string());
}

std::string to_json(const DeviceProfile& profile) {
  nlohmann::ordered_json document;
  document["device"] = profile.device;
  document["created"] = profile.created;
  document["carillon"] = profile.carillon;
  document["threads"] = profile.threads;
  auto& models = document["models"] = nlohmann::ordered_json::array();
  for (const ModelProfile& model : profile.models) {
    nlohmann::ordered_json object;
    object["name"] = model.name;
    object["version"] = model.version;
    object["precision"] = model.precision;
    object["weights_bytes"] = model.weights.count;
    object["load_ms"] = times_object(model.load, "");
    object["batches"] = batches_array(model.batches);
    if (!model.lengths.empty()) {
      auto& lengths = object["lengths"] = nlohmann::ordered_json::array();
      for (const LengthTimes& entry : model.lengths)
        lengths.push_back({{"length", entry.length}, {"batches", batches_array(entry.batches)}});
    }
    if (!model.sizes.empty()) {
      auto& sizes = object["sizes"] = nlohmann::ordered_json::array();
      for (const SizeTimes& entry : model.sizes)
        sizes.push_back({{"extents", entry.extents},
                         {"operations", entry.row.operations},
                         {"bytes", entry.row.bytes},
                         {"batches", batches_array(entry.batches)}});
    }
    if (!model.kernels.empty()) {
      auto& kernels = object["kernels"] = nlohmann::ordered_json::array();
      for (const KernelTimes& entry : model.kernels) {
        auto& kernel = kernels.emplace_back();
        kernel["batch"] = entry.batch;
        if (entry.length > 0) kernel["length"] = entry.length;
        kernel["name"] = entry.name;
        kernel["mean_ms"] = to_ms(entry.mean);
        kernel["parts"] = entry.parts;
        for (const Duration time : entry.by_width) kernel["by_width_ms"].push_back(to_ms(time));
      }
    }
    models.push_back(std::move(object));
  }
  return document.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<> write_profile(const DeviceProfile& profile, const std::filesystem::path& file) {
  auto part = file;
  part += ".part";
  if (const auto written = write_file(part, to_json(profile)); !written)
    return invalid(written.error().message);
  std::error_code failure;
  std::filesystem::rename(part, file, failure);
  if (failure) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    return fail(ErrorCode::invalid_argument, file.string() + ": cannot be replaced: " + failure.message());
  }
  return {};
}

Duration ModelProfile::exec_mean(int batch) const {
  return on_batch_line(batches, batch, &BatchTimes::batch, [](const BatchTimes& b) { return b.exec.mean; });
}

}  // namespace carillon::profile
