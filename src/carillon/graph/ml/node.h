#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <onnx/onnx_pb.h>

#include "carillon/base/result.h"
#include "carillon/graph/tensor.h"

namespace carillon::graph::ml {

// One node of ai.onnx.ml while it is expanded: its attributes, checked, and the nodes that take its place.
// The first error is kept; what follows it gives empty values, so that rules need to look only at the end.
class MlNode {
 public:
  MlNode(const onnx::GraphProto& graph, const onnx::NodeProto& node);

  const std::string& op() const { return node_.op_type(); }

  // Attributes, or a value that stands for its absence. One of another type is an error.
  std::int64_t integer(std::string_view name, std::int64_t fallback);
  float real(std::string_view name, float fallback);
  std::string text(std::string_view name, std::string_view fallback);
  std::vector<std::int64_t> integers(std::string_view name);
  std::vector<float> reals(std::string_view name);
  // A list that the operator may have as floats, or as a tensor of floats or doubles named `name`_as_tensor.
  // `wide` is set where it is of doubles.
  std::vector<double> wide_reals(std::string_view name, bool& wide);
  // A tensor of floats or doubles, or of uint8.
  std::vector<double> real_tensor(std::string_view name, bool& wide);
  std::vector<std::uint8_t> byte_tensor(std::string_view name);
  const google::protobuf::RepeatedPtrField<std::string>& texts(std::string_view name);
  const onnx::AttributeProto* tensor(std::string_view name);
  bool has(std::string_view name) const;
  // Which of `words` the text attribute is; an error lists them.
  std::size_t choice(std::string_view name, std::string_view fallback,
                     std::span<const std::string_view> words);

  // Every attribute must have been asked for by now.
  void nothing_else();

  int inputs() const { return node_.input_size(); }
  std::string input(int i) const;
  // Errors where there are fewer or more operands.
  void counts(int inputs_at_least, int inputs_at_most, int outputs_at_most);
  // The output's name; made up where nobody wants it.
  std::string output(int i);
  // Whether a node or the graph's end reads output `i`.
  bool is_read(int i) const;
  // ONNX's number for the element type that the file declares for a value; 0 where it does not say.
  int declared_type(const std::string& name) const;

  // Nodes in its place, in order, all of own_domain. The reference is good until the next is added.
  onnx::NodeProto& add(std::string_view op, const std::vector<std::string>& inputs,
                       const std::vector<std::string>& outputs);
  // The same, of a value between that is given back.
  std::string between(std::string_view op, const std::vector<std::string>& inputs);
  std::string constant(std::string_view what, const std::vector<float>& values, const Shape& shape);
  std::string constant(std::string_view what, const std::vector<std::int64_t>& values, const Shape& shape);
  std::string constant_texts(std::string_view what, const std::vector<std::string>& texts,
                             const Shape& shape);
  std::string constant_bytes(std::string_view what, DataType type, const Shape& shape, std::string bytes);
  std::string as_floats(const std::string& name);

  void fail(std::string_view what);
  void unsupported(std::string_view what);
  bool failed() const { return error_.has_value(); }
  Result<> result() const;
  std::vector<onnx::NodeProto>& nodes() { return nodes_; }

 private:
  SharedTensor read_tensor(std::string_view name);  // null where there is none, or an error
  const onnx::AttributeProto* find(std::string_view name, onnx::AttributeProto::AttributeType type);

  const onnx::GraphProto& graph_;
  const onnx::NodeProto& node_;
  std::string base_;  // what values between are named after
  std::vector<bool> asked_;
  std::vector<onnx::NodeProto> nodes_;
  std::optional<Error> error_;
};

void set(onnx::NodeProto& node, std::string_view name, std::int64_t value);
void set(onnx::NodeProto& node, std::string_view name, float value);
void set(onnx::NodeProto& node, std::string_view name, std::string_view value);

// How scores become what a model gives (attribute post_transform), in the order of `post_transforms`.
inline constexpr std::array<std::string_view, 5> post_transforms = {"NONE", "SOFTMAX", "LOGISTIC",
                                                                    "SOFTMAX_ZERO", "PROBIT"};

// A classifier's labels: of classlabels_int64s or classlabels_ints as they are; of classlabels_strings their
// places 0, 1, ..., from which name_labels() makes texts.
std::vector<std::int64_t> labels_of(MlNode& node, std::string_view integers);
// Where the classifier's nodes are to leave the labels that labels_of() gave.
std::string labels_output(MlNode& node);
// The last node of a classifier whose labels are text and read: its first output, made of labels_output().
void name_labels(MlNode& node);

// The rules; each leaves its nodes, or an error.
void expand_trees(MlNode& node);   // TreeEnsembleClassifier, TreeEnsembleRegressor
void expand_tree_ensemble(MlNode& node);
void expand_linear(MlNode& node);  // LinearClassifier, LinearRegressor
void expand_svm(MlNode& node);     // SVMClassifier, SVMRegressor
void expand_scaler(MlNode& node);
void expand_normalizer(MlNode& node);
void expand_imputer(MlNode& node);
void expand_binarizer(MlNode& node);
void expand_extractor(MlNode& node);   // ArrayFeatureExtractor
void expand_vectorizer(MlNode& node);  // FeatureVectorizer
void expand_label_encoder(MlNode& node);
void expand_category_mapper(MlNode& node);
void expand_one_hot(MlNode& node);  // OneHotEncoder
void expand_zip_map(MlNode& node);

}  // namespace carillon::graph::ml
