#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "carillon/frontend/codec/classification.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/codec/text_elements.h"
#include "carillon/graph/plain/number.h"

namespace carillon::frontend {
namespace {

void append_text(std::string& out, std::string_view text) {
  out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_texts(std::string& out, const std::vector<std::string_view>& texts) {
  bool first = true;
  for (const std::string_view text : texts) {
    if (!first) out += ',';
    first = false;
    append_text(out, text);
  }
}

template <typename T>
void append_number(std::string& out, T value) {
  // As Triton writes them, and as most clients' parsers read them.
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {
      out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
      return;
    }
  }
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  out.append(text, end);
}

void append_number(std::string& out, graph::plain::Half value) {
  append_number(out, graph::plain::to_float(value));
}

template <typename T>
void append_numbers(std::string& out, std::span<const std::byte> bytes) {
  const std::span values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  out.reserve(out.size() + values.size() * 12);
  bool first = true;
  for (const T value : values) {
    if (!first) out += ',';
    first = false;
    append_number(out, value);
  }
}

void append_data(std::string& out, graph::DataType type, std::span<const std::byte> bytes) {
  switch (type) {
    case graph::DataType::f32:
      return append_numbers<float>(out, bytes);
    case graph::DataType::f64:
      return append_numbers<double>(out, bytes);
    case graph::DataType::i8:
      return append_numbers<std::int8_t>(out, bytes);
    case graph::DataType::i16:
      return append_numbers<std::int16_t>(out, bytes);
    case graph::DataType::i32:
      return append_numbers<std::int32_t>(out, bytes);
    case graph::DataType::i64:
      return append_numbers<std::int64_t>(out, bytes);
    case graph::DataType::u8:
      return append_numbers<std::uint8_t>(out, bytes);
    case graph::DataType::u16:
      return append_numbers<std::uint16_t>(out, bytes);
    case graph::DataType::u32:
      return append_numbers<std::uint32_t>(out, bytes);
    case graph::DataType::u64:
      return append_numbers<std::uint64_t>(out, bytes);
    case graph::DataType::boolean:
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i > 0) out += ',';
        out += bytes[i] == std::byte{0} ? "false" : "true";
      }
      return;
    case graph::DataType::f16:
      return append_numbers<graph::plain::Half>(out, bytes);
    case graph::DataType::bf16:
      return;  // refused when the request was read
    case graph::DataType::string:
      return;  // append_texts()
  }
}

}  // namespace

InferResponseBody write_infer_json(const controller::ModelView& model, const InferRequest& request,
                                   const controller::InferCall& call) {
  InferResponseBody body;
  auto& out = body.json;
  out += "{\"model_name\":";
  append_text(out, model.name);
  out += ",\"model_version\":\"" + std::to_string(model.version) + "\"";
  if (!request.id.empty()) {
    out += ",\"id\":";
    append_text(out, request.id);
  }
  out += ",\"outputs\":[";
  bool first = true;
  for (const OutputChoice& choice : request.outputs) {
    const std::size_t index = choice.index;
    const auto& spec = model.config.outputs[index];
    const bool classes = choice.classes > 0;
    const std::span<const std::byte> bytes = answer_bytes(model.config, choice, call);
    out += first ? "{\"name\":" : ",{\"name\":";
    first = false;
    append_text(out, spec.name);
    out += ",\"datatype\":\"";
    out += graph::kserve_name(classes ? graph::DataType::string : spec.type);
    out += "\",\"shape\":";
    out += graph::to_text(classes ? class_shape(model.config, choice, call)
                                  : output_shape(model.config, index, call));
    if (choice.shared) {
      out += '}';
    } else if (choice.binary) {
      out += ",\"parameters\":{\"binary_data_size\":" + std::to_string(bytes.size()) + "}}";
      body.blobs.push_back(bytes);
      body.binary = true;
    } else {
      out += ",\"data\":[";
      if (goes_as_text(model.config, choice))
        append_texts(out, text_elements(bytes));
      else
        append_data(out, spec.type, bytes);
      out += "]}";
    }
  }
  out += "]}";
  return body;
}

std::string error_json(std::string_view message, const ErrorNumbers& numbers) {
  std::string out = "{\"error\":";
  append_text(out, message);
  if (numbers.would_take_us) out += ",\"would_take_us\":" + std::to_string(*numbers.would_take_us);
  if (numbers.retry_after_ms) out += ",\"retry_after_ms\":" + std::to_string(*numbers.retry_after_ms);
  return out += "}";
}

}  // namespace carillon::frontend
