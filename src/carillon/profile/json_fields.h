#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/base/files.h"
#include "carillon/base/result.h"

namespace carillon::profile {

// Takes fields out of a JSON document and remembers the first thing that is wrong; from then on it answers
// with the least that is allowed, so that a reader may go on and look at failed() in the end. For sources of
// parsers only: no public header includes it.
class JsonFields {
 public:
  using json = nlohmann::json;

  // `where`: the file's name, for the errors.
  explicit JsonFields(std::string_view where) : where_(where) {}

  bool failed() const { return error_.has_value(); }
  std::unexpected<Error> error() const { return std::unexpected<Error>(*error_); }

  void wrong(const std::string& place, const std::string& what) {
    if (!error_) error_ = Error{ErrorCode::invalid_argument, where_ + ": " + place + ": " + what};
  }

  // The field of an object, or nullptr.
  const json* field(const json& object, const std::string& place, const std::string& name, bool required) {
    if (failed()) return nullptr;
    if (!object.is_object()) {
      wrong(place, std::string("is ") + object.type_name() + ", but should be an object");
      return nullptr;
    }
    const auto found = object.find(name);
    if (found != object.end()) return &*found;
    if (required) wrong(place, "has no \"" + name + "\"");
    return nullptr;
  }

  // Whatever is not among `names` is wrong: a misspelt field would pass for one left out.
  void only(const json& object, const std::string& place, std::initializer_list<std::string_view> names) {
    if (failed() || !object.is_object()) return;
    for (const auto& [name, value] : object.items()) {
      if (std::ranges::find(names, name) != names.end()) continue;
      std::string list;
      for (const std::string_view each : names) list.append(list.empty() ? "" : ", ").append(each);
      return wrong(place, "has " + shown(name) + ", which is none of its fields: " + list);
    }
  }

  std::string text(const json& object, const std::string& place, const std::string& name, bool required) {
    const json* value = field(object, place, name, required);
    if (value == nullptr) return {};
    if (!value->is_string()) {
      wrong(at(place, name), "is " + shown(*value) + ", but should be a string");
      return {};
    }
    return value->get<std::string>();
  }

  // A number in [least, most]; `meaning` names it in the error.
  double number(const json& object, const std::string& place, const std::string& name, double least,
                double most, const std::string& meaning, std::optional<double> otherwise = std::nullopt) {
    const json* value = field(object, place, name, !otherwise);
    if (value == nullptr) return otherwise.value_or(least);
    return number(*value, at(place, name), least, most, meaning);
  }

  // The same of a value that is at hand.
  double number(const json& value, const std::string& place, double least, double most,
                const std::string& meaning) {
    const double read = value.is_number() ? value.get<double>() : std::nan("");
    if (!(read >= least && read <= most)) {
      wrong(place, "is " + shown(value) + ", but should be " + meaning + " in " + short_of(least) + ".." +
                       short_of(most));
      return least;
    }
    return read;
  }

  // A whole number in [least, most].
  std::int64_t integer(const json& object, const std::string& place, const std::string& name,
                       std::int64_t least, std::int64_t most,
                       std::optional<std::int64_t> otherwise = std::nullopt) {
    const json* value = field(object, place, name, !otherwise);
    if (value == nullptr) return otherwise.value_or(least);
    const bool fits = value->is_number_unsigned() ? std::in_range<std::int64_t>(value->get<std::uint64_t>())
                                                  : value->is_number_integer();
    if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
      wrong(at(place, name), "is " + shown(*value) + ", but should be a whole number in " +
                                 std::to_string(least) + ".." + std::to_string(most));
      return least;
    }
    return value->get<std::int64_t>();
  }

  // An object or array, or an empty one of that kind.
  const json& object(const json& parent, const std::string& place, const std::string& name, bool required) {
    return container(parent, place, name, required, json::value_t::object);
  }
  const json& array(const json& parent, const std::string& place, const std::string& name, bool required) {
    return container(parent, place, name, required, json::value_t::array);
  }

