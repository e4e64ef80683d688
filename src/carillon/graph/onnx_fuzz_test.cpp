#include <gtest/gtest.h>

#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using testing::Onnx;

// Models small enough to be mutated thousands of times, which together pass through most of the importer.
std::vector<std::string> seeds() {
  std::vector<std::string> out;
  const std::vector<std::int64_t> ones{1, 1};
  {
    Onnx m;
    m.input("x", {"n", "2", "5", "5"}).random("w", {4, 2, 3, 3}).random("b", {4});
    for (const char* p : {"s", "t", "m", "v"}) m.random(p, {4}, true);
    m.node("Conv", {"x", "w", "b"}, {"c"})
        .set("pads", std::vector<std::int64_t>{1, 1, 1, 1})
        .set("strides", ones);
    m.node("BatchNormalization", {"c", "s", "t", "m", "v"}, {"n"}).node("Relu", {"n"}, {"r"});
    m.node("MaxPool", {"r"}, {"p"}).set("kernel_shape", std::vector<std::int64_t>{2, 2}).set("ceil_mode", 1);
    m.node("GlobalAveragePool", {"p"}, {"g"}).node("Flatten", {"g"}, {"y"}).output("y");
    out.push_back(m.bytes());
  }
  {
    Onnx m;
    m.input("x", {"n", "3", "4"}).i64("zero", {}, {0}).i64("i0", {1}, {0}).i64("rest", {1}, {12});
    m.i64("starts", {1}, {1}).i64("ends", {1}, {3}).i64("axes", {1}, {1}).random("w", {12, 3});
    m.node("Shape", {"x"}, {"s"}).node("Gather", {"s", "zero"}, {"n"}).node("Unsqueeze", {"n", "i0"}, {"n1"});
    m.node("Concat", {"n1", "rest"}, {"to"}).set("axis", 0).node("Reshape", {"x", "to"}, {"f"});
    m.node("Gemm", {"f", "w"}, {"g"}).set("alpha", 0.5F).node("Softmax", {"g"}, {"h"}).set("axis", 1);
    m.node("Slice", {"h", "starts", "ends", "axes"}, {"y"}).output("y");
    out.push_back(m.bytes());
  }
  {
    Onnx m(11);
    m.input("x", {"n", "1", "4", "4"}).f32("scales", {4}, {1, 1, 2, 2}).f32("roi", {0}, {});
    m.random("w", {1, 2, 2, 2}).i64("pads", {8}, {0, 0, 1, 1, 0, 0, 1, 1}).i64("shape", {4}, {1, 1, 8, 8});
    m.node("Resize", {"x", "roi", "scales"}, {"r"}).set("mode", "linear");
    m.node("Pad", {"r", "pads"}, {"p"}).set("mode", "reflect");
    m.node("ConvTranspose", {"p", "w"}, {"t"})
        .set("output_shape", std::vector<std::int64_t>{20, 20})
        .set("strides", std::vector<std::int64_t>{2, 2});
    m.node("Softmax", {"t"}, {"u"}).node("Split", {"u"}, {"a", "b"}).set("axis", 1);
    m.node("Sum", {"a", "b"}, {"y"}).output("y");
    out.push_back(m.bytes());
  }
  {
    Onnx m;
    m.input("x", {"n", "6"})
        .i64("a", {}, {0})
        .i64("l", {}, {6})
        .i64("d", {}, {1})
        .i64("k", {1}, {2})
        .i64("r", {2}, {1, 3});
    m.i64("e", {2}, {1, 6})
        .node("Range", {"a", "l", "d"}, {"range"})
        .node("Cast", {"range"}, {"cast"})
        .set("to", 1);
    m.node("ConstantOfShape", {"e"}, {"zeros"})
        .node("Expand", {"cast", "e"}, {"wide"})
        .node("Add", {"x", "wide"}, {"s"});
    m.node("Sub", {"s", "zeros"}, {"t"}).node("Tile", {"t", "r"}, {"u"}).node("TopK", {"u", "k"}, {"v", "i"});
    m.node("ReduceMean", {"v"}, {"y"})
        .set("axes", std::vector<std::int64_t>{1})
        .output("y")
        .output("i", DataType::i64);
    out.push_back(m.bytes());
  }
  {
    Onnx m;
    m.input("x", {"n", "3", "4"}).random("w", {2, 8, 4}).random("r", {2, 8, 2}).random("b", {2, 16});
    m.random("h", {2, 1, 2})
        .i64("d", {1}, {2})
        .i64("s", {1}, {2})
        .i64("one", {1}, {1})
        .i64("to", {3}, {0, 3, 4});
    m.node("Transpose", {"x"}, {"t"}).set("perm", std::vector<std::int64_t>{1, 0, 2});
    m.node("Shape", {"t"}, {"shape"}).node("Gather", {"shape", "one"}, {"n"});
    m.node("Concat", {"d", "n", "s"}, {"states"}).set("axis", 0).node("Expand", {"h", "states"}, {"h0"});
    m.node("LSTM", {"t", "w", "r", "b", "", "h0", "h0"}, {"l", "", "c"}).set("direction", "bidirectional");
    m.set("hidden_size", 2).texts("activations", {"Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Elu", "Relu"});
    m.node("Transpose", {"l"}, {"u"}).set("perm", std::vector<std::int64_t>{2, 0, 1, 3});
    m.node("Reshape", {"u", "to"}, {"v"}).random("w1", {1, 6, 4}).random("r1", {1, 6, 2});
    m.node("GRU", {"v", "w1", "r1"}, {"", "g"}).set("layout", 1).set("linear_before_reset", 1);
    m.random("w2", {1, 2, 2})
        .node("RNN", {"g", "w2", "w2"}, {"y"})
        .set("layout", 1)
        .set("clip", 2.0F)
        .output("y");
    out.push_back(m.bytes());
  }
  {
    Onnx yes, no, body, inner, m;
    inner.random("v", {4, 4}).node("MatMul", {"r", "v"}, {"p"}).output("p");
    no.node("Tanh", {"r"}, {"q"}).output("q");
    yes.node("Relu", {"x"}, {"r"}).node("If", {"d"}, {"a"}).set("then_branch", inner).set("else_branch", no);
    yes.output("a");
    inner = Onnx();
    inner.f32("two", {}, {2}).node("Div", {"x", "two"}, {"b"}).output("b");
    body.input("i", {}, DataType::i64).input("on", {}, DataType::boolean).input("s", {});
    body.f32("limit", {}, {3}).node("ReduceMean", {"s"}, {"mean"}).set("keepdims", 0);
    body.node("Less", {"mean", "limit"}, {"more"}).node("Add", {"s", "x"}, {"t"});
    body.output("more", DataType::boolean).output("t");
    m.input("x", {"n", "4"}).f32("zero", {}, {0}).node("ReduceMax", {"x"}, {"most"}).set("keepdims", 0);
    m.node("Greater", {"most", "zero"}, {"c"}).node("Not", {"c"}, {"e"}).node("Or", {"c", "e"}, {"d"});
    m.node("If", {"c"}, {"u"}).set("then_branch", yes).set("else_branch", inner);
    m.i64("trips", {}, {3}).node("Loop", {"trips", "d", "u"}, {"w"}).set("body", body);
    Onnx rows;
    rows.input("k", {}, DataType::i64).input("go", {}, DataType::boolean).i64("z", {}, {0});
    rows.node("Shape", {"x"}, {"shape"})
        .node("Gather", {"shape", "z"}, {"n"})
        .node("Mul", {"k", "n"}, {"row"});
    rows.output("go", DataType::boolean).output("row", DataType::i64);
    m.node("Loop", {"trips", ""}, {"ks"}).set("body", rows).output("w").output("ks", DataType::i64);
    m.proto.mutable_graph()->mutable_output()->RemoveLast();
    m.node("Cast", {"ks"}, {"kf"}).set("to", 1).node("ReduceSum", {"kf"}, {"ksum"}).set("keepdims", 0);
    m.node("Add", {"w", "ksum"}, {"y"}).output("y");
    out.push_back(m.bytes());
  }
  {
    Onnx m;
    m.input("x", {"2", "4", "6"}).i64("most", {1}, {3}).f32("half", {1}, {0.5}).i64("last", {1}, {-1});
    m.i64("two", {1}, {2}).i64("three", {1}, {3}).i64("flat", {2}, {-1, 6}).i64("first", {}, {0});
    m.node("Transpose", {"x"}, {"t"}).set("perm", std::vector<std::int64_t>{0, 2, 1});
    m.node("NonMaxSuppression", {"t", "x", "most", "half", "half"}, {"kept"});
    m.node("Slice", {"kept", "two", "three", "last"}, {"column"})
        .node("Squeeze", {"column", "last"}, {"where"});
    m.node("Gather", {"x", "where"}, {"rows"}).set("axis", 2).node("Reshape", {"x", "flat"}, {"r"});
    m.node("Greater", {"r", "half"}, {"mask"}).node("NonZero", {"mask"}, {"places"});
    m.node("Transpose", {"places"}, {"p"}).node("GatherND", {"r", "p"}, {"values"});
    m.node("Unique", {"values"}, {"u", "", "inverse", "counts"}).node("Shape", {"u"}, {"k"});
    m.node("TopK", {"values", "k"}, {"best", "at"}).node("ConstantOfShape", {"k"}, {"zeros"});
    m.node("Sub", {"best", "zeros"}, {"y"}).node("Gather", {"mask", "first"}, {"c"}).set("axis", 1);
    m.node("Compress", {"r", "c"}, {"z"}).set("axis", 0);
    m.output("rows").output("y").output("z").output("counts", DataType::i64);
    out.push_back(m.bytes());
  }
  {
    Onnx body, m;
    body.input("sum", {}).input("row", {}).node("Add", {"sum", "row"}, {"next"});
    body.node("Mul", {"next", "row"}, {"made"}).output("next").output("made");
    m.input("x", {"1", "3", "8", "1"}).random("s", {8, 1}).i64("step", {}, {2}).i64("frame", {}, {4});
    m.random("grid", {1, 2, 2, 2}).i64("labels", {3, 1}, {0, 5, 7}).i64("one", {4}, {1, 3, 8, 1});
    m.random("rois", {2, 4}).i64("batches", {2}, {0, 0}).i64("signal", {3}, {3, 8, 1}).i64("size", {}, {8});
    m.node("Reshape", {"x", "one"}, {"v"}).node("Reshape", {"v", "signal"}, {"w"});
    m.node("STFT", {"w", "step", "", "frame"}, {"f"})
        .node("DFT", {"w"}, {"d"})
        .set("axis", 1)
        .set("inverse", 0);
    m.node("Scan", {"s", "w"}, {"state", "scanned"}).set("num_scan_inputs", 1).set("body", body);
    m.node("GridSample", {"v", "grid"}, {"g"}).set("mode", "bicubic").set("padding_mode", "reflection");
    m.node("RoiAlign", {"v", "rois", "batches"}, {"a"}).set("output_height", 2).set("sampling_ratio", 1);
    m.node("HannWindow", {"size"}, {"h"}).node("NegativeLogLikelihoodLoss", {"w", "labels"}, {"loss"});
    for (const char* name : {"f", "d", "state", "scanned", "g", "a", "h", "loss"}) m.output(name);
    out.push_back(m.bytes());
  }
  return out;
}

