#include "carillon/frontend/codec/infer_codec_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include <simdjson.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/codec/classification.h"
#include "carillon/frontend/codec/json_check.h"
#include "carillon/frontend/codec/parameters.h"
#include "carillon/frontend/codec/reading_room.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/codec/text_elements.h"
#include "carillon/graph/known_texts.h"
#include "carillon/graph/plain/number.h"

namespace carillon::frontend {
namespace {

namespace dom = simdjson::dom;
using graph::plain::Half;
static_assert(PaddedBytes::padding >= simdjson::SIMDJSON_PADDING);

// What an element is, for error texts; long ones are cut.
std::string describe(const dom::element& element) {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING: {
      const auto text = std::string_view(element);
      if (const auto wide = wide_number(text))
        return std::string(wide->substr(0, 64)) + (wide->size() > 64 ? "..." : "");
      if (const auto number = literal_number(text)) return std::isnan(*number) ? "NaN" : "an infinity";
      return "\"" + std::string(text.substr(0, 64)) + (text.size() > 64 ? "...\"" : "\"");
    }
    case dom::element_type::INT64:
    case dom::element_type::UINT64:
    case dom::element_type::DOUBLE:
    case dom::element_type::BOOL:
    case dom::element_type::NULL_VALUE:
      return simdjson::minify(element);
  }
  return "unknown";
}

std::unexpected<Error> wrong_kind(const std::string& where, const dom::element& element,
                                  std::string_view wanted) {
  return invalid(where + " is " + describe(element) + "; it must be " + std::string(wanted));
}

Result<std::string_view> text_of(const std::string& where, const dom::element& element) {
  std::string_view text;
  if (element.get(text) != simdjson::SUCCESS) return wrong_kind(where, element, "a string");
  return text;
}

Result<dom::array> array_of(const std::string& where, const dom::element& element) {
  dom::array array;
  if (element.get(array) != simdjson::SUCCESS) return wrong_kind(where, element, "an array");
  return array;
}

Result<dom::object> object_of(const std::string& where, const dom::element& element) {
  dom::object object;
  if (element.get(object) != simdjson::SUCCESS) return wrong_kind(where, element, "an object");
  return object;
}

// Nothing for values that no parameter has: null, arrays, objects, numbers of more than 64 bits.
std::optional<ParameterValue> json_parameter(const dom::element& element) {
  switch (element.type()) {
    case dom::element_type::STRING: {
      const auto text = std::string_view(element);
      if (wide_number(text)) return std::nullopt;
      if (const auto number = literal_number(text)) return *number;
      return text;
    }
    case dom::element_type::INT64:
      return std::int64_t(element);
    case dom::element_type::UINT64:
      return std::uint64_t(element);
    case dom::element_type::DOUBLE:
      return double(element);
    case dom::element_type::BOOL:
      return bool(element);
    case dom::element_type::NULL_VALUE:
    case dom::element_type::ARRAY:
    case dom::element_type::OBJECT:
      return std::nullopt;
  }
  return std::nullopt;
}

struct Text {
  graph::TextHandle handle = graph::unknown_text;
};

template <typename T>
bool convert(const dom::element& element, T& out, std::vector<std::byte>* own = nullptr) {
  if constexpr (std::is_same_v<T, Text>) {
    std::string_view text;
    if (element.get(text) != simdjson::SUCCESS || wide_number(text) || literal_number(text)) return false;
    return out = {handle_of(text, own)}, true;
  } else if constexpr (std::is_same_v<T, bool>) {
    bool b = false;
    if (element.get(b) == simdjson::SUCCESS) return out = b, true;
    std::int64_t n = 0;
    if (element.get(n) != simdjson::SUCCESS || (n != 0 && n != 1)) return false;
    return out = n == 1, true;
  } else if constexpr (std::is_floating_point_v<T>) {
    double v = 0;
    // Integers convert here too.
    if (element.get(v) != simdjson::SUCCESS) {
      std::string_view text;
      const auto literal = element.get(text) == simdjson::SUCCESS ? literal_number(text) : std::nullopt;
      if (!literal) return false;
      out = static_cast<T>(*literal);
      return std::isinf(*literal) || !std::isinf(out);
    }
    // Rounds to an infinity: the client meant another number than the model would see.
    if (std::isinf(static_cast<T>(v))) return false;
    return out = static_cast<T>(v), true;
  } else if constexpr (std::is_same_v<T, Half>) {
    float v = 0;
    if (!convert(element, v)) return false;
    out = graph::plain::to_half(v);
    return !std::isfinite(v) || std::isfinite(graph::plain::to_float(out));
  } else {
    std::int64_t n = 0;
    if (element.get(n) == simdjson::SUCCESS) {
      if (!std::in_range<T>(n)) return false;
      return out = static_cast<T>(n), true;
    }
    std::uint64_t u = 0;
    if (element.get(u) != simdjson::SUCCESS || !std::in_range<T>(u)) return false;
    return out = static_cast<T>(u), true;
  }
}

// Reads the numbers of one input.
template <typename T>
class Filler {
 public:
  Filler(const std::string& where, const InputCheck::Slot& slot, std::byte* out, std::vector<std::byte>* own)
      : where_(where),
        slot_(slot),
        next_(reinterpret_cast<T*>(out)),
        end_(next_ + slot.elements),
        own_(own) {}

