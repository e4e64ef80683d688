#include <filesystem>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/recurrence.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::Onnx;

Onnx small() {
  Onnx m;
  m.input("x", {"batch", "4"}).random("w", {4, 3}).node("MatMul", {"x", "w"}, {"y"}, "mm").output("y");
  return m;
}

TEST(ImportOnnx, TellsInputsAndOutputsWithTheirBatch) {
  const auto model = small().import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->name(), "test");
  EXPECT_TRUE((*model)->batched());
  EXPECT_THAT((*model)->inputs(), ElementsAre(TensorSpec{"x", DataType::f32, {batch_dimension, 4}}));
  EXPECT_THAT((*model)->outputs(), ElementsAre(TensorSpec{"y", DataType::f32, {batch_dimension, 3}}));
  EXPECT_EQ((*model)->inputs()[0].shape_at(5), (Shape{5, 4}));
}

TEST(ImportOnnx, SharesWeightsBetweenBatches) {
  Onnx m;
  m.input("x", {"n", "3", "8", "8"}).random("w", {4, 3, 3, 3}).random("s", {4}).random("b", {4});
  m.random("mean", {4}).random("var", {4}, true);
  m.node("Conv", {"x", "w"}, {"c"})
      .node("BatchNormalization", {"c", "s", "b", "mean", "var"}, {"y"})
      .output("y");
  const auto model = m.import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto one = (*model)->specialize(1);
  const auto seven = (*model)->specialize(7);
  ASSERT_TRUE(one && seven);
  ASSERT_EQ(one->nodes.size(), 1U);
  ASSERT_EQ(seven->nodes.size(), 1U);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const auto& a = one->value(one->nodes[0].inputs[i]).constant;
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a, seven->value(seven->nodes[0].inputs[i]).constant) << "input " << i;
  }
  EXPECT_EQ(seven->value(seven->outputs[0]).type.shape, (Shape{7, 4, 6, 6}));
}

// A batch of sequences: one output is as long as they are, the other is not.
Onnx sequences() {
  Onnx m;
  m.input("x", {"batch", "seq", "4"})
      .input("mask", {"batch", "seq"})
      .random("w", {4, 3})
      .i64("one", {1}, {1});
  m.node("MatMul", {"x", "w"}, {"tokens"}).node("ReduceSum", {"mask", "one"}, {"count"});
  return m.output("tokens").output("count");
}

TEST(ImportOnnx, ADimensionMayVaryWithTheRequest) {
  const auto model = sequences().import({.lengths = {4, 16}});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT((*model)->lengths(), ElementsAre(4, 16));
  EXPECT_THAT((*model)->inputs(),
              ElementsAre(TensorSpec{"x", DataType::f32, {batch_dimension, length_dimension, 4}},
                          TensorSpec{"mask", DataType::f32, {batch_dimension, length_dimension}}));
  EXPECT_THAT((*model)->outputs(),
              ElementsAre(TensorSpec{"tokens", DataType::f32, {batch_dimension, length_dimension, 3}},
                          TensorSpec{"count", DataType::f32, {batch_dimension, 1}}));
  EXPECT_EQ((*model)->inputs()[0].shape_at(2, 16), (Shape{2, 16, 4}));
  EXPECT_EQ((*model)->inputs()[0].open_shape(), (Shape{-1, -1, 4}));
  const auto graph = (*model)->specialize(3, 16);
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(graph->value(graph->outputs[0]).type.shape, (Shape{3, 16, 3}));
  const auto without = (*model)->specialize(3);
  ASSERT_FALSE(without.has_value());
  EXPECT_THAT(without.error().message, HasSubstr("length 0 must be at least 1"));
  // With one length alone, too, it is seen what follows it.
  const auto single = sequences().import({.lengths = {3}});
  ASSERT_TRUE(single.has_value()) << single.error().message;
  EXPECT_EQ((*single)->outputs(), (*model)->outputs());
}

