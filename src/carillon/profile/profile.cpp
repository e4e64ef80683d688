#include "carillon/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "carillon/base/assert.h"
#include "carillon/base/statistics.h"
#include "carillon/profile/batch_line.h"

namespace carillon::profile {
namespace {

using nlohmann::json;

constexpr double longest_ms = 1e9;  // eleven days: any longer is a mistake, and stays far from overflow
constexpr int largest_batch = 65'536;
constexpr std::int64_t largest_length = std::int64_t{1} << 40;
constexpr std::uintmax_t largest_file = std::uintmax_t{256} << 20;
constexpr std::int64_t largest_count = std::int64_t{1} << 53;

// Walks a document; remembers the first thing that is wrong, and answers with zeros from then on.
class ProfileReader {
 public:
  explicit ProfileReader(std::string_view where) : where_(where) {}

  bool failed() const { return error_.has_value(); }
  std::unexpected<Error> error() const { return std::unexpected<Error>(*error_); }

  void wrong(const std::string& place, const std::string& what) {
    if (!error_) error_ = Error{ErrorCode::invalid_argument, where_ + ": " + place + ": " + what};
  }

  const json* field(const json& object, const std::string& place, const char* name, bool required) {
    if (failed()) return nullptr;
    if (!object.is_object()) {
      wrong(place, std::string("is ") + object.type_name() + ", but should be an object");
      return nullptr;
    }
    const auto found = object.find(name);
    if (found != object.end()) return &*found;
    if (required) wrong(place, std::string("has no \"") + name + "\"");
    return nullptr;
  }

  std::string text(const json& object, const std::string& place, const char* name, bool required) {
    const json* value = field(object, place, name, required);
    if (value == nullptr) return {};
    if (!value->is_string()) {
      wrong(place + "." + name, std::string("is ") + value->type_name() + ", but should be a string");
      return {};
    }
    return value->get<std::string>();
  }

  std::int64_t integer(const json& object, const std::string& place, const char* name, std::int64_t least,
                       std::int64_t most, std::optional<std::int64_t> otherwise) {
    const json* value = field(object, place, name, !otherwise);
    if (value == nullptr) return otherwise.value_or(least);
    const bool whole = value->is_number_integer() &&
                       !(value->is_number_unsigned() && value->get<std::uint64_t>() > (1ULL << 62));
    if (!whole || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
      wrong(place + "." + name, "is " + shown(*value) + ", but should be a whole number in " +
                                    std::to_string(least) + ".." + std::to_string(most));
      return least;
    }
    return value->get<std::int64_t>();
  }

  Duration milliseconds(const json& object, const std::string& place, const std::string& name,
                        std::optional<Duration> otherwise) {
    const json* value = field(object, place, name.c_str(), !otherwise);
    if (value == nullptr) return otherwise.value_or(Duration{0});
    if (!value->is_number() || !(value->get<double>() >= 0 && value->get<double>() <= longest_ms)) {
      wrong(place + "." + name, "is " + shown(*value) + ", but should be milliseconds in 0..1e9");
      return Duration{0};
    }
    return from_ms(value->get<double>());
  }

  const json& array(const json& object, const std::string& place, const char* name, bool required) {
    static const json none = json::array();
    const json* value = field(object, place, name, required);
    if (value == nullptr) return none;
    if (value->is_array()) return *value;
    wrong(place + "." + name, std::string("is ") + value->type_name() + ", but should be an array");
    return none;
  }

  // `suffix` is "_ms" where the unit is in the fields' own names.
  Times times(const json& object, const std::string& place, const std::string& suffix) {
    Times t;
    t.p50 = milliseconds(object, place, "p50" + suffix, std::nullopt);
    t.p99 = milliseconds(object, place, "p99" + suffix, std::nullopt);
    t.mean = milliseconds(object, place, "mean" + suffix, t.p50);
    t.min = milliseconds(object, place, "min" + suffix, std::min(t.p50, t.mean));
    t.max = milliseconds(object, place, "max" + suffix, std::max(t.p99, t.mean));
    t.n = integer(object, place, "n", 1, largest_count, 1);
    if (!failed() && !(t.min <= t.p50 && t.p50 <= t.p99 && t.p99 <= t.max))
      wrong(place, "is out of order: min <= p50 <= p99 <= max does not hold");
    if (!failed() && !(t.min <= t.mean && t.mean <= t.max)) wrong(place, "has a mean outside of min..max");
    return t;
  }

  static std::string shown(const json& value) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 37) + "...";
    return text;
  }

 private:
  std::string where_;
  std::optional<Error> error_;
};

std::string at(const std::string& place, std::size_t index) {
  return place + "[" + std::to_string(index) + "]";
}

std::vector<BatchTimes> read_batches(ProfileReader& reader, const json& object, const std::string& place) {
  std::vector<BatchTimes> out;
  const json& batches = reader.array(object, place, "batches", true);
  if (!reader.failed() && batches.empty())
    reader.wrong(place + ".batches", "is empty, but should hold one entry a batch size");
  for (std::size_t i = 0; i < batches.size() && !reader.failed(); ++i) {
    const std::string here = at(place + ".batches", i);
    BatchTimes entry;
    entry.batch = static_cast<int>(reader.integer(batches[i], here, "batch", 1, largest_batch, std::nullopt));
    entry.exec = reader.times(batches[i], here, "_ms");
    if (!reader.failed() && !out.empty() && entry.batch <= out.back().batch)
      reader.wrong(here + ".batch", "is " + std::to_string(entry.batch) + " after " +
                                        std::to_string(out.back().batch) + ", but batch sizes should ascend");
    out.push_back(std::move(entry));
  }
  return out;
}