  Result<> fill(const dom::array& data) {
    const auto first = data.begin();
    const bool nested = first != data.end() && (*first).is_array() && slot_.shape.size() > 1;
    auto filled = nested ? level(data, 0) : numbers(data, slot_.elements);
    if (!filled) return filled;
    return {};
  }

 private:
  Result<> level(const dom::array& array, std::size_t depth) {
    const auto extent = static_cast<std::size_t>(slot_.shape[depth]);
    if (depth + 1 == slot_.shape.size()) return numbers(array, extent);
    std::size_t n = 0;
    for (const dom::element element : array) {
      if (++n > extent) break;
      dom::array inner;
      if (element.get(inner) != simdjson::SUCCESS)
        return invalid(where_ + ": data is nested unlike its shape " + graph::to_text(slot_.shape) + ": " +
                       describe(element) + " where an array of dimension " + std::to_string(depth + 1) +
                       " should be");
      if (auto filled = level(inner, depth + 1); !filled) return filled;
    }
    if (n != extent) return wrong_count(n, extent, depth);
    return {};
  }

  Result<> numbers(const dom::array& array, std::size_t count) {
    std::size_t n = 0;
    for (const dom::element element : array) {
      if (++n > count) break;
      if (!convert(element, *next_, own_))
        return invalid(where_ + ": element " +
                       std::to_string(slot_.elements - static_cast<std::size_t>(end_ - next_)) + " is " +
                       describe(element) + ", which is not a value of " +
                       std::string(graph::kserve_name(slot_.type)));
      ++next_;
    }
    if (n != count) return wrong_count(n, count, slot_.shape.size() - 1);
    return {};
  }

  std::unexpected<Error> wrong_count(std::size_t n, std::size_t want, std::size_t depth) const {
    const std::string got = n > want ? "more than " + std::to_string(want) : std::to_string(n);
    if (want == slot_.elements)
      return invalid(where_ + ": data has " + got + " elements; shape " + graph::to_text(slot_.shape) +
                     " takes " + std::to_string(want));
    return invalid(where_ + ": an array of dimension " + std::to_string(depth) + " has " + got +
                   " elements; shape " + graph::to_text(slot_.shape) + " takes " + std::to_string(want));
  }

