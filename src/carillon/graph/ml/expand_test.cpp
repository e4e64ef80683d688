#include "carillon/graph/ml/expand.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "carillon/graph/testing.h"

namespace carillon::graph::ml {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Onnx;

onnx::NodeProto& ml_node(Onnx& model, const std::string& op, const std::vector<std::string>& outputs) {
  model.node(op, {"x"}, outputs, "n");
  auto& node = *model.proto.mutable_graph()->mutable_node(model.proto.graph().node_size() - 1);
  node.set_domain("ai.onnx.ml");
  return node;
}
onnx::AttributeProto& change(Onnx& model, const std::string& name) {
  for (auto& a : *model.proto.mutable_graph()->mutable_node(0)->mutable_attribute())
    if (a.name() == name) return a;
  ADD_FAILURE() << "no attribute " << name;
  return *model.proto.mutable_graph()->mutable_node(0)->add_attribute();
}
void set_reals(Onnx& model, const std::string& name, const std::vector<float>& values) {
  auto& a = *model.proto.mutable_graph()->mutable_node(0)->add_attribute();
  a.set_name(name);
  a.set_type(onnx::AttributeProto::FLOATS);
  for (const float value : values) a.add_floats(value);
}

// One tree: node 0 asks feature 1, nodes 1 and 2 are leaves.
Onnx tree() {
  Onnx model;
  ml_node(model, "TreeEnsembleRegressor", {"y"});
  using Integers = std::vector<std::int64_t>;
  model.set("nodes_treeids", Integers{0, 0, 0}).set("nodes_nodeids", Integers{0, 1, 2});
  model.set("nodes_featureids", Integers{1, 0, 0}).set("nodes_truenodeids", Integers{1, 0, 0});
  model.set("nodes_falsenodeids", Integers{2, 0, 0}).texts("nodes_modes", {"BRANCH_LEQ", "LEAF", "LEAF"});
  set_reals(model, "nodes_values", {0.5F, 0, 0});
  model.set("target_treeids", Integers{0, 0}).set("target_nodeids", Integers{1, 2});
  model.set("target_ids", Integers{0, 0});
  set_reals(model, "target_weights", {1, 2});
  return model;
}

std::vector<std::string> operators_of(const Onnx& model) {
  std::vector<std::string> found;
  for (const auto& node : model.proto.graph().node())
    if (node.op_type() != "Constant") found.push_back(node.domain() + "." + node.op_type());
  return found;
}

TEST(ExpandMl, ATreeIsOneOperatorOfOurs) {
  Onnx model = tree();
  const auto done = expand(*model.proto.mutable_graph());
  ASSERT_TRUE(done.has_value()) << done.error().message;
  EXPECT_THAT(operators_of(model), ElementsAre("carillon.TreeRegressor"));
}

TEST(ExpandMl, NodesMayShareAChild) {
  Onnx model = tree();
  change(model, "nodes_falsenodeids").set_ints(0, 1);
  EXPECT_TRUE(expand(*model.proto.mutable_graph()).has_value());
}

TEST(ExpandMl, BadTreesAreRefusedWithWhatIsWrong) {
  const struct {
    std::string what;
    std::function<void(Onnx&)> spoil;
    std::string error;
  } rows[] = {
      {"a list too short", [](Onnx& m) { change(m, "nodes_featureids").mutable_ints()->RemoveLast(); },
       "'nodes_featureids' has 2 elements, but 'nodes_treeids' 3"},
      {"no nodes", [](Onnx& m) { m.proto.mutable_graph()->mutable_node(0)->clear_attribute(); },
       "it has 0 nodes"},
      {"a negative feature", [](Onnx& m) { change(m, "nodes_featureids").set_ints(0, -1); },
       "node 0 of tree 0: its feature is -1"},
      {"a huge feature", [](Onnx& m) { change(m, "nodes_featureids").set_ints(0, std::int64_t{1} << 40); },
       "its feature is 1099511627776"},
      {"a child that is not there", [](Onnx& m) { change(m, "nodes_truenodeids").set_ints(0, 7); },
       "its true node 7 is not in the tree"},
      {"a child of another tree", [](Onnx& m) { change(m, "nodes_treeids").set_ints(2, 1); },
       "its false node 2 is not in the tree"},
      {"a cycle of one", [](Onnx& m) { change(m, "nodes_falsenodeids").set_ints(0, 0); },
       "node 0 of tree 0: it is part of a cycle"},
      {"a cycle of two",
       [](Onnx& m) {
         change(m, "nodes_modes").set_strings(2, "BRANCH_LT");
         change(m, "nodes_truenodeids").set_ints(2, 1);
         change(m, "target_nodeids").set_ints(1, 1);
       },
       "it is part of a cycle"},
      {"a node twice", [](Onnx& m) { change(m, "nodes_nodeids").set_ints(2, 1); },
       "node 1 of tree 0: it is there twice"},
      {"a mode that is none", [](Onnx& m) { change(m, "nodes_modes").set_strings(0, "BRANCH"); },
       "its mode is 'BRANCH', but must be"},
      {"a weight of a branch", [](Onnx& m) { change(m, "target_nodeids").set_ints(0, 0); },
       "a weight is of node 0 of tree 0, which is not a leaf"},
      {"a target outside", [](Onnx& m) { change(m, "target_ids").set_ints(0, 1); },
       "'target_ids' has 1; it must be 0 to 0"},
      {"targets without number", [](Onnx& m) { m.set("n_targets", std::int64_t{1} << 50); },
       "'n_targets' is 1125899906842624"},
      {"base values too many",
       [](Onnx& m) {
         set_reals(m, "base_values", {1, 2});
       },
       "'base_values' has 2 numbers for 1 targets"},
      {"an attribute of another type", [](Onnx& m) { m.set("post_transform", 3); },
       "attribute 'post_transform' has the wrong type"},
      {"a transform that is none", [](Onnx& m) { m.set("post_transform", "SQUARE"); },
       "is 'SQUARE', but must be one of NONE"},
      {"an attribute twice", [](Onnx& m) { m.set("n_targets", 1).set("n_targets", 1); },
       "'n_targets' is given twice"},
      {"an attribute of no operator", [](Onnx& m) { m.set("depth", 1); }, "'depth' is not one that is known"},
      {"two inputs", [](Onnx& m) { m.proto.mutable_graph()->mutable_node(0)->add_input("z"); },
       "it has 2 inputs, but takes 1"},
  };
  for (const auto& row : rows) {
    Onnx model = tree();
    row.spoil(model);
    const auto done = expand(*model.proto.mutable_graph());
    ASSERT_FALSE(done.has_value()) << row.what;
    EXPECT_THAT(done.error().message, HasSubstr(row.error)) << row.what;
    EXPECT_THAT(done.error().message, HasSubstr("node 'n' (TreeEnsembleRegressor)")) << row.what;
  }
}

template <typename T>
void set_tensor(Onnx& model, const std::string& name, onnx::TensorProto::DataType type,
                const std::vector<T>& values) {
  auto& a = *model.proto.mutable_graph()->mutable_node(0)->add_attribute();
  a.set_name(name);
  a.set_type(onnx::AttributeProto::TENSOR);
  a.mutable_t()->set_data_type(type);
  a.mutable_t()->add_dims(static_cast<std::int64_t>(values.size()));
  a.mutable_t()->set_raw_data(values.data(), values.size() * sizeof(T));
}

// Version 5: node 0 asks whether feature 1 is among 1, 2 and 3, then node 1 compares; three leaves.
Onnx ensemble() {
  Onnx model;
  ml_node(model, "TreeEnsemble", {"y"});
  using Integers = std::vector<std::int64_t>;
  model.set("tree_roots", Integers{0}).set("nodes_featureids", Integers{1, 0});
  model.set("nodes_truenodeids", Integers{0, 1}).set("nodes_trueleafs", Integers{1, 1});
  model.set("nodes_falsenodeids", Integers{1, 2}).set("nodes_falseleafs", Integers{0, 1});
  model.set("leaf_targetids", Integers{0, 0, 0});
  set_tensor<std::uint8_t>(model, "nodes_modes", onnx::TensorProto::UINT8, {6, 0});
  set_tensor<float>(model, "nodes_splits", onnx::TensorProto::FLOAT, {0, 0.5F});
  set_tensor<float>(model, "leaf_weights", onnx::TensorProto::FLOAT, {1, 2, 3});
  set_tensor<float>(model, "membership_values", onnx::TensorProto::FLOAT, {1, 2, 3});
  return model;
}

TEST(ExpandMl, AnEnsembleIsTheSameOperatorWithAQuestionAMember) {
  Onnx model = ensemble();
  const auto done = expand(*model.proto.mutable_graph());
  ASSERT_TRUE(done.has_value()) << done.error().message;
  EXPECT_THAT(operators_of(model), ElementsAre("carillon.TreeRegressor"));
  const auto& nodes = model.proto.graph().node(0).attribute(0).t();
  EXPECT_EQ(nodes.dims(0), 2 + 3 + 2);
}

TEST(ExpandMl, BadEnsemblesAreRefusedWithWhatIsWrong) {
  const struct {
    std::string what;
    std::function<void(Onnx&)> spoil;
    std::string error;
  } rows[] = {
      {"a list too short", [](Onnx& m) { change(m, "nodes_trueleafs").mutable_ints()->RemoveLast(); },
       "'nodes_trueleafs' has 1 elements, but 'nodes_featureids' 2"},
      {"no nodes", [](Onnx& m) { m.proto.mutable_graph()->mutable_node(0)->clear_attribute(); },
       "it has 0 nodes and 0 leaves"},
      {"a negative feature", [](Onnx& m) { change(m, "nodes_featureids").set_ints(0, -1); },
       "node 0: its feature is -1"},
      {"a leaf that is not there", [](Onnx& m) { change(m, "nodes_truenodeids").set_ints(1, 3); },
       "node 1: its true node is leaf 3 of 3"},
      {"a node that is not there", [](Onnx& m) { change(m, "nodes_falsenodeids").set_ints(0, 2); },
       "node 0: its false node is 2 of 2"},
      {"a negative place", [](Onnx& m) { change(m, "nodes_falsenodeids").set_ints(0, -1); },
       "node 0: its false node is -1 of 2"},
      {"a cycle", [](Onnx& m) { change(m, "nodes_falsenodeids").set_ints(0, 0); }, "it is part of a cycle"},
      {"a root that is not there", [](Onnx& m) { change(m, "tree_roots").set_ints(0, 2); },
       "'tree_roots' has 2; it must be 0 to 1"},
      {"a target outside", [](Onnx& m) { change(m, "leaf_targetids").set_ints(2, 1); },
       "'leaf_targetids' has 1; it must be 0 to 0"},
      {"a mode that is none",
       [](Onnx& m) { (*change(m, "nodes_modes").mutable_t()->mutable_raw_data())[1] = 7; },
       "node 1: its mode is 7, but must be 0 to 6"},
      {"a set too few", [](Onnx& m) { (*change(m, "nodes_modes").mutable_t()->mutable_raw_data())[1] = 6; },
       "node 1: 'membership_values' has no set for it"},
      {"splits of another type",
       [](Onnx& m) {
         auto& tensor = *change(m, "nodes_splits").mutable_t();
         tensor.set_data_type(onnx::TensorProto::DOUBLE);
         tensor.set_raw_data(std::string(16, '\0'));
       },
       "must be of one type"},
      {"modes of another type",
       [](Onnx& m) { change(m, "nodes_modes").mutable_t()->set_data_type(onnx::TensorProto::INT8); },
       "attribute 'nodes_modes' must be of uint8"},
      {"a function that is none", [](Onnx& m) { m.set("aggregate_function", 4); },
       "'aggregate_function' is 4; it must be 0 to 3"},
      {"no targets", [](Onnx& m) { m.set("n_targets", 0); }, "'n_targets' is 0"},
      {"an attribute of no operator", [](Onnx& m) { m.set("depth", 1); }, "'depth' is not one that is known"},
  };
  for (const auto& row : rows) {
    Onnx model = ensemble();
    row.spoil(model);
    const auto done = expand(*model.proto.mutable_graph());
    ASSERT_FALSE(done.has_value()) << row.what;
    EXPECT_THAT(done.error().message, HasSubstr(row.error)) << row.what;
    EXPECT_THAT(done.error().message, HasSubstr("node 'n' (TreeEnsemble)")) << row.what;
  }
}

// Trees that are walked to no end by whoever recurses.
TEST(ExpandMl, ALongChainIsNoTrouble) {
  constexpr std::int64_t count = 200'000;
  Onnx model;
  ml_node(model, "TreeEnsembleRegressor", {"y"});
  std::vector<std::int64_t> trees(count, 0), ids, features(count, 0), yes, no;
  std::vector<std::string> modes(count, "BRANCH_LEQ");
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(i);
    yes.push_back(i + 1);
    no.push_back(count - 1);
  }
  modes.back() = "LEAF";
  model.set("nodes_treeids", trees).set("nodes_nodeids", ids).set("nodes_featureids", features);
  model.set("nodes_truenodeids", yes).set("nodes_falsenodeids", no).texts("nodes_modes", modes);
  set_reals(model, "nodes_values", std::vector<float>(count, 0));
  const auto done = expand(*model.proto.mutable_graph());
  EXPECT_TRUE(done.has_value()) << done.error().message;
}

