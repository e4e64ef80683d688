#include "carillon/frontend/codec/classification.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/codec/tensors.h"
#include "carillon/frontend/codec/text_elements.h"
#include "carillon/graph/plain/number.h"

namespace carillon::frontend {
namespace {

using graph::DataType;

// Of one row.
std::size_t elements_of_row(const repository::ModelConfig& config, const OutputChoice& choice,
                            const controller::InferCall& call) {
  const graph::Shape shape = output_shape(config, choice.index, call);
  const bool batched = config.by_rows() && !shape.empty();
  return elements_of(std::span(shape).subspan(batched ? 1 : 0));
}

const std::vector<std::string>* labels_of(const repository::ModelConfig& config, std::size_t output) {
  if (config.labels == nullptr) return nullptr;
  const auto found = config.labels->find(config.outputs[output].name);
  return found == config.labels->end() ? nullptr : &found->second;
}

template <typename T>
auto value_of(T value) {
  if constexpr (std::is_same_v<T, graph::plain::Half> || std::is_same_v<T, graph::plain::BFloat16>)
    return graph::plain::to_float(value);
  else if constexpr (std::is_same_v<T, graph::plain::Boolean>)
    return value.bits != 0 ? 1 : 0;
  else
    return value;
}

// As Triton writes them.
template <typename T>
std::string value_text(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return fmt::format("{:f}", value);
  else
    return std::to_string(value);
}

template <typename T>
std::vector<std::byte> classify(std::span<const std::byte> bytes, std::size_t per_row, std::size_t k,
                                const std::vector<std::string>* labels) {
  const auto element = [&](std::size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value_of(value);
  };
  std::vector<std::byte> out;
  std::vector<std::size_t> order(per_row);
  const std::size_t rows = per_row == 0 ? 0 : bytes.size() / sizeof(T) / per_row;
  for (std::size_t row = 0; row < rows; ++row) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto before = [&](std::size_t a, std::size_t b) {
      const auto x = element(row * per_row + a), y = element(row * per_row + b);
      if constexpr (std::is_floating_point_v<std::remove_const_t<decltype(x)>>)
        if (std::isnan(x) || std::isnan(y)) return std::isnan(x) == std::isnan(y) ? a < b : std::isnan(y);
      return x > y || (x == y && a < b);
    };
    std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(k), before);
    for (std::size_t i = 0; i < k; ++i) {
      std::string text = value_text(element(row * per_row + order[i])) + ":" + std::to_string(order[i]);
      if (labels != nullptr && order[i] < labels->size()) text += ":" + (*labels)[order[i]];
      append_element(out, text);
    }
  }
  return out;
}

using Classify = std::vector<std::byte> (*)(std::span<const std::byte>, std::size_t, std::size_t,
                                            const std::vector<std::string>*);

Classify classify_of(DataType type) {
  switch (type) {
    case DataType::f32:
      return classify<float>;
    case DataType::f64:
      return classify<double>;
    case DataType::f16:
      return classify<graph::plain::Half>;
    case DataType::bf16:
      return classify<graph::plain::BFloat16>;
    case DataType::i8:
      return classify<std::int8_t>;
    case DataType::i16:
      return classify<std::int16_t>;
    case DataType::i32:
      return classify<std::int32_t>;
    case DataType::i64:
      return classify<std::int64_t>;
    case DataType::u8:
      return classify<std::uint8_t>;
    case DataType::u16:
      return classify<std::uint16_t>;
    case DataType::u32:
      return classify<std::uint32_t>;
    case DataType::u64:
      return classify<std::uint64_t>;
    case DataType::boolean:
      return classify<graph::plain::Boolean>;
    case DataType::string:
      break;
  }
  CARILLON_ASSERT(false);  // refused when the request was read
  return nullptr;
}

std::size_t count_of(const OutputChoice& choice, std::size_t per_row) {
  return std::min(static_cast<std::size_t>(choice.classes), per_row);
}

}  // namespace

Result<std::int64_t> classes_asked_for(std::string_view output, std::int64_t given) {
  if (given < 0)
    return invalid("output '" + std::string(output.substr(0, 128)) + "': 'classification' is " +
                   std::to_string(given) + "; it is how many classes to answer, or 0");
  return given;
}

graph::Shape class_shape(const repository::ModelConfig& config, const OutputChoice& choice,
                         const controller::InferCall& call) {
  const auto k = static_cast<std::int64_t>(count_of(choice, elements_of_row(config, choice, call)));
  if (!config.by_rows()) return {k};
  // Where requests run by themselves a call is one row, of as many as its output says.
  if (config.whole_rows > 0) return {output_shape(config, choice.index, call).front(), k};
  return {call.rows, k};
}

void classify_outputs(const repository::ModelConfig& config, const InferRequest& request,
                      controller::InferCall& call) {
  for (const OutputChoice& choice : request.outputs) {
    if (choice.classes == 0) continue;
    const std::size_t per_row = elements_of_row(config, choice, call);
    call.outputs[choice.index] = classify_of(config.outputs[choice.index].type)(
        call.outputs[choice.index], per_row, count_of(choice, per_row), labels_of(config, choice.index));
  }
}

Result<> check_classes(const repository::ModelConfig& config, const OutputChoice& choice) {
  const graph::TensorSpec& spec = config.outputs[choice.index];
  if (choice.classes == 0 || spec.type != DataType::string) return {};
  return invalid("output '" + spec.name + "' of model '" + config.name +
                 "' is BYTES, which has no largest values; 'classification' is for outputs of numbers");
}

}  // namespace carillon::frontend