  const std::string& where_;
  const InputCheck::Slot& slot_;
  T* next_;
  T* end_;
  std::vector<std::byte>* own_;  // of texts (own_texts())
};

Result<std::vector<std::byte>> take_json(const std::string& where, const InputCheck::Slot& slot,
                                         const dom::array& data, std::vector<std::byte>* own) {
  std::vector<std::byte> bytes(slot.bytes);
  const auto fill = [&]<typename T>(T) { return Filler<T>(where, slot, bytes.data(), own).fill(data); };
  Result<> filled;
  switch (slot.type) {
    case graph::DataType::f32:
      filled = fill(float{});
      break;
    case graph::DataType::f64:
      filled = fill(double{});
      break;
    case graph::DataType::i8:
      filled = fill(std::int8_t{});
      break;
    case graph::DataType::i16:
      filled = fill(std::int16_t{});
      break;
    case graph::DataType::i32:
      filled = fill(std::int32_t{});
      break;
    case graph::DataType::i64:
      filled = fill(std::int64_t{});
      break;
    case graph::DataType::u8:
      filled = fill(std::uint8_t{});
      break;
    case graph::DataType::u16:
      filled = fill(std::uint16_t{});
      break;
    case graph::DataType::u32:
      filled = fill(std::uint32_t{});
      break;
    case graph::DataType::u64:
      filled = fill(std::uint64_t{});
      break;
    case graph::DataType::boolean:
      filled = fill(bool{});
      break;
    case graph::DataType::f16:
      filled = fill(Half{});
      break;
    case graph::DataType::bf16:
      return invalid(where + " is " + std::string(graph::kserve_name(slot.type)) +
                     ", which JSON cannot carry; send it as a blob with binary_data_size");
    case graph::DataType::string:
      filled = fill(Text{});
      break;
  }
  if (!filled) return std::unexpected(std::move(filled.error()));
  return bytes;
}

// Holds that a parameter is given once: JSON objects may have a name twice, and readers differ in which
// counts.
class Once {
 public:
  explicit Once(std::string_view where) : where_(where) {}

  Result<> first(std::string_view name) {
    const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(count_);
    if (std::find(seen_.begin(), end, name) != end)
      return invalid(std::string(where_) + " has parameter '" + std::string(name) +
                     "' twice; which of them counts?");
    CARILLON_ASSERT(count_ < seen_.size());
    seen_[count_++] = name;
    return {};
  }