TEST(ImportOnnx, RefusesWhatCannotVary) {
  const auto error_of = [](const Onnx& m, const ImportOptions& options) {
    const auto model = m.import(options);
    return model ? std::string("imported") : model.error().message;
  };
  EXPECT_THAT(
      error_of(sequences(), {}),
      HasSubstr("dimension 1 ('seq') has no fixed extent; state it in the dims of the model's config, or "
                "give the extents that it may take in the config's parameter lengths"));
  EXPECT_THAT(error_of(small(), {.lengths = {4}}), HasSubstr("every dimension of the inputs is fixed"));
  Onnx two;
  two.input("x", {"batch", "rows", "columns"}).node("Exp", {"x"}, {"y"}).output("y");
  EXPECT_THAT(error_of(two, {.lengths = {4}}),
              HasSubstr("input 'x': dimension 2 ('columns') is the second that varies"));
  EXPECT_EQ(error_of(two, {.input_shapes = {{"x", {-1, 8, -1}}}, .lengths = {4}}), "imported");
  Onnx twice;
  twice.input("x", {"batch", "seq"}).node("Concat", {"x", "x"}, {"y"}).set("axis", 1).output("y");
  EXPECT_THAT(error_of(twice, {.lengths = {4, 8}}),
              HasSubstr("output 'y' has shape [1,8] at length 4 and [1,16] at length 8"));
}

// The weights become floats; that they are whole numbers times scales stays known.
TEST(ImportOnnx, AnLstmOfBytesKeepsItsScales) {
  Onnx m;
  m.input("x", {"5", "1", "3"}).f32("ws", {1}, {0.25F}).f32("rs", {1}, {0.5F});
  const std::string bytes(32, '\3');
  m.tensor("w", {1, 3, 8}, DataType::i8)->set_raw_data(bytes.substr(0, 24));
  m.tensor("r", {1, 2, 8}, DataType::i8)->set_raw_data(bytes.substr(0, 16));
  for (const char* zero : {"wz", "rz"}) m.tensor(zero, {1}, DataType::i8)->set_raw_data(std::string(1, '\0'));
  m.node("DynamicQuantizeLSTM", {"x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"}, {"y"})
      .set("hidden_size", 2);
  m.proto.mutable_graph()->mutable_node(0)->set_domain("com.microsoft");
  auto& domain = *m.proto.add_opset_import();
  domain.set_domain("com.microsoft");
  domain.set_version(1);
  const auto model = m.output("y").import({.batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto graph = (*model)->specialize(1);
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  const auto lstm = std::ranges::find(graph->nodes, "LSTM", &Node::op);
  ASSERT_NE(lstm, graph->nodes.end());
  EXPECT_THAT(lstm->reals(input_weight_scales), ElementsAre(0.25F));
  EXPECT_THAT(lstm->reals(state_weight_scales), ElementsAre(0.5F));
  EXPECT_EQ(graph->value(lstm->inputs[1]).constant->as<float>()[0], 0.75F);
}

// An operator that no engine can know is a fault of the file; of others another engine may be asked.
TEST(ImportOnnx, AnOperatorOfSomebodysOwnIsNoOtherEnginesMatter) {
  for (const auto& [domain, code] : {std::pair{"my.domain", ErrorCode::invalid_argument},
                                     std::pair{"org.openvinotoolkit", ErrorCode::unsupported}}) {
    Onnx m;
    m.input("x", {"1", "3"}).node("Foo", {"x"}, {"y"});
    m.proto.mutable_graph()->mutable_node(0)->set_domain(domain);
    auto& import = *m.proto.add_opset_import();
    import.set_domain(domain);
    import.set_version(1);
    const auto model = m.output("y").import({.batched = false});
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_THAT(model.error().message,
                HasSubstr(std::string("operators of domain '") + domain + "' are not supported"));
  }
}

TEST(ImportOnnx, SpecialisesAlike) {
  const auto model = small().import();
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(to_text(*(*model)->specialize(3)), to_text(*(*model)->specialize(3)));
}

TEST(ImportOnnx, OptionsFixSymbolsWhereverTheyAppear) {
  Onnx m;
  m.input("a", {"n", "seq"}).input("b", {"n", "seq"}).node("Add", {"a", "b"}, {"y"}).output("y");
  const auto open = m.import();
  ASSERT_FALSE(open.has_value());
  EXPECT_THAT(open.error().message, HasSubstr("dimension 1 ('seq') has no fixed extent"));
  const auto model = m.import({.input_shapes = {{"a", {-1, 12}}}});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->inputs()[1].shape, (Shape{batch_dimension, 12}));
  const auto clash = m.import({.input_shapes = {{"a", {-1, 12}}, {"b", {-1, 13}}}});
  ASSERT_FALSE(clash.has_value());
  EXPECT_THAT(clash.error().message, HasSubstr("elsewhere 12"));
  const auto unknown = m.import({.input_shapes = {{"c", {-1}}}});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().message, HasSubstr("no input 'c'"));
}

