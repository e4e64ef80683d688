#include "carillon/graph/ml/expand.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "carillon/graph/ml/node.h"

namespace carillon::graph::ml {
namespace {

struct Rule {
  std::string_view op;
  void (*expand)(MlNode&);
};
constexpr std::array rules{
    Rule{"ArrayFeatureExtractor", expand_extractor},
    Rule{"Binarizer", expand_binarizer},
    Rule{"CategoryMapper", expand_category_mapper},
    Rule{"FeatureVectorizer", expand_vectorizer},
    Rule{"Imputer", expand_imputer},
    Rule{"LabelEncoder", expand_label_encoder},
    Rule{"LinearClassifier", expand_linear},
    Rule{"LinearRegressor", expand_linear},
    Rule{"Normalizer", expand_normalizer},
    Rule{"OneHotEncoder", expand_one_hot},
    Rule{"SVMClassifier", expand_svm},
    Rule{"SVMRegressor", expand_svm},
    Rule{"Scaler", expand_scaler},
    Rule{"TreeEnsemble", expand_tree_ensemble},
    Rule{"TreeEnsembleClassifier", expand_trees},
    Rule{"TreeEnsembleRegressor", expand_trees},
    Rule{"ZipMap", expand_zip_map},
};

bool is_ml(const onnx::NodeProto& node) {
  return node.domain() == "ai.onnx.ml";
}

}  // namespace

Result<> expand(onnx::GraphProto& graph) {
  for (const auto& node : graph.node())
    if (node.domain() == own_domain)
      return fail(ErrorCode::unsupported, "node '" + node.name().substr(0, 100) + "' (" +
                                              node.op_type().substr(0, 100) + "): operators of domain '" +
                                              std::string(own_domain) + "' are not for files");
  if (std::ranges::none_of(graph.node(), is_ml)) return {};
  // Rules look at the graph while nodes are replaced: none is moved out of it before all are done.
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
  for (const auto& node : graph.node()) {
    if (!is_ml(node)) {
      *nodes.Add() = node;
      continue;
    }
    const auto* rule = std::ranges::find(rules, std::string_view(node.op_type()), &Rule::op);
    MlNode ml(graph, node);
    if (rule == rules.end())
      ml.unsupported("the operator of domain 'ai.onnx.ml' is not supported");
    else
      rule->expand(ml);
    if (rule != rules.end()) ml.nothing_else();
    if (auto ok = ml.result(); !ok) return ok;
    for (auto& made : ml.nodes()) *nodes.Add() = std::move(made);
  }
  graph.mutable_node()->Swap(&nodes);
  return {};
}

}  // namespace carillon::graph::ml
