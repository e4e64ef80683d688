// What makes features of data, and labels of numbers.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "carillon/graph/known_texts.h"
#include "carillon/graph/ml/node.h"
#include "carillon/graph/onnx_tensor.h"

namespace carillon::graph::ml {
namespace {

std::int64_t count_of(const auto& list) {
  return static_cast<std::int64_t>(list.size());
}

// Keys and values of a LabelEncoder, whatever attributes they are in.
struct Labels {
  DataType type = DataType::i64;
  std::string bytes;
  std::size_t count = 0;
};

template <typename T>
Labels labels_from(DataType type, const std::vector<T>& values) {
  return {type, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)),
          values.size()};
}

// Texts as their handles.
Labels labels_from(MlNode& node, const google::protobuf::RepeatedPtrField<std::string>& texts) {
  std::vector<TextHandle> handles;
  for (const std::string& text : texts) {
    const auto known = known_texts().add(text);
    if (!known) {
      node.fail(known.error().message);
      return {};
    }
    handles.push_back(*known);
  }
  return labels_from(DataType::string, handles);
}

// The constant that `bytes` are, which for texts are handles.
std::string table_of(MlNode& node, std::string_view what, DataType type, std::int64_t count,
                     std::string bytes) {
  if (type != DataType::string) return node.constant_bytes(what, type, {count}, std::move(bytes));
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(TextHandle)) {
    TextHandle handle = unknown_text;
    std::memcpy(&handle, bytes.data() + at, sizeof(handle));
    const auto text = known_texts().at(handle);
    if (!text) node.fail(text.error().message);
    texts.emplace_back(text.value_or(""));
  }
  return node.constant_texts(what, texts, {count});
}

Labels read_labels(MlNode& node, const std::string& prefix, bool& found) {
  found = true;
  if (node.has(prefix + "_strings")) return labels_from(node, node.texts(prefix + "_strings"));
  if (node.has(prefix + "_int64s")) return labels_from(DataType::i64, node.integers(prefix + "_int64s"));
  if (node.has(prefix + "_floats")) return labels_from(DataType::f32, node.reals(prefix + "_floats"));
  if (const auto* given = node.tensor(prefix + "_tensor"); given != nullptr) {
    auto read = TensorReader({}).read(given->t());
    if (!read) {
      node.fail("attribute '" + prefix + "_tensor': " + read.error().message);
      return {};
    }
    const auto bytes = (*read)->bytes();
    return {(*read)->type().type, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            static_cast<std::size_t>((*read)->type().elements())};
  }
  found = false;
  return {};
}

// The places of `keys` in ascending order, NaN last; of equal keys the last one in the file counts.
template <typename T>
std::vector<std::size_t> ordered(const Labels& keys) {
  const auto at = [&](std::size_t i) {
    T value;
    std::memcpy(&value, keys.bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  };
  const auto less = [&](std::size_t a, std::size_t b) {
    const T x = at(a), y = at(b);
    const bool x_nan = x != x, y_nan = y != y;
    return x_nan || y_nan ? !x_nan && y_nan : x < y;
  };
  std::vector<std::size_t> places(keys.count);
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::ranges::stable_sort(places, less);
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < places.size(); ++i)
    if (i + 1 == places.size() || less(places[i], places[i + 1])) kept.push_back(places[i]);
  return kept;
}

}  // namespace

// (x - offset) * scale, as floats; doubles are subtracted before they are rounded.
void expand_scaler(MlNode& node) {
  node.counts(1, 1, 1);
  std::vector<float> offset = node.reals("offset");
  std::vector<float> scale = node.reals("scale");
  if (offset.empty()) offset.assign(std::max<std::size_t>(scale.size(), 1), 0);
  if (scale.empty()) scale.assign(offset.size(), 1);
  if (offset.size() != scale.size() && offset.size() != 1 && scale.size() != 1)
    node.fail("it has " + std::to_string(offset.size()) + " offsets, but " + std::to_string(scale.size()) +
              " scales");
  if (node.failed()) return;
  const bool wide = node.declared_type(node.input(0)) == onnx::TensorProto::DOUBLE;
  const auto typed = [&](const std::string& name) {
    return wide ? node.between("CastLike", {name, node.input(0)}) : name;
  };
  const std::string x = wide ? node.input(0) : node.as_floats(node.input(0));
  const std::string moved =
      node.between("Sub", {x, typed(node.constant("offset", offset, {count_of(offset)}))});
  const std::string factor = typed(node.constant("scale", scale, {count_of(scale)}));
  if (!wide) {
    node.add("Mul", {moved, factor}, {node.output(0)});
    return;
  }
  const std::string scaled = node.between("Mul", {moved, factor});
  set(node.add("Cast", {scaled}, {node.output(0)}), "to", std::int64_t{onnx::TensorProto::FLOAT});
}