TEST(ImportOnnx, ModelWithoutBatch) {
  Onnx m;
  m.input("x", {"4"}).node("Relu", {"x"}, {"y"}).output("y");
  const auto model = m.import({.batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->outputs()[0].shape, (Shape{4}));
  EXPECT_TRUE((*model)->specialize(1).has_value());
  EXPECT_FALSE((*model)->specialize(2).has_value());
  EXPECT_FALSE(m.import().has_value()) << "4 is no batch";
}

// An extent of 0 in the file is fixed, as any other; -1 is open.
TEST(ImportOnnx, AnExtentOf0IsFixed) {
  Onnx m;
  m.f32("w", {0, 4}, {});
  m.input("x", {"3", "0"}).node("MatMul", {"x", "w"}, {"y"}).output("y");
  const auto model = m.import({.open = true, .batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->inputs()[0].shape, (Shape{3, 0}));
  EXPECT_EQ((*model)->outputs()[0].shape, (Shape{3, 4}));
  EXPECT_TRUE((*model)->specialize(1).has_value());
  // Dims that leave it to the file leave it at 0.
  EXPECT_TRUE(m.import({.input_shapes = {{"x", {3, -1}}}, .batched = false}).has_value());
  const auto other = m.import({.input_shapes = {{"x", {3, 5}}}, .batched = false});
  ASSERT_FALSE(other.has_value());
  EXPECT_THAT(other.error().message,
              HasSubstr("dimension 1 is 0 in the file, but the model's config says 5"));

  Onnx first;
  first.input("x", {"0", "4"}).node("Relu", {"x"}, {"y"}).output("y");
  EXPECT_TRUE(first.import({.batched = false}).has_value());
  const auto batched = first.import();
  ASSERT_FALSE(batched.has_value());
  EXPECT_THAT(batched.error().message, HasSubstr("dimension 0 is fixed at 0, so it is no batch dimension"));
  Onnx open;
  open.input("x", {"-1", "4"}).node("Relu", {"x"}, {"y"}).output("y");
  EXPECT_TRUE(open.import().has_value());
}

TEST(ImportOnnx, BatchFixedAtOneRunsAloneOnly) {
  Onnx m;
  m.input("x", {"1", "4"}).node("Relu", {"x"}, {"y"}).output("y");
  const auto model = m.import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_TRUE((*model)->specialize(1).has_value());
  const auto two = (*model)->specialize(2);
  ASSERT_FALSE(two.has_value());
  EXPECT_THAT(two.error().message, HasSubstr("input 'x' is fixed at 1"));
}

TEST(ImportOnnx, OutputsMustFollowTheBatch) {
  Onnx m;
  m.input("x", {"n", "4"}).node("Transpose", {"x"}, {"y"}).output("y");
  const auto model = m.import();
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().message, HasSubstr("output 'y'"));
}

TEST(ImportOnnx, TakesNodesInAnyOrder) {
  Onnx m;
  m.input("x", {"n", "4"})
      .node("Exp", {"b"}, {"y"})
      .node("Sin", {"a"}, {"b"})
      .node("Cos", {"x"}, {"a"})
      .output("y");
  const auto model = m.import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT(testing::operators(*(*model)->specialize(1)), ElementsAre("Cos", "Sin", "Exp"));
}

struct Bad {
  const char* what;
  std::function<void(Onnx&)> spoil;
  const char* says;
};

class ImportBad : public ::testing::TestWithParam<Bad> {};

TEST_P(ImportBad, IsRefusedWithItsReason) {
  Onnx m = small();
  GetParam().spoil(m);
  const auto model = m.import();
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().message, HasSubstr(GetParam().says));
}