// A graph of the model: itself, or one in it.
onnx::GraphProto& any_graph(onnx::ModelProto& model, Random& random) {
  onnx::GraphProto* graph = model.mutable_graph();
  for (;;) {
    std::vector<onnx::GraphProto*> inside;
    for (auto& node : *graph->mutable_node())
      for (auto& attribute : *node.mutable_attribute())
        if (attribute.has_g() && attribute.g().node_size() > 0) inside.push_back(attribute.mutable_g());
    if (inside.empty() || random.below(3) == 0) return *graph;
    graph = inside[random.below(inside.size())];
  }
}

std::string mutate(std::string bytes, Random& random) {
  const std::uint64_t count = 1 + random.below(4);
  for (std::uint64_t i = 0; i < count && !bytes.empty(); ++i) {
    const std::size_t at = random.below(bytes.size());
    const std::size_t length = std::min<std::size_t>(1 + random.below(16), bytes.size() - at);
    switch (random.below(7)) {
      case 0:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1U << random.below(8)));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(at, bytes.substr(random.below(bytes.size()), length));
        break;
      case 5:  // large and negative numbers, where one is read
        for (std::size_t k = 0; k < length; ++k) bytes[at + k] = static_cast<char>(0xff);
        break;
      case 6:  // small numbers: other types, axes, extents
        bytes[at] = static_cast<char>(random.below(12));
        break;
    }
  }
  return bytes;
}