// Rows divided by their largest number, or by their norm; rows of zeros stay.
void expand_normalizer(MlNode& node) {
  node.counts(1, 1, 1);
  const std::size_t norm = node.choice("norm", "MAX", std::array<std::string_view, 3>{"MAX", "L1", "L2"});
  if (node.failed()) return;
  const std::string x = node.as_floats(node.input(0));
  const std::string axes = node.constant("axes", std::vector<std::int64_t>{-1}, {1});
  const std::string size = node.between(norm == 0   ? "ReduceMax"
                                        : norm == 1 ? "ReduceL1"
                                                    : "ReduceL2",
                                        {x, axes});
  const std::string zero = node.constant("zero", std::vector<float>{0}, {});
  const std::string one = node.constant("one", std::vector<float>{1}, {});
  const std::string none = node.between("Equal", {size, zero});
  node.add("Div", {x, node.between("Where", {none, one, size})}, {node.output(0)});
}

void expand_imputer(MlNode& node) {
  node.counts(1, 1, 1);
  const std::vector<float> reals = node.reals("imputed_value_floats");
  const std::vector<std::int64_t> integers = node.integers("imputed_value_int64s");
  const float replaced_real = node.real("replaced_value_float", 0);
  const std::int64_t replaced_integer = node.integer("replaced_value_int64", 0);
  if (reals.empty() == integers.empty())
    node.fail("it needs either 'imputed_value_floats' or 'imputed_value_int64s'");
  if (node.failed()) return;
  const std::string x = node.input(0);
  std::string missing, value;
  if (!reals.empty()) {
    value = node.constant("imputed", reals, {count_of(reals)});
    missing =
        std::isnan(replaced_real)
            ? node.between("IsNaN", {x})
            : node.between("Equal", {x, node.constant("replaced", std::vector<float>{replaced_real}, {})});
  } else {
    value = node.constant("imputed", integers, {count_of(integers)});
    missing = node.between("Equal",
                           {x, node.constant("replaced", std::vector<std::int64_t>{replaced_integer}, {})});
  }
  node.add("Where", {missing, value, x}, {node.output(0)});
}

void expand_binarizer(MlNode& node) {
  node.counts(1, 1, 1);
  const float threshold = node.real("threshold", 0);
  if (node.failed()) return;
  const std::string above =
      node.between("Greater", {node.input(0), node.constant("threshold", std::vector<float>{threshold}, {})});
  node.add("CastLike", {above, node.input(0)}, {node.output(0)});
}

void expand_extractor(MlNode& node) {
  node.counts(2, 2, 1);
  if (!node.failed()) node.add("ArrayFeatureExtractor", {node.input(0), node.input(1)}, {node.output(0)});
}

void expand_vectorizer(MlNode& node) {
  node.counts(1, std::numeric_limits<int>::max(), 1);
  const std::vector<std::int64_t> widths = node.integers("inputdimensions");
  if (!widths.empty() && count_of(widths) != node.inputs())
    node.fail("'inputdimensions' has " + std::to_string(widths.size()) + " numbers for " +
              std::to_string(node.inputs()) + " inputs");
  if (node.failed()) return;
  std::vector<std::string> parts;
  for (int i = 0; i < node.inputs(); ++i) parts.push_back(node.as_floats(node.input(i)));
  auto& made = node.add("FeatureVectorizer", parts, {node.output(0)});
  if (widths.empty()) return;
  auto& a = *made.add_attribute();
  a.set_name("inputdimensions");
  a.set_type(onnx::AttributeProto::INTS);
  for (const std::int64_t width : widths) a.add_ints(width);
}

namespace {

// A table of keys in ascending order beside their values, and the value of what is no key.
void encode(MlNode& node, const Labels& keys, const Labels& values, std::string otherwise) {
  std::vector<std::size_t> places;
  switch (keys.type) {
    case DataType::i64:
    case DataType::string:
      places = ordered<std::int64_t>(keys);
      break;
    case DataType::i32:
      places = ordered<std::int32_t>(keys);
      break;
    case DataType::f32:
      places = ordered<float>(keys);
      break;
    case DataType::f64:
      places = ordered<double>(keys);
      break;
    default:
      node.unsupported("its keys are of type " + std::string(onnx_name(keys.type)) +
                       "; string, int64, int32, float and double are supported");
      return;
  }
  std::string sorted_keys, sorted_values;
  const std::size_t k = size_of(keys.type), v = size_of(values.type);
  for (const std::size_t at : places) {
    sorted_keys.append(keys.bytes, at * k, k);
    sorted_values.append(values.bytes, at * v, v);
  }
  const auto count = count_of(places);
  const std::string table = table_of(node, "keys", keys.type, count, std::move(sorted_keys));
  const std::string results = table_of(node, "values", values.type, count, std::move(sorted_values));
  const std::string rest = table_of(node, "default", values.type, 1, std::move(otherwise));
  node.add("LabelEncoder", {node.input(0), table, results, rest}, {node.output(0)});
}

// What lookup gives for what is no key, of the attributes default_*.
std::string default_of(MlNode& node, DataType type) {
  const std::string text = node.text("default_string", "_Unused");
  const std::int64_t integer = node.integer("default_int64", -1);
  const float real = node.real("default_float", -0.0F);
  const auto bytes_of = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  if (type == DataType::i64) return bytes_of(integer);
  if (type == DataType::f32) return bytes_of(real);
  if (type != DataType::string) return std::string(size_of(type), '\0');
  const auto known = known_texts().add(text);
  if (!known) node.fail(known.error().message);
  return bytes_of(known.value_or(unknown_text));
}

// Texts to whole numbers, or the way back, whichever the input's type asks for.
void encode_either_way(MlNode& node, const Labels& texts, const Labels& numbers) {
  if (texts.count != numbers.count || texts.count == 0)
    node.fail("it has " + std::to_string(texts.count) + " texts for " + std::to_string(numbers.count) +
              " numbers");
  const int type = node.declared_type(node.input(0));
  if (type != onnx::TensorProto::STRING && type != onnx::TensorProto::INT64)
    node.unsupported("the file does not say that its input '" + node.input(0).substr(0, 100) +
                     "' is of strings or of int64, which says what it makes of it");
  const bool to_numbers = type == onnx::TensorProto::STRING;
  std::string otherwise = default_of(node, to_numbers ? DataType::i64 : DataType::string);
  if (node.failed()) return;
  encode(node, to_numbers ? texts : numbers, to_numbers ? numbers : texts, std::move(otherwise));
}

}  // namespace