ModelProfile read_model_profile(ProfileReader& reader, const json& object, const std::string& place) {
  ModelProfile model;
  model.name = reader.text(object, place, "name", true);
  if (!reader.failed() && model.name.empty())
    reader.wrong(place + ".name", "is empty, but should name a model");
  model.version = reader.integer(object, place, "version", 1, largest_count, 1);
  if (std::string precision = reader.text(object, place, "precision", false); !precision.empty())
    model.precision = std::move(precision);
  model.weights.count = static_cast<std::uint64_t>(
      reader.integer(object, place, "weights_bytes", 0, largest_count, std::nullopt));
  if (const json* load = reader.field(object, place, "load_ms", true))
    model.load = reader.times(*load, place + ".load_ms", "");

  model.batches = read_batches(reader, object, place);
  const json& lengths = reader.array(object, place, "lengths", false);
  for (std::size_t i = 0; i < lengths.size() && !reader.failed(); ++i) {
    const std::string here = at(place + ".lengths", i);
    LengthTimes entry;
    entry.length = reader.integer(lengths[i], here, "length", 1, largest_length, std::nullopt);
    entry.batches = read_batches(reader, lengths[i], here);
    if (!reader.failed() && !model.lengths.empty() && entry.length <= model.lengths.back().length)
      reader.wrong(here + ".length", "is " + std::to_string(entry.length) + " after " +
                                         std::to_string(model.lengths.back().length) +
                                         ", but lengths should ascend");
    model.lengths.push_back(std::move(entry));
  }

  const json& kernels = reader.array(object, place, "kernels", false);
  for (std::size_t i = 0; i < kernels.size() && !reader.failed(); ++i) {
    const std::string here = at(place + ".kernels", i);
    KernelTimes entry;
    entry.batch = static_cast<int>(reader.integer(kernels[i], here, "batch", 1, largest_batch, std::nullopt));
    entry.name = reader.text(kernels[i], here, "name", true);
    entry.mean = reader.milliseconds(kernels[i], here, "mean_ms", std::nullopt);
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
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) {
    return invalid(std::string(where) + ": not a JSON document: " + error.what());
  }
  try {
    ProfileReader reader(where);
    DeviceProfile profile;
    profile.device = reader.text(document, "profile", "device", true);
    profile.created = reader.text(document, "profile", "created", false);
    profile.carillon = reader.text(document, "profile", "carillon", false);
    profile.threads = static_cast<int>(reader.integer(document, "profile", "threads", 1, 65'536, 1));
    const json& models = reader.array(document, "profile", "models", true);
    std::set<std::pair<std::string, std::int64_t>> seen;
    for (std::size_t i = 0; i < models.size() && !reader.failed(); ++i) {
      const std::string place = at("models", i);
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
  std::error_code failure;
  if (!std::filesystem::is_regular_file(file, failure))
    return fail(ErrorCode::not_found, file.string() + ": no such profile file");
  const auto size = std::filesystem::file_size(file, failure);
  if (failure) return invalid(file.string() + ": cannot be read: " + failure.message());
  if (size > largest_file)
    return invalid(file.string() + ": has " + std::to_string(size) +
                   " bytes; a profile file of more than 256 MiB is surely something else");
  std::ifstream in(file, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(text.size())))
    return invalid(file.string() + ": cannot be read");
  return parse_profile(text, file.string());
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
    if (!model.kernels.empty()) {
      auto& kernels = object["kernels"] = nlohmann::ordered_json::array();
      for (const KernelTimes& entry : model.kernels)
        kernels.push_back({{"batch", entry.batch}, {"name", entry.name}, {"mean_ms", to_ms(entry.mean)}});
    }
    models.push_back(std::move(object));
  }
  return document.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<> write_profile(const DeviceProfile& profile, const std::filesystem::path& file) {
  auto part = file;
  part += ".part";
  {
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    if (!(out << to_json(profile)) || !out.flush())
      return fail(ErrorCode::invalid_argument,
                  part.string() + ": cannot be written; is its folder there, and may it be written to?");
  }
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

LinearFit fit_linear(std::span<const BatchTimes> batches) {
  CARILLON_ASSERT(!batches.empty());
  const auto n = static_cast<double>(batches.size());
  double mean_x = 0, mean_y = 0;
  for (const auto& b : batches) {
    mean_x += b.batch / n;
    mean_y += to_ms(b.exec.p50) / n;
  }
  double xx = 0, xy = 0, yy = 0;
  for (const auto& b : batches) {
    const double x = b.batch - mean_x, y = to_ms(b.exec.p50) - mean_y;
    xx += x * x;
    xy += x * y;
    yy += y * y;
  }
  if (xx == 0) return {.alpha_ms = mean_y / mean_x, .beta_ms = 0, .r2 = 1};
  const double alpha = xy / xx;
  const double residual = std::max(0.0, yy - alpha * xy);
  return {.alpha_ms = alpha, .beta_ms = mean_y - alpha * mean_x, .r2 = yy > 0 ? 1 - residual / yy : 1};
}

}  // namespace carillon::profile
