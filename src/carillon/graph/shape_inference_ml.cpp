#include <string>

#include "carillon/graph/shape_inference.h"

namespace carillon::graph::infer {
namespace {

struct RowsAndColumns {
  std::int64_t rows = 1;
  std::int64_t columns = 0;
};

// Of operand 0; one dimension is one row.
Result<RowsAndColumns> feature_rows(const Inference& x) {
  const Shape& shape = x.shape(0);
  if (shape.size() == 1) return RowsAndColumns{1, shape[0]};
  if (shape.size() == 2) return RowsAndColumns{shape[0], shape[1]};
  return x.error("its data must be rows of features, with one or two dimensions, not " + to_text(shape));
}

Result<> require_number(const Inference& x) {
  const DataType type = x.input(0).type;
  if (type == DataType::f32 || type == DataType::f64 || type == DataType::i32 || type == DataType::i64)
    return {};
  return x.error("its data must be float, double, int32 or int64, not " + std::string(onnx_name(type)));
}

std::int64_t length_of(const Inference& x, std::size_t i) {
  return x.input(i).elements();
}

}  // namespace

Result<> ml_trees(Inference& x) {
  if (auto ok = require_number(x); !ok) return ok;
  const auto data = feature_rows(x);
  if (!data) return std::unexpected(data.error());
  const std::int64_t features = x.node().integer("features", 0);
  if (data->columns < features)
    return x.error("a row has " + std::to_string(data->columns) + " features, but its trees look at " +
                   std::to_string(features));
  const std::int64_t targets = x.node().integer("targets", 1);
  const bool classifies = x.node().op == "TreeClassifier";
  if (classifies) x.set(0, DataType::i64, {data->rows});
  const bool wide = x.node().integer("wide", 0) != 0;  // the answer is of doubles, too
  x.set(classifies ? 1 : 0, wide ? DataType::f64 : DataType::f32, {data->rows, targets});
  return {};
}

Result<> ml_linear_scores(Inference& x) {
  const auto data = feature_rows(x);
  if (!data) return std::unexpected(data.error());
  const std::int64_t labels = length_of(x, 1);
  x.set(0, DataType::i64, {data->rows});
  x.set(1, DataType::f32, {data->rows, data->columns == 1 && labels == 2 ? 2 : data->columns});
  return {};
}

Result<> ml_svm_scores(Inference& x) {
  const auto data = feature_rows(x);
  if (!data) return std::unexpected(data.error());
  const std::int64_t labels = length_of(x, 1);
  x.set(0, DataType::i64, {data->rows});
  x.set(1, DataType::f32, {data->rows, x.present(2) || labels == 2 ? labels : data->columns});
  return {};
}

Result<> ml_rbf_kernel(Inference& x) {
  const auto data = feature_rows(x);
  if (!data) return std::unexpected(data.error());
  if (data->columns != x.shape(1)[1])
    return x.error("a row has " + std::to_string(data->columns) + " features, but its vectors " +
                   std::to_string(x.shape(1)[1]));
  x.set(0, DataType::f32, {data->rows, x.shape(1)[0]});
  return {};
}

Result<> ml_post_transform(Inference& x) {
  const auto data = feature_rows(x);
  if (!data) return std::unexpected(data.error());
  x.set(0, DataType::f32, x.shape(0));
  return {};
}

// The result of a list is one row of it.
Result<> ml_extractor(Inference& x) {
  if (x.rank(0) < 1) return x.error("its data must have at least one dimension");
  if (x.input(1).type != DataType::i64)
    return x.error("its indices must be int64, not " + std::string(onnx_name(x.input(1).type)));
  Shape shape = x.shape(0);
  shape.back() = length_of(x, 1);
  if (shape.size() == 1) shape.insert(shape.begin(), 1);
  x.set(0, x.input(0).type, std::move(shape));
  x.node().op = "Gather";
  x.node().attributes.insert_or_assign("axis", Attribute{std::int64_t{-1}});
  return {};
}

Result<> ml_vectorizer(Inference& x) {
  const auto widths = x.node().integers("inputdimensions");
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < x.inputs(); ++i) {
    const Shape& shape = x.shape(i);
    if (shape.size() != 2 || shape[0] != x.shape(0)[0])
      return x.error("input " + std::to_string(i) + " is " + to_text(shape) +
                     "; all must be rows of features, as many as the first has");
    if (i < widths.size() && widths[i] != shape[1])
      return x.error("input " + std::to_string(i) + " has " + std::to_string(shape[1]) +
                     " features, but 'inputdimensions' says " + std::to_string(widths[i]));
    columns += shape[1];
  }
  x.set(0, DataType::f32, {x.shape(0)[0], columns});
  x.node().op = "Concat";
  x.node().attributes.clear();
  x.node().attributes.insert_or_assign("axis", Attribute{std::int64_t{1}});
  return {};
}

Result<> ml_label_encoder(Inference& x) {
  if (x.input(0).type != x.input(1).type)
    return x.error("its keys are " + std::string(onnx_name(x.input(1).type)) + ", but its input is " +
                   std::string(onnx_name(x.input(0).type)));
  x.set(0, x.input(2).type, x.shape(0));
  return {};
}

Result<> ml_one_hot(Inference& x) {
  const bool texts = x.input(1).type == DataType::string;
  if (texts != (x.input(0).type == DataType::string))
    return x.error("its categories are " + std::string(texts ? "texts" : "numbers") + ", but its input is " +
                   std::string(onnx_name(x.input(0).type)));
  if (!texts)
    if (auto ok = require_number(x); !ok) return ok;
  Shape shape = x.shape(0);
  shape.push_back(x.node().integer("columns", 0));
  x.set(0, DataType::f32, std::move(shape));
  return {};
}

}  // namespace carillon::graph::infer
