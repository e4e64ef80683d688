// Numbers and texts looked up in tables: LabelEncoder and OneHotEncoder of ai.onnx.ml.

#include <algorithm>
#include <cmath>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// A text is a number here (known_texts.h).
DataType number_of(DataType type) {
  return type == DataType::string ? DataType::i64 : type;
}

// The place of `x` among keys in ascending order, NaN last; -1 where it is none.
template <typename K>
std::int64_t place_of(const K* keys, std::int64_t count, K x) {
  const auto less = [](K a, K b) { return a != a || b != b ? a == a && b != b : a < b; };
  const K* found = std::lower_bound(keys, keys + count, x, less);
  return found != keys + count && !less(x, *found) ? found - keys : -1;
}

template <typename K, typename V>
Result<> encode_labels(const Node&, Inputs inputs, Outputs outputs) {
  const K* keys = inputs[1].as<K>();
  const V* values = inputs[2].as<V>();
  const V otherwise = *inputs[3].as<V>();
  V* y = outputs[0].as<V>();
  for (std::int64_t i = 0; i < inputs[0].type->elements(); ++i) {
    const std::int64_t at = place_of(keys, inputs[1].type->elements(), inputs[0].as<K>()[i]);
    y[i] = at < 0 ? otherwise : values[at];
  }
  return {};
}
PlainKernel find_label_encoder(const Node&, InputTypes types) {
  if (types.size() < 4 || types[0]->type != types[1]->type) return nullptr;
  return Types<std::int64_t, std::int32_t, float, double>::pick(
      number_of(types[0]->type), [&]<typename K>() -> PlainKernel {
        return pick_size(types[2]->type, []<typename V>() -> PlainKernel { return &encode_labels<K, V>; });
      });
}

// A category is a whole number: that of a float is what is before its point.
template <typename X>
Result<> encode_one_hot(const Node& node, Inputs inputs, Outputs outputs) {
  const auto* categories = inputs[1].as<std::int64_t>();
  const auto* places = inputs[2].as<std::int64_t>();
  const std::int64_t count = inputs[1].type->elements();
  const std::int64_t columns = node.integer("columns", 0);
  const bool zeros = node.integer("zeros", 1) != 0;
  float* y = outputs[0].as<float>();
  std::fill_n(y, outputs[0].type->elements(), 0.0F);
  for (std::int64_t i = 0; i < inputs[0].type->elements(); ++i, y += columns) {
    const X x = inputs[0].as<X>()[i];
    std::int64_t at = -1;
    if constexpr (std::is_floating_point_v<X>) {
      if (std::abs(x) < X(0x1p62)) at = place_of(categories, count, static_cast<std::int64_t>(x));
    } else {
      at = place_of(categories, count, static_cast<std::int64_t>(x));
    }
    if (at >= 0) {
      y[places[at]] = 1;
      continue;
    }
    if (zeros) continue;
    if (auto noted = note(outputs[0], inputs[0], i,
                          [&] {
                            const bool text = inputs[0].type->type == DataType::string;
                            return failed(node, (text ? "a text" : "category " + std::to_string(x)) +
                                                    source_of(inputs[0]) +
                                                    " is not one of the " + std::to_string(count) +
                                                    " that it knows");
                          });
        !noted)
      return noted;
  }
  return {};
}
PlainKernel find_one_hot_encoder(const Node&, InputTypes types) {
  if (types.size() < 3) return nullptr;
  return Types<std::int64_t, std::int32_t, float, double>::pick(
      number_of(types[0]->type), []<typename X>() -> PlainKernel { return &encode_one_hot<X>; });
}

constexpr Operator operators_of_labels[] = {{"LabelEncoder", &find_label_encoder},
                                            {"OneHotEncoder", &find_one_hot_encoder}};

}  // namespace

std::span<const Operator> label_operators() {
  return operators_of_labels;
}

}  // namespace carillon::graph::plain