TEST(ExpandMl, BadListsOfOthersAreRefused) {
  using Integers = std::vector<std::int64_t>;
  const auto refused = [](const std::string& op, const std::function<void(Onnx&)>& give) {
    Onnx model;
    ml_node(model, op, {"y"});
    give(model);
    const auto done = expand(*model.proto.mutable_graph());
    return done ? std::string("nothing") : done.error().message;
  };
  EXPECT_THAT(refused("Scaler",
                      [](Onnx& m) {
                        set_reals(m, "offset", {1, 2});
                        set_reals(m, "scale", {1, 2, 3});
                      }),
              HasSubstr("2 offsets, but 3 scales"));
  EXPECT_THAT(refused("LinearRegressor",
                      [](Onnx& m) {
                        set_reals(m, "coefficients", {1, 2, 3});
                        m.set("targets", 2);
                      }),
              HasSubstr("'coefficients' has 3 numbers, which do not make 2 equal rows"));
  EXPECT_THAT(refused("LinearRegressor", [](Onnx& m) { m.set("targets", std::int64_t{-4}); }),
              HasSubstr("'targets' is -4"));
  EXPECT_THAT(refused("LabelEncoder",
                      [](Onnx& m) {
                        m.set("keys_int64s", Integers{1, 2}).set("values_int64s", Integers{1});
                      }),
              HasSubstr("2 keys, but 1 values"));
  EXPECT_THAT(refused("LabelEncoder", [](Onnx& m) { m.texts("keys_strings", {"a"}); }),
              HasSubstr("it needs keys and values"));
  EXPECT_THAT(refused("CategoryMapper",
                      [](Onnx& m) {
                        m.texts("cats_strings", {"a", "b"}).set("cats_int64s", Integers{1});
                      }),
              HasSubstr("2 texts for 1 numbers"));
  EXPECT_THAT(refused("CategoryMapper",
                      [](Onnx& m) {
                        m.texts("cats_strings", {"a"}).set("cats_int64s", Integers{1});
                      }),
              HasSubstr("does not say that its input 'x' is of strings or of int64"));
  EXPECT_THAT(refused("OneHotEncoder", [](Onnx&) {}), HasSubstr("it has no categories"));
  EXPECT_THAT(refused("DictVectorizer", [](Onnx&) {}),
              HasSubstr("the operator of domain 'ai.onnx.ml' is not supported"));
  const auto svm = [&](const Integers& per_class) {
    return refused("SVMClassifier", [&](Onnx& m) {
      m.set("classlabels_ints", Integers{0, 1}).set("vectors_per_class", per_class);
      set_reals(m, "support_vectors", {1, 2});
      set_reals(m, "coefficients", {1, 2});
      set_reals(m, "rho", {1});
    });
  };
  EXPECT_EQ(svm({1, 1}), "nothing");
  EXPECT_THAT(svm({1, -1}), HasSubstr("'vectors_per_class' has -1"));
  EXPECT_THAT(svm({1, std::int64_t{1} << 62}), HasSubstr("each must be 0 to the 2 numbers"));
  EXPECT_THAT(svm({2, 1}), HasSubstr("'coefficients' has 2 numbers, but 3 are wanted"));
}

// Their kernels trust what expansion has made: no file may hand them something else.
TEST(ExpandMl, AFileMayNotNameOperatorsOfOurs) {
  Onnx model;
  ml_node(model, "TreeRegressor", {"y"}).set_domain("carillon");
  const auto done = expand(*model.proto.mutable_graph());
  ASSERT_FALSE(done.has_value());
  EXPECT_THAT(done.error().message, HasSubstr("operators of domain 'carillon' are not for files"));
}

}  // namespace
}  // namespace carillon::graph::ml
