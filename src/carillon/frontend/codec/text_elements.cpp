#include "carillon/frontend/codec/text_elements.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <simdjson.h>

#include "carillon/frontend/codec/tensors.h"

namespace carillon::frontend {
namespace {

constexpr std::size_t length_bytes = 4;

std::uint32_t length_at(std::span<const std::byte> bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  return length;
}

std::string_view chars_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The text of a handle that handle_of() gave.
Result<std::string_view> own_text(std::span<const std::byte> own, graph::TextHandle handle) {
  const auto at = static_cast<std::size_t>(handle - graph::first_own_text);
  if (at > own.size() || own.size() - at < length_bytes ||
      own.size() - at - length_bytes < length_at(own.subspan(at)))
    return fail(ErrorCode::internal, "no text of the request has the number " + std::to_string(handle));
  return chars_of(own.subspan(at + length_bytes, length_at(own.subspan(at))));
}

}  // namespace

std::vector<std::byte>* own_texts(const repository::ModelConfig& config, controller::InferCall& call) {
  const bool gives = std::ranges::any_of(
      config.outputs, [](const graph::TensorSpec& spec) { return spec.type == graph::DataType::string; });
  return gives ? &call.texts : nullptr;
}

graph::TextHandle handle_of(std::string_view text, std::vector<std::byte>* own) {
  const graph::TextHandle known = graph::known_texts().find(text);
  if (known != graph::unknown_text || own == nullptr) return known;
  const auto at = static_cast<graph::TextHandle>(own->size());
  append_element(*own, text);
  return graph::first_own_text + at;
}

void append_element(std::vector<std::byte>& out, std::string_view text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<std::byte>(length >> shift & 0xffU));
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::vector<std::string_view> text_elements(std::span<const std::byte> bytes) {
  std::vector<std::string_view> out;
  while (bytes.size() >= length_bytes) {
    const std::size_t length = length_at(bytes);
    out.push_back(chars_of(bytes.subspan(length_bytes, length)));
    bytes = bytes.subspan(length_bytes + length);
  }
  return out;
}

void put_handle(std::vector<std::byte>& out, graph::TextHandle handle) {
  const auto bytes = std::as_bytes(std::span(&handle, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

Result<std::vector<std::byte>> read_texts(const std::string& where, std::size_t elements,
                                          std::span<const std::byte> data, std::vector<std::byte>* own) {
  const std::string counted = where + " takes " + std::to_string(elements) +
                              " elements of BYTES, each a length in 4 bytes and so many bytes, but ";
  if (data.size() / length_bytes < elements)
    return invalid(counted + "its data has " + std::to_string(data.size()) + " bytes; it takes at least " +
                   std::to_string(elements * length_bytes));
  std::vector<std::byte> handles;
  handles.reserve(elements * sizeof(graph::TextHandle));
  for (std::size_t i = 0; i < elements; ++i) {
    if (data.size() < length_bytes)
      return invalid(counted + "element " + std::to_string(i) +
                     " has no length: " + std::to_string(data.size()) + " bytes are left");
    const std::size_t length = length_at(data);
    data = data.subspan(length_bytes);
    if (length > data.size())
      return invalid(counted + "element " + std::to_string(i) + " has a length of " + std::to_string(length) +
                     ", and only " + std::to_string(data.size()) + " bytes are left");
    put_handle(handles, handle_of(chars_of(data.first(length)), own));
    data = data.subspan(length);
  }
  if (!data.empty())
    return invalid(counted + std::to_string(data.size()) + " bytes are behind the last element");
  return handles;
}

Result<> spell_outputs(const repository::ModelConfig& config, const InferRequest& request,
                       controller::InferCall& call) {
  std::size_t spelt = 0;
  for (const OutputChoice& choice : request.outputs) {
    const graph::TensorSpec& spec = config.outputs[choice.index];
    if (spec.type != graph::DataType::string) continue;
    const std::string where = "output '" + spec.name + "' of model '" + config.name + "'";
    if (is_bounded_output(config, choice.index, call))
      return fail(ErrorCode::unsupported,
                  where + " is BYTES, and its data decide how long it is: such outputs are not served");
    const std::vector<std::byte> handles = std::move(call.outputs[choice.index]);
    std::vector<std::byte>& out = call.outputs[choice.index];
    out.clear();
    const bool json = !choice.binary && !choice.shared;
    for (std::size_t i = 0; i * sizeof(graph::TextHandle) < handles.size(); ++i) {
      graph::TextHandle handle = graph::unknown_text;
      std::memcpy(&handle, handles.data() + i * sizeof(handle), sizeof(handle));
      const auto text =
          handle >= graph::first_own_text ? own_text(call.texts, handle) : graph::known_texts().at(handle);
      if (!text) return in_context(where, text.error());
      if (json && !simdjson::validate_utf8(*text))
        return invalid(where + ": element " + std::to_string(i) +
                       " is not UTF-8, which JSON cannot carry; ask for it with the parameter binary_data");
      spelt += length_bytes + text->size();
      if (spelt > most_spelt)
        return invalid(where + ": the texts of the answer take more than " + std::to_string(most_spelt) +
                       " bytes; ask for fewer rows or elements");
      append_element(out, *text);
    }
  }
  return {};
}

}  // namespace carillon::frontend