void expand_label_encoder(MlNode& node) {
  node.counts(1, 1, 1);
  if (node.has("classes_strings")) {  // as the operator was at first
    const Labels texts = labels_from(node, node.texts("classes_strings"));
    std::vector<std::int64_t> places(texts.count);
    std::iota(places.begin(), places.end(), std::int64_t{0});
    encode_either_way(node, texts, labels_from(DataType::i64, places));
    return;
  }
  bool keyed = false, valued = false;
  const Labels keys = read_labels(node, "keys", keyed);
  const Labels values = read_labels(node, "values", valued);
  if (!keyed || !valued) node.fail("it needs keys and values");
  if (keys.count != values.count || keys.count == 0)
    node.fail("it has " + std::to_string(keys.count) + " keys, but " + std::to_string(values.count) +
              " values");
  std::string otherwise = default_of(node, values.type);
  if (const auto* given = node.tensor("default_tensor"); given != nullptr) {
    auto read = TensorReader({}).read(given->t());
    if (!read || (*read)->type().type != values.type || (*read)->type().elements() != 1)
      node.fail("attribute 'default_tensor' must be one element of the values' type");
    else
      otherwise.assign(reinterpret_cast<const char*>((*read)->bytes().data()), (*read)->bytes().size());
  }
  if (!node.failed()) encode(node, keys, values, std::move(otherwise));
}

void expand_category_mapper(MlNode& node) {
  node.counts(1, 1, 1);
  const Labels texts = labels_from(node, node.texts("cats_strings"));
  encode_either_way(node, texts, labels_from(DataType::i64, node.integers("cats_int64s")));
}

void expand_one_hot(MlNode& node) {
  node.counts(1, 1, 1);
  std::vector<std::int64_t> categories = node.integers("cats_int64s");
  const bool texts = node.has("cats_strings");
  if (texts && !categories.empty()) node.fail("it has both 'cats_int64s' and 'cats_strings'");
  if (texts) {
    const Labels known = labels_from(node, node.texts("cats_strings"));
    categories.resize(known.count);
    if (known.count > 0) std::memcpy(categories.data(), known.bytes.data(), known.bytes.size());
  }
  const std::int64_t zeros = node.integer("zeros", 1);
  if (categories.empty()) node.fail("it has no categories ('cats_int64s' or 'cats_strings')");
  if (node.failed()) return;
  // Of a category that is listed twice, the last place counts.
  std::map<std::int64_t, std::int64_t> places;
  for (std::size_t i = 0; i < categories.size(); ++i) places[categories[i]] = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> keys, columns;
  for (const auto& [category, place] : places) {
    keys.push_back(category);
    columns.push_back(place);
  }
  const auto count = count_of(keys);
  const Labels sorted = labels_from(texts ? DataType::string : DataType::i64, keys);
  const std::string table = table_of(node, "categories", sorted.type, count, sorted.bytes);
  auto& made = node.add("OneHotEncoder", {node.input(0), table, node.constant("columns", columns, {count})},
                        {node.output(0)});
  set(made, "zeros", std::int64_t{zeros != 0});
  set(made, "columns", count_of(categories));
}

void expand_zip_map(MlNode& node) {
  node.counts(1, 1, 1);
  static_cast<void>(node.integers("classlabels_int64s"));
  static_cast<void>(node.texts("classlabels_strings"));
  if (!node.failed()) node.add("Identity", {node.input(0)}, {node.output(0)});
}

}  // namespace carillon::graph::ml