const Bad bad_models[] = {
    {"NoGraph", [](Onnx& m) { m.proto.clear_graph(); }, "holds no graph"},
    {"NoOpset", [](Onnx& m) { m.proto.clear_opset_import(); }, "which opset"},
    {"OldOpset",
     [](Onnx& m) {
       m.node("Add", {"x", "x"}, {"z"});
       m.proto.mutable_opset_import(0)->set_version(6);
     },
     "its form of opset 6 is not supported"},
    {"NewOpset", [](Onnx& m) { m.proto.mutable_opset_import(0)->set_version(24); }, "1 to 23"},
    {"UnknownOpset", [](Onnx& m) { m.proto.mutable_opset_import(0)->set_version(28); },
     "it uses opset 28; the newest known is 27"},
    {"UnknownMlOpset",
     [](Onnx& m) {
       auto* import = m.proto.add_opset_import();
       import->set_domain("ai.onnx.ml");
       import->set_version(6);
     },
     "it uses opset 6 of domain 'ai.onnx.ml'; the newest known is 5"},
    {"TwoOpsets", [](Onnx& m) { m.proto.add_opset_import()->set_version(16); },
     "it uses opset 16 and also 17; there can be one"},
    {"UnknownIrVersion", [](Onnx& m) { m.proto.set_ir_version(14); },
     "its IR version is 14; the newest known is 13"},
    {"OutOfRange", [](Onnx& m) { m.tensor("v", {1}, DataType::i8)->add_int32_data(128); },
     "int32_data has 128 as element 0, which is out of the range of its type int8"},
    {"TwoPlaces",
     [](Onnx& m) {
       m.f32("v", {1}, {1});
       m.proto.mutable_graph()->mutable_initializer()->rbegin()->add_float_data(1);
     },
     "its data are in raw_data and in float_data"},
    {"UnknownLocation",
     [](Onnx& m) {
       m.f32("v", {1}, {1});
       auto& fields = *m.proto.mutable_graph()->mutable_initializer()->rbegin()->mutable_unknown_fields();
       fields.AddVarint(14, 5);
     },
     "its data_location is one that ONNX does not have"},
    {"UnknownText", [](Onnx& m) { m.node("DepthToSpace", {"x"}, {"z"}).set("mode", "CDR"); },
     "attribute 'mode': it is 'CDR', and must be one of DCR, CRD"},
    {"NoOutputs", [](Onnx& m) { m.proto.mutable_graph()->clear_output(); }, "no outputs"},
    {"UnknownOperator", [](Onnx& m) { m.node("Frobnicate", {"x"}, {"z"}, "odd"); },
     "node 'odd' (Frobnicate)"},
    {"Domain",
     [](Onnx& m) {
       m.node("Gelu", {"x"}, {"z"});
       m.proto.mutable_graph()->mutable_node(1)->set_domain("com.microsoft");
     },
     "com.microsoft"},
    {"SequenceMap", [](Onnx& m) { m.node("SequenceMap", {"x"}, {"z"}, "branch"); },
     "node 'branch' (SequenceMap): of control flow"},
    {"Scan", [](Onnx& m) { m.node("Scan", {"x"}, {"z"}, "branch"); },
     "node 'branch' (Scan): it has no graph 'body'"},
    {"TooNew", [](Onnx& m) { m.node("Mish", {"x"}, {"z"}); }, "known from opset 18"},
    {"UnknownAttribute", [](Onnx& m) { m.node("Relu", {"x"}, {"z"}).set("slope", 1.0F); }, "'slope'"},
    {"AttributeType", [](Onnx& m) { m.node("Elu", {"x"}, {"z"}).set("alpha", 1); }, "wrong type"},
    {"Cycle",
     [](Onnx& m) {
       m.node("Add", {"x", "q"}, {"p"}).node("Relu", {"p"}, {"q"});
     },
     "cycle"},
    {"SelfCycle", [](Onnx& m) { m.node("Relu", {"z"}, {"z"}); }, "cycle"},
    {"DuplicateValue", [](Onnx& m) { m.node("Relu", {"x"}, {"y"}); }, "'y' is given to two values"},
    {"DuplicateWeight", [](Onnx& m) { m.random("w", {1}); }, "'w' is given to two values"},
    {"Dangling", [](Onnx& m) { m.node("Relu", {"nowhere"}, {"z"}); }, "'nowhere' is not made"},
    {"DanglingOutput", [](Onnx& m) { m.output("nowhere"); }, "'nowhere' is not made"},
    {"MissingInput",
     [](Onnx& m) {
       m.node("MatMul", {"x", ""}, {"z"});
     },
     "input 1 is missing"},
    {"TooFewInputs", [](Onnx& m) { m.node("MatMul", {"x"}, {"z"}); }, "has 1 inputs"},
    {"TooManyOutputs",
     [](Onnx& m) {
       m.node("Relu", {"x"}, {"z", "zz"});
     },
     "has 2 outputs"},
    {"ShortRaw", [](Onnx& m) { m.f32("v", {5}, {1}); }, "raw_data has 4 bytes"},
    {"HugeDims",
     [](Onnx& m) {
       m.f32("v", {1LL << 40, 1LL << 40}, {1});
     },
     "2^40"},
    {"NegativeDims", [](Onnx& m) { m.f32("v", {-1}, {1}); }, "negative extent"},
    {"ZeroHidesHuge",
     [](Onnx& m) {
       m.f32("v", {0, 1LL << 62, 1LL << 62}, {});
     },
     "2^40"},
    {"WrongField", [](Onnx& m) { m.tensor("v", {2}, DataType::f32)->add_int64_data(1); },
     "belong into float_data"},
    {"UnknownType", [](Onnx& m) { m.tensor("v", {}, DataType::f32)->set_data_type(99); },
     "element type number 99"},
    {"TextsTooFew", [](Onnx& m) { m.tensor("v", {2}, DataType::string)->add_string_data("a"); }, "holds 1"},
    {"RawTexts", [](Onnx& m) { m.tensor("v", {1}, DataType::string)->set_raw_data("\1\0\0\0\0\0\0\0"); },
     "they belong into string_data"},
    {"NegativeInput",
     [](Onnx& m) {
       m.input("z", {"n", "-3"});
     },
     "extent of -3"},
    {"ScalarInput", [](Onnx& m) { m.input("z", {}); }, "'z' is a scalar"},
    {"BadName", [](Onnx& m) { m.node("Relu", {"x"}, {"\xff\xfe"}); }, "not UTF-8"},
    {"Misfit",
     [](Onnx& m) {
       m.random("v", {5, 2}).node("MatMul", {"x", "v"}, {"z"}, "bad").output("z");
     },
     "node 'bad' (MatMul)"},
    {"DynamicShape",
     [](Onnx& m) {
       m.input("s", {"n"}, DataType::i64).node("Reshape", {"x", "s"}, {"z"}, "dyn").output("z");
     },
     "node 'dyn' (Reshape): its shape depends on shape (input 1), which is not a constant"},
    {"HugeConstant",
     [](Onnx& m) {
       m.i64("s", {2}, {1 << 19, 1 << 19}).node("ConstantOfShape", {"s"}, {"z"}, "fill").output("z");
     },
     "node 'fill' (ConstantOfShape): its result is a constant of"},
    {"HugeRange",
     [](Onnx& m) {
       m.i64("a", {}, {0}).i64("b", {}, {1LL << 62}).i64("c", {}, {1});
       m.node("Range", {"a", "b", "c"}, {"z"}).output("z");
     },
     "too many elements"},
    {"OutputType", [](Onnx& m) { m.node("Relu", {"x"}, {"z"}).output("z", DataType::i64); },
     "declared as int64"},
};