// Changes one number or name where it is meant to be: further in than flipped bytes reach.
std::string mutate_fields(const std::string& bytes, Random& random) {
  onnx::ModelProto model;
  if (!model.ParseFromString(bytes)) return bytes;
  static constexpr std::int64_t odd[] = {0,  1,  -1, 2,         3,         5,         7,         -2,
                                         64, 65, 16, 1LL << 20, 1LL << 31, 1LL << 40, INT64_MAX, INT64_MIN};
  const auto number = [&] { return odd[random.below(std::size(odd))]; };
  const std::uint64_t count = 1 + random.below(3);
  for (std::uint64_t i = 0; i < count; ++i) {
    auto& graph = any_graph(model, random);
    switch (random.below(8)) {
      case 0: {
        auto& node = *graph.mutable_node(
            static_cast<int>(random.below(static_cast<std::uint64_t>(graph.node_size()))));
        if (node.attribute_size() == 0) break;
        auto& a = *node.mutable_attribute(0);
        a.set_i(number());
        for (auto& v : *a.mutable_ints())
          if (random.below(2) == 0) v = number();
        if (random.below(4) == 0) a.add_ints(number());
        a.set_f(static_cast<float>(number()));
        break;
      }
      case 1: {
        if (graph.initializer_size() == 0) break;
        auto& t = *graph.mutable_initializer(
            static_cast<int>(random.below(static_cast<std::uint64_t>(graph.initializer_size()))));
        for (auto& v : *t.mutable_int64_data())
          if (random.below(2) == 0) v = number();
        if (random.below(4) == 0 && t.dims_size() > 0) t.set_dims(0, number());
        if (random.below(4) == 0) t.add_dims(1);
        break;
      }
      case 2: {
        auto& node = *graph.mutable_node(
            static_cast<int>(random.below(static_cast<std::uint64_t>(graph.node_size()))));
        const auto& other =
            graph.node(static_cast<int>(random.below(static_cast<std::uint64_t>(graph.node_size()))));
        node.set_op_type(other.op_type());
        *node.mutable_attribute() = other.attribute();
        break;
      }
      case 3: {
        auto& node = *graph.mutable_node(
            static_cast<int>(random.below(static_cast<std::uint64_t>(graph.node_size()))));
        const auto& other =
            graph.node(static_cast<int>(random.below(static_cast<std::uint64_t>(graph.node_size()))));
        if (node.input_size() > 0)
          node.set_input(static_cast<int>(random.below(static_cast<std::uint64_t>(node.input_size()))),
                         random.below(2) == 0 ? other.output(0) : "x");
        break;
      }
      case 4: {
        if (model.graph().input_size() == 0) break;
        auto* shape =
            model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
        if (shape->dim_size() == 0) break;
        const auto d = static_cast<int>(random.below(static_cast<std::uint64_t>(shape->dim_size())));
        shape->mutable_dim(d)->set_dim_value(number());
        break;
      }
      case 5:
        model.mutable_opset_import(0)->set_version(static_cast<std::int64_t>(7 + random.below(17)));
        break;
      case 6: {  // more or fewer ends, under another name
        auto& ends = random.below(2) == 0 ? *graph.mutable_output() : *graph.mutable_input();
        if (ends.empty() || random.below(3) == 0)
          ends.Add()->set_name(random.below(2) == 0 ? "x" : "w");
        else if (random.below(2) == 0)
          ends.RemoveLast();
        else
          ends.Mutable(0)->set_name(graph.node(0).output(0));
        break;
      }
      case 7: {  // a graph where another was, or in a node that had none
        auto& node = *graph.mutable_node(
            static_cast<int>(random.below(static_cast<std::uint64_t>(graph.node_size()))));
        const onnx::GraphProto other = any_graph(model, random);
        if (node.attribute_size() == 0) break;
        auto& attribute = *node.mutable_attribute(0);
        attribute.set_type(onnx::AttributeProto::GRAPH);
        *attribute.mutable_g() = other;
        break;
      }
    }
  }
  return model.SerializeAsString();
}