  static std::string shown(const json& value) {
    return brief(value.dump(-1, ' ', true, json::error_handler_t::replace));
  }

  // For errors: whole, or its beginning.
  static std::string brief(std::string text) {
    if (text.size() > 40) text = text.substr(0, 37) + "...";
    return text;
  }

  static std::string at(const std::string& place, const std::string& name) {
    return place.empty() ? name : place + "." + name;
  }
  static std::string at(const std::string& place, std::size_t index) {
    return place + "[" + std::to_string(index) + "]";
  }

 private:
  const json& container(const json& parent, const std::string& place, const std::string& name, bool required,
                        json::value_t type) {
    static const json no_object = json::object(), no_array = json::array();
    const json& none = type == json::value_t::object ? no_object : no_array;
    const json* value = field(parent, place, name, required);
    if (value == nullptr) return none;
    if (value->type() == type) return *value;
    wrong(at(place, name),
          std::string("is ") + value->type_name() + ", but should be an " + none.type_name());
    return none;
  }

  static std::string short_of(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
  }

  std::string where_;
  std::optional<Error> error_;
};

// The document of a text, or an error that opens with `where`.
inline Result<nlohmann::json> parse_json(std::string_view text, std::string_view where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return invalid(std::string(where) + ": not a JSON document: " + error.what());
  }
}

// What a document may be, whatever its text's size.
struct JsonLimits {
  int depth = 16;                  // of objects and arrays within each other
  std::size_t values = 5'000'000;  // in all
};

// The same, where a name given twice in an object, or more than the limits allow, is an error, too.
inline Result<nlohmann::json> parse_json_strictly(std::string_view text, std::string_view where,
                                                  JsonLimits limits = {}) {
  using nlohmann::json;
  struct Refused {
    std::string why;
  };
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::size_t values = 0;
  const auto look = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        names.emplace_back();
        [[fallthrough]];
      case json::parse_event_t::array_start:
        if (depth >= limits.depth)
          throw Refused{"has objects and lists more than " + std::to_string(limits.depth) +
                        " deep in each other"};
        [[fallthrough]];
      case json::parse_event_t::value:
        if (++values > limits.values)
          throw Refused{"has more than " + std::to_string(limits.values) + " values"};
        break;
      case json::parse_event_t::key:
        if (!names.back().insert(parsed.get<std::string>()).second)
          throw Refused{"has " + JsonFields::shown(parsed) + " twice in one object"};
        break;
      case json::parse_event_t::object_end:
        names.pop_back();
        break;
      case json::parse_event_t::array_end:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const Refused& refused) {
    return invalid(std::string(where) + ": " + refused.why);
  } catch (const json::exception& error) {
    // It quotes what was read last, however long that is.
    return invalid(std::string(where) + ": not a JSON document: " + std::string(error.what()).substr(0, 200));
  }
}

// The whole text of a file of at most `largest_mib` MiB. `kind` says what it should have been.
inline Result<std::string> read_text(const std::filesystem::path& file, std::string_view kind,
                                     std::uintmax_t largest_mib = 64) {
  std::error_code failure;
  const auto status = std::filesystem::status(file, failure);
  if (std::filesystem::is_directory(status))
    return invalid(file.string() + ": is a directory, but should be " + std::string(kind));
  if (std::filesystem::status_known(status) && !std::filesystem::is_regular_file(status))
    return fail(ErrorCode::not_found, file.string() + ": no such file; it should be " + std::string(kind));
  const auto size = std::filesystem::file_size(file, failure);
  if (failure) return invalid(file.string() + ": cannot be read: " + failure.message());
  if (size > largest_mib << 20)
    return invalid(file.string() + ": has " + std::to_string(size) + " bytes, but " + std::string(kind) +
                   " has at most " + std::to_string(largest_mib) + " MiB");
  return read_file(kind, file);
}

}  // namespace carillon::profile