INSTANTIATE_TEST_SUITE_P(All, ImportBad, ::testing::ValuesIn(bad_models),
                         [](const auto& test) { return std::string(test.param.what); });

TEST(ImportOnnx, BadFiles) {
  const Folder folder;
  const std::string good = small().bytes();
  const struct {
    std::string name, bytes, says;
  } rows[] = {
      {"empty", "", "empty"},
      {"text", "hello, I am a text file\n", "is not an ONNX model"},
      {"cut", good.substr(0, good.size() / 2), "cannot be parsed"},
  };
  for (const auto& row : rows) {
    const auto model = import_onnx(folder.write(row.name, row.bytes), {});
    ASSERT_FALSE(model.has_value()) << row.name;
    EXPECT_THAT(model.error().message, HasSubstr(row.says));
  }
  EXPECT_EQ(import_onnx(folder.path() / "absent.onnx", {}).error().code, ErrorCode::not_found);
  EXPECT_THAT(import_onnx(folder.path(), {}).error().message, HasSubstr("not a regular file"));
}

// Nothing may recurse as deep as a file wants it to.
TEST(ImportOnnx, LongChains) {
  Onnx m;
  m.input("x", {"n", "4"}).f32("c", {}, {1.5F});
  std::string last = "x";
  constexpr int length = 50000;
  for (int i = 0; i < length; ++i) {
    const std::string name = "v" + std::to_string(i);
    m.node(i % 2 == 0 ? "Mul" : "Div", {last, "c"}, {name});
    last = name;
  }
  m.output(last);
  const auto model = m.import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_LT((*model)->specialize(1)->nodes.size(), length);
}