// Whatever the bytes are, import gives a model that can be specialised, or an error with a text.
void must_not_crash(const testing::Folder& folder, const std::string& bytes, int& imported) {
  const auto file = folder.write("model.onnx", bytes);
  for (const bool batched : {true, false}) {
    const auto model = import_onnx(file, {.batched = batched});
    if (!model) {
      ASSERT_FALSE(model.error().message.empty());
      ASSERT_NE(model.error().code, ErrorCode::internal) << model.error().message;
      continue;
    }
    ++imported;
    const auto graph = (*model)->specialize(batched ? 3 : 1);
    if (graph) continue;
    ASSERT_NE(graph.error().code, ErrorCode::internal) << graph.error().message;
  }
}

TEST(OnnxFuzz, MutatedFilesNeverCrashTheImporter) {
  const testing::Folder folder;
  const auto models = seeds();
  int imported = 0;
  for (const std::string& model : models) {
    must_not_crash(folder, model, imported);
    ASSERT_GT(imported, 0) << "a seed must be a good model";
    imported = 0;
  }
  Random random(20240611);
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(round);
    const std::string& model = models[random.below(models.size())];
    must_not_crash(folder, round % 2 == 0 ? mutate(model, random) : mutate_fields(model, random), imported);
    if (HasFatalFailure()) return;
  }
  // Mutations that all are refused at the door would test little.
  EXPECT_GT(imported, 300);
}

TEST(OnnxFuzz, CutFilesNeverCrashTheImporter) {
  const testing::Folder folder;
  int imported = 0;
  for (const std::string& model : seeds())
    for (std::size_t size = 0; size < model.size(); size += 7) {
      must_not_crash(folder, model.substr(0, size), imported);
      if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace carillon::graph