 private:
  const std::string_view where_;
  std::array<std::string_view, 5> seen_;  // as many as are heeded in one place
  std::size_t count_ = 0;
};

// Members of a request; the first three are long enough for slips of the pen.
constexpr std::array<std::string_view, 4> members{"parameters", "inputs", "outputs", "id"};
constexpr std::size_t longest_slip = 16;

// How many letters have to be changed, left out or put in to make one of the other.
std::size_t letters_between(std::string_view a, std::string_view b) {
  std::array<std::size_t, longest_slip + 1> row{};
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = corner + (a[i] == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, corner + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

// Which member `key` was probably meant to be: "params", "Inputs", "output". Its place in `members`.
std::optional<std::size_t> meant_member(std::string_view key) {
  if (key.size() > longest_slip) return std::nullopt;
  std::string low(key);
  for (char& c : low)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  std::string_view stem = low;
  while (stem.ends_with('s')) stem.remove_suffix(1);
  std::optional<std::size_t> nearest;
  std::size_t letters = 3;  // a word that is so far away is another
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (low == members[i]) return i;
    if (low.size() < 4 || members[i].size() < 4) continue;
    if (stem.size() >= 4 && members[i].starts_with(stem)) return i;
    if (const std::size_t here = letters_between(low, members[i]); here < letters) {
      letters = here;
      nearest = i;
    }
  }
  return nearest;
}

// Reads one request. A class for the state that its parts share.
class RequestReader {
 public:
  // `bytes`: of the whole body.
  RequestReader(const controller::ModelView& model, std::string_view blobs, std::size_t bytes,
                const Surroundings& around, ReadingRoom& reading)
      : config_(model.config),
        blobs_(blobs),
        around_(around),
        reading_(reading),
        check_(model.config, bytes) {
    request_.call = std::make_unique<controller::InferCall>();
    request_.call->model = model.id;
    request_.call->inputs.resize(config_.inputs.size());
  }

  Result<InferRequest> read(const dom::element& root, TimePoint arrival) {
    auto object = object_of("the request", root);
    if (!object) return std::unexpected(std::move(object.error()));
    std::optional<dom::element> inputs, outputs, parameters, id;
    std::array<std::string_view, members.size()> slips{};  // by the member that was meant
    for (const auto [key, value] : *object) {
      auto* known = key == "inputs"       ? &inputs
                    : key == "outputs"    ? &outputs
                    : key == "parameters" ? &parameters
                    : key == "id"         ? &id
                                          : nullptr;
      if (known == nullptr) {
        if (RequestParameters::heeds(key))
          note_unheeded(request_.unheeded, std::string(key) + " (outside of \"parameters\")");
        else if (const auto meant = meant_member(key))
          slips[*meant] = key;
        continue;
      }
      if (known->has_value()) return invalid("the request has \"" + std::string(key) + "\" twice");
      *known = value;
    }
    // Other members mean nothing here, as in Triton; one in the place of a member that is missing was to mean
    // something, such as a deadline.
    for (std::size_t i = 0; i < members.size(); ++i)
      if (const auto* there = std::array{&parameters, &inputs, &outputs, &id}[i];
          !slips[i].empty() && !there->has_value())
        return invalid("a request has no member \"" + std::string(slips[i]) + "\"; is \"" +
                       std::string(members[i]) + "\" meant?");
    if (id) {
      auto text = text_of("\"id\"", *id);
      if (!text) return std::unexpected(std::move(text.error()));
      request_.id = *text;
    }
    if (parameters)
      if (auto done = read_parameters(*parameters); !done) return std::unexpected(std::move(done.error()));
    if (!inputs && !config_.inputs.empty()) return invalid("the request has no \"inputs\"");
    if (inputs)
      if (auto done = read_inputs(*inputs); !done) return std::unexpected(std::move(done.error()));
    if (auto done = read_outputs(outputs); !done) return std::unexpected(std::move(done.error()));
    request_.call->outputs_wanted = outputs_wanted(config_, request_.outputs);
    scheduling_.apply(*request_.call, arrival, TimePoint::max(), may_be_real_time(config_, around_.key));
    request_.call->id = request_.id;
    drop_sequence(config_, *request_.call, request_.unheeded);
    return std::move(request_);
  }

 private:
  Result<> read_parameters(const dom::element& element) {
    auto object = object_of("\"parameters\"", element);
    if (!object) return std::unexpected(std::move(object.error()));
    Once once("the request");
    for (const auto [key, value] : *object) {
      const bool for_outputs = key == "binary_data_output";
      if (!for_outputs && !RequestParameters::heeds(key)) {
        note_unheeded(request_.unheeded, key);
        continue;
      }
      if (auto first = once.first(key); !first) return first;
      const auto parameter = json_parameter(value);
      if (!parameter)
        return wrong_kind("parameter '" + std::string(key) + "'", value,
                          "a number of at most 64 bits, a string or a boolean");
      if (for_outputs) {
        auto binary = as_bool(key, *parameter);
        if (!binary) return std::unexpected(std::move(binary.error()));
        binary_outputs_ = *binary;
      } else if (auto set = scheduling_.set(key, *parameter); !set) {
        return set;
      }
    }
    return {};
  }

  Result<> read_inputs(const dom::element& element) {
    auto array = array_of("\"inputs\"", element);
    if (!array) return std::unexpected(std::move(array.error()));
    std::size_t i = 0;
    for (const dom::element input : *array)
      if (auto done = read_input("inputs[" + std::to_string(i++) + "]", input); !done) return done;
    if (auto complete = check_.complete(*request_.call); !complete) return complete;
    if (!blobs_.empty())
      return invalid("the body has " + std::to_string(blobs_.size()) +
                     " bytes behind the JSON that no input's binary_data_size claims");
    return {};
  }

  Result<> read_input(const std::string& place, const dom::element& element) {
    auto object = object_of(place, element);
    if (!object) return std::unexpected(std::move(object.error()));
    std::optional<dom::element> name, datatype, shape, data, parameters;
    for (const auto [key, value] : *object) {
      auto* known = key == "name"         ? &name
                    : key == "datatype"   ? &datatype
                    : key == "shape"      ? &shape
                    : key == "data"       ? &data
                    : key == "parameters" ? &parameters
                                          : nullptr;
      if (known == nullptr) continue;
      if (known->has_value()) return invalid(place + " has \"" + std::string(key) + "\" twice");
      *known = value;
    }
    if (!name) return invalid(place + " has no \"name\"");
    if (!datatype) return invalid(place + " has no \"datatype\"");
    if (!shape) return invalid(place + " has no \"shape\"");
    const auto name_text = text_of(place + ".name", *name);
    if (!name_text) return std::unexpected(name_text.error());
    const auto datatype_text = text_of(place + ".datatype", *datatype);
    if (!datatype_text) return std::unexpected(datatype_text.error());
    const auto extents = read_shape(place + ".shape", *shape);
    if (!extents) return std::unexpected(extents.error());

    const auto source = read_input_parameters(place, parameters);
    if (!source) return std::unexpected(source.error());
    const auto& [blob_size, shared] = *source;
    const auto slot = check_.claim(*name_text, *datatype_text, *extents,
                                   shared ? std::optional(shared->bytes) : std::nullopt);
    if (!slot) return std::unexpected(slot.error());

    const std::string where =
        "input '" + config_.inputs[slot->index].name + "' of model '" + config_.name + "'";
    if (blob_size && data)
      return invalid(where + " has both \"data\" and binary_data_size; give one of them");
    if (shared && (data || blob_size))
      return invalid(where + " has both shared_memory_region and " +
                     (data ? "\"data\"" : "binary_data_size") + "; give one of them");
    if (!shared && (blob_size || data))
      if (auto room = reading_.take_copy(slot->bytes, where); !room) return room;
    Result<std::vector<std::byte>> bytes;
    if (shared) {
      bytes = take_shared(config_, *slot, *shared, around_.room, request_);
    } else if (blob_size) {
      if (*blob_size > blobs_.size())
        return invalid(where + " has binary_data_size " + std::to_string(*blob_size) + ", but only " +
                       std::to_string(blobs_.size()) + " bytes are left behind the JSON");
      const auto blob = blobs_.substr(0, static_cast<std::size_t>(*blob_size));
      blobs_.remove_prefix(blob.size());
      bytes = take_raw(config_, *slot, std::as_bytes(std::span(blob)), *request_.call);
    } else if (data) {
      const auto array = array_of(where + ": \"data\"", *data);
      if (!array) return std::unexpected(array.error());
      bytes = take_json(where, *slot, *array, own_texts(config_, *request_.call));
    } else {
      return invalid(where +
                     " has neither \"data\" nor the parameter binary_data_size or shared_memory_region");
    }
    if (!bytes) return std::unexpected(std::move(bytes.error()));
    request_.call->inputs[slot->index] = std::move(*bytes);
    return {};
  }

  Result<std::vector<std::int64_t>> read_shape(const std::string& where, const dom::element& element) {
    const auto array = array_of(where, element);
    if (!array) return std::unexpected(array.error());
    std::vector<std::int64_t> extents;
    for (const dom::element extent : *array) {
      std::int64_t n = 0;
      if (extent.get(n) != simdjson::SUCCESS)
        return wrong_kind("an element of " + where, extent, "a whole number");
      extents.push_back(n);
      if (extents.size() > 64) return invalid(where + " has more than 64 dimensions");
    }
    return extents;
  }

  // Where an input's data is, other than in the JSON.
  struct Source {
    std::optional<std::uint64_t> blob_size;
    std::optional<SharedPart> shared;
  };

  Result<Source> read_input_parameters(const std::string& place, const std::optional<dom::element>& element) {
    Source source;
    if (!element) return source;
    const auto object = object_of(place + ".parameters", *element);
    if (!object) return std::unexpected(object.error());
    Once once(place);
    SharedParameters shared;
    for (const auto [key, value] : *object) {
      const bool of_memory = SharedParameters::heeds(key);
      if (key != "binary_data_size" && !of_memory) {
        note_unheeded(request_.unheeded, key);
        continue;
      }
      if (auto first = once.first(key); !first) return std::unexpected(std::move(first.error()));
      const auto parameter = json_parameter(value);
      if (!parameter)
        return wrong_kind(place + ".parameters." + std::string(key), value,
                          "a whole number of at most 64 bits or text");
      if (of_memory) {
        if (auto set = shared.set(key, *parameter); !set) return in_context(place, set.error());
        continue;
      }
      const auto size = as_count(key, *parameter);
      if (!size) return in_context(place, size.error());
      source.blob_size = *size;
    }
    if (shared.given()) {
      auto part = shared.find(around_.regions, around_.key);
      if (!part) return in_context(place, part.error());
      source.shared = std::move(*part);
    }
    return source;
  }

  Result<> read_outputs(const std::optional<dom::element>& element) {
    if (element) {
      const auto array = array_of("\"outputs\"", *element);
      if (!array) return std::unexpected(array.error());
      std::size_t i = 0;
      for (const dom::element output : *array)
        if (auto done = read_output("outputs[" + std::to_string(i++) + "]", output); !done) return done;
    }
    if (request_.outputs.empty()) request_.outputs = all_outputs(config_, binary_outputs_);
    for (const OutputChoice& choice : request_.outputs) {
      const auto& spec = config_.outputs[choice.index];
      if (auto ok = check_classes(config_, choice); !ok) return ok;
      if (!choice.binary && !choice.shared && spec.type == graph::DataType::bf16)
        return invalid("output '" + spec.name + "' of model '" + config_.name + "' is " +
                       std::string(graph::kserve_name(spec.type)) +
                       ", which JSON cannot carry; ask for it with the parameter binary_data");
    }
    return check_shared_outputs(config_, request_);
  }

  Result<> read_output(const std::string& place, const dom::element& element) {
    const auto object = object_of(place, element);
    if (!object) return std::unexpected(object.error());
    std::optional<std::string_view> name;
    OutputChoice how{.binary = binary_outputs_};
    SharedParameters shared;
    for (const auto [key, value] : *object) {
      if (key == "name") {
        const auto text = text_of(place + ".name", value);
        if (!text) return std::unexpected(text.error());
        name = *text;
      } else if (key == "parameters") {
        const auto parameters = object_of(place + ".parameters", value);
        if (!parameters) return std::unexpected(parameters.error());
        Once once(place);
        for (const auto [parameter_name, parameter_value] : *parameters) {
          const auto parameter = json_parameter(parameter_value);
          const bool classifies = parameter_name == "classification";
          const bool of_memory = SharedParameters::heeds(parameter_name);
          if (parameter_name != "binary_data" && !of_memory && !classifies) {
            note_unheeded(request_.unheeded, parameter_name);
            continue;
          }
          if (auto first = once.first(parameter_name); !first) return first;
          if (!parameter)
            return wrong_kind(place + ".parameters." + std::string(parameter_name), parameter_value,
                              "a number of at most 64 bits, a string or a boolean");
          if (of_memory) {
            if (auto set = shared.set(parameter_name, *parameter); !set)
              return in_context(place, set.error());
            continue;
          }
          if (classifies) {
            const auto* const number = std::get_if<std::int64_t>(&*parameter);
            if (number == nullptr)
              return wrong_kind(place + ".parameters.classification", parameter_value, "a whole number");
            const auto classes = classes_asked_for(name.value_or(""), *number);
            if (!classes) return in_context(place, classes.error());
            how.classes = *classes;
            continue;
          }
          const auto given = as_bool(parameter_name, *parameter);
          if (!given) return in_context(place, given.error());
          how.binary = *given;
        }
      }
    }
    if (!name) return invalid(place + " has no \"name\"");
    if (shared.given()) {
      auto part = shared.find(around_.regions, around_.key);
      if (!part) return in_context(place, part.error());
      how.shared = std::move(*part);
    }
    return choose_output(config_, *name, std::move(how), request_.outputs);
  }

  const repository::ModelConfig& config_;
  std::string_view blobs_;  // what no input has claimed yet
  const Surroundings& around_;
  ReadingRoom& reading_;
  InputCheck check_;
  RequestParameters scheduling_;
  bool binary_outputs_ = false;
  InferRequest request_;
};

// parse_infer_json() but for what the request holds.
Result<InferRequest> read_infer_json(const controller::ModelView& model, const PaddedBytes& body,
                                     std::optional<std::size_t> json_size, TimePoint arrival,
                                     const Surroundings& around) {
  const auto all = body.text();
  if (json_size && *json_size > all.size())
    return invalid("Inference-Header-Content-Length is " + std::to_string(*json_size) +
                   ", but the body has only " + std::to_string(all.size()) + " bytes");
  const auto json = all.substr(0, json_size.value_or(all.size()));
  if (json.size() > longest_json)
    return invalid("the JSON has " + std::to_string(json.size()) + " bytes; at most " +
                   std::to_string(longest_json) + " are allowed: send large tensors as blobs");
  if (json.empty()) return invalid("the body has no JSON");

  ReadingRoom reading(around.room, all.size(), around.admitted);
  if (reading.heeds())
    if (auto room = reading.take(json_reading_cost(json), "reading the JSON"); !room)
      return std::unexpected(std::move(room.error()));
  // A parser keeps its memory for the next request, so large ones get their own.
  constexpr std::size_t kept = std::size_t{1} << 20;
  thread_local dom::parser small;
  dom::parser large;
  auto& parser = json.size() <= kept ? small : large;
  dom::element root;
  auto error = parser.parse(json.data(), json.size(), false).get(root);
  PaddedBytes rewritten;
  if (error != simdjson::SUCCESS) {
    // A copy with other words for NaN, infinities and numbers of more than 64 bits, which is read as if it
    // were the first.
    if (auto room = reading.take(4 * json.size(), "reading the JSON once more"); !room)
      return std::unexpected(std::move(room.error()));
    const auto checked = check_json(json);
    if (checked.fault) return invalid("the body is not JSON: " + checked.fault->text());
    if (!checked.rewritten.empty()) {
      rewritten = PaddedBytes(checked.rewritten);
      error = parser.parse(rewritten.data(), rewritten.size(), false).get(root);
    }
    if (error != simdjson::SUCCESS)
      return invalid(std::string("the body is not JSON: ") + simdjson::error_message(error));
  }
  return RequestReader(model, all.substr(json.size()), all.size(), around, reading).read(root, arrival);
}

}  // namespace

std::optional<TimePoint> deadline_in_json(const PaddedBytes& body, std::optional<std::size_t> json_size,
                                          TimePoint arrival) {
  constexpr std::size_t longest_twice = std::size_t{1} << 20;
  const std::size_t size = json_size.value_or(body.size());
  if (size > std::min(body.size(), longest_twice)) return std::nullopt;
  dom::parser parser;
  dom::object root, parameters;
  if (parser.parse(body.text().data(), size, false).get(root) != simdjson::SUCCESS) return std::nullopt;
  RequestParameters scheduling;
  if (dom::element timeout; root["parameters"]["timeout"].get(timeout) == simdjson::SUCCESS)
    if (const auto value = json_parameter(timeout); !value || !scheduling.set("timeout", *value))
      return std::nullopt;
  controller::InferCall call;
  scheduling.apply(call, arrival, TimePoint::max(), false);
  return call.deadline;
}

Result<InferRequest> parse_infer_json(const controller::ModelView& model, const PaddedBytes& body,
                                      std::optional<std::size_t> json_size, TimePoint arrival,
                                      const Surroundings& around) {
  auto request = read_infer_json(model, body, json_size, arrival, around);
  if (!request) return request;
  if (auto held = hold_inputs(*request, around.room); !held) return std::unexpected(std::move(held.error()));
  return request;
}

}  // namespace carillon::frontend