// What folding may cost follows from the size of the file.
TEST(ImportOnnx, LargeProductsOfConstantsAreLeftToRunTime) {
  Onnx m;
  m.input("x", {"n", "2000"}).i64("s", {2}, {2000, 2000}).node("ConstantOfShape", {"s"}, {"a"});
  m.node("MatMul", {"a", "a"}, {"b"}).node("MatMul", {"x", "b"}, {"y"}).output("y");
  const auto model = m.import();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_THAT(testing::operators(*(*model)->specialize(1)), ElementsAre("MatMul", "MatMul"));
}

// External data.

struct Place {
  std::string location = "weights.bin";
  std::string offset = "0";
  std::string length = "48";
};

Onnx with_external(const Place& place) {
  Onnx m;
  m.input("x", {"n", "4"}).node("MatMul", {"x", "w"}, {"y"}).output("y");
  auto* w = m.tensor("w", {4, 3}, DataType::f32);
  w->set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] :
       {std::pair{"location", place.location}, {"offset", place.offset}, {"length", place.length}}) {
    if (value.empty()) continue;
    auto* entry = w->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  return m;
}

TEST(ExternalData, IsReadFromBesideTheFile) {
  const Folder folder;
  std::vector<float> values(14);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  folder.write("weights.bin", std::string(reinterpret_cast<const char*>(values.data()), 56));
  for (const std::string length : {"48", ""}) {
    const auto file = folder.write("model.onnx", with_external({.offset = "8", .length = length}).bytes());
    const auto model = import_onnx(file, {});
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const auto graph = (*model)->specialize(1);
    EXPECT_EQ(graph->value(graph->nodes[0].inputs[1]).constant->as<float>()[0], 2.0F);
  }
}

TEST(ExternalData, NeverLeadsOutsideOrBeyond) {
  const Folder folder;
  folder.write("secret.bin", std::string(64, 's'));
  folder.write("model/weights.bin", std::string(64, 'w'));
  folder.write("model/short.bin", std::string(8, 'w'));
  std::filesystem::create_symlink("../secret.bin", folder.path() / "model" / "link.bin");
  std::filesystem::create_symlink("weights.bin", folder.path() / "model" / "inside.bin");
  std::filesystem::create_directory(folder.path() / "model" / "dir");
  const struct {
    Place place;
    std::string says;
  } rows[] = {
      {{.location = "../secret.bin"}, "'..'"},
      {{.location = "dir/../../secret.bin"}, "'..'"},
      {{.location = (folder.path() / "secret.bin").string()}, "relative"},
      {{.location = "link.bin"}, "outside"},
      {{.location = "absent.bin"}, "absent.bin"},
      {{.location = "dir"}, "not a regular file"},
      {{.location = ""}, "relative"},
      {{.location = "."}, "outside"},
      {{.location = "short.bin"}, "8 bytes"},
      {{.offset = "17"}, "from offset 17"},
      {{.offset = "18446744073709551615"}, "from offset"},
      {{.offset = "18446744073709551616"}, "whole number"},
      {{.offset = "-1"}, "whole number"},
      {{.length = "47"}, "length is 47"},
      {{.length = "x"}, "whole number"},
  };
  for (const auto& row : rows) {
    const auto model = import_onnx(folder.write("model/model.onnx", with_external(row.place).bytes()), {});
    ASSERT_FALSE(model.has_value()) << row.place.location << " " << row.place.offset;
    EXPECT_THAT(model.error().message, HasSubstr(row.says)) << row.place.location;
    EXPECT_THAT(model.error().message, HasSubstr("initializer 'w'"));
  }
  const auto inside =
      import_onnx(folder.write("model/model.onnx", with_external({.location = "inside.bin"}).bytes()), {});
  EXPECT_TRUE(inside.has_value()) << inside.error().message;
}

TEST(ExternalData, OverlapsCannotClaimMoreThanTheFileHas) {
  const Folder folder;
  folder.write("weights.bin", std::string(64, 'w'));
  Onnx m = with_external({});
  for (int i = 0; i < 8; ++i) {
    auto* copy = m.proto.mutable_graph()->add_initializer();
    *copy = m.proto.graph().initializer(0);
    copy->set_name("w" + std::to_string(i));
    copy->mutable_external_data(1)->set_value(std::to_string(i));
  }
  const auto model = import_onnx(folder.write("model.onnx", m.bytes()), {});
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().message, HasSubstr("together need more"));
}

// Older opsets.

std::vector<float> run_floats(const Onnx& m, const std::vector<float>& input, Shape* shape = nullptr) {
  const auto model = m.import({.batched = false});
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
  if (!model) return {};
  const auto graph = (*model)->specialize(1);
  const auto& type = graph->value(graph->inputs[0]).type;
  const auto out =
      testing::run_plainly(*graph, {std::make_shared<const Tensor>(Tensor::of_f32(type.shape, input))});
  EXPECT_TRUE(out.has_value()) << (out ? "" : out.error().message);
  if (!out) return {};
  if (shape != nullptr) *shape = (*out)[0]->type().shape;
  const auto values = (*out)[0]->as<float>();
  return {values.begin(), values.end()};
}

TEST(OldOpsets, ClipBoundsWereAttributes) {
  Onnx m(9);
  m.input("x", {"3"}).node("Clip", {"x"}, {"y"}).set("min", 0.0F).set("max", 2.0F).output("y");
  EXPECT_THAT(run_floats(m, {-1, 1, 5}), ElementsAre(0, 1, 2));
}

TEST(OldOpsets, SliceUnsqueezeAndReduceTookAttributes) {
  Onnx m(9);
  m.input("x", {"4"}).node("Slice", {"x"}, {"s"}).set("starts", std::vector<std::int64_t>{1});
  m.set("ends", std::vector<std::int64_t>{3}).set("axes", std::vector<std::int64_t>{0});
  m.node("Unsqueeze", {"s"}, {"u"}).set("axes", std::vector<std::int64_t>{0});
  m.node("ReduceSum", {"u"}, {"y"}).set("axes", std::vector<std::int64_t>{1}).set("keepdims", 0).output("y");
  Shape shape;
  EXPECT_THAT(run_floats(m, {1, 2, 3, 4}, &shape), ElementsAre(5));
  EXPECT_EQ(shape, (Shape{1}));
}

TEST(OldOpsets, PadTookAttributes) {
  Onnx m(7);
  m.input("x", {"2"})
      .node("Pad", {"x"}, {"y"})
      .set("pads", std::vector<std::int64_t>{1, 0})
      .set("value", 9.0F)
      .output("y");
  EXPECT_THAT(run_floats(m, {1, 2}), ElementsAre(9, 1, 2));
}

TEST(OldOpsets, SoftmaxSawAMatrix) {
  for (const int opset : {11, 13}) {
    Onnx m(opset);
    m.input("x", {"1", "2", "2"}).node("Softmax", {"x"}, {"y"});
    if (opset == 11) m.set("axis", 1);
    m.output("y");
    Shape shape;
    const auto y = run_floats(m, {0, 0, 0, 0}, &shape);
    EXPECT_EQ(shape, (Shape{1, 2, 2}));
    EXPECT_THAT(y, ::testing::Each(::testing::FloatEq(opset == 11 ? 0.25F : 0.5F)));
  }
}

TEST(OldOpsets, UpsampleIsResize) {
  Onnx m(9);
  m.input("x", {"1", "1", "1", "2"}).f32("scales", {4}, {1, 1, 2, 2});
  m.node("Upsample", {"x", "scales"}, {"y"}).set("mode", "nearest").output("y");
  Shape shape;
  EXPECT_THAT(run_floats(m, {1, 2}, &shape), ElementsAre(1, 1, 2, 2, 1, 1, 2, 2));
  EXPECT_EQ(shape, (Shape{1, 1, 2, 4}));
}

TEST(OldOpsets, InitializersWereInputsToo) {
  Onnx m(8);
  m.input("x", {"2"}).input("w", {"2"}).f32("w", {2}, {10, 20}).node("Add", {"x", "w"}, {"y"}).output("y");
  EXPECT_THAT(run_floats(m, {1, 2}), ElementsAre(11, 22));
}

}  // namespace
}  // namespace carillon::graph
