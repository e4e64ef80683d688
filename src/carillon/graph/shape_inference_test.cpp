#include "carillon/graph/shape_inference.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/operators.h"

namespace carillon::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ints = std::vector<std::int64_t>;

// One node whose inputs are told by shape, or by value where they are constants.
struct Infer {
  Graph graph;
  Node node;
  Result<> result;
  std::vector<TensorType> outputs;

  explicit Infer(std::string op, std::size_t count = 1) {
    node.name = "n";
    node.op = std::move(op);
    node.outputs.assign(count, no_value);
  }
  Infer& of(Shape shape, DataType type = DataType::f32) {
    node.inputs.push_back(ValueId{static_cast<std::uint32_t>(graph.values.size())});
    graph.values.push_back({"v", {type, std::move(shape)}, nullptr});
    return *this;
  }
  Infer& ints(const Ints& values) {
    of({static_cast<std::int64_t>(values.size())}, DataType::i64);
    graph.values.back().constant =
        std::make_shared<const Tensor>(Tensor::of_i64({static_cast<std::int64_t>(values.size())}, values));
    return *this;
  }
  Infer& floats(const std::vector<float>& values) {
    of({static_cast<std::int64_t>(values.size())});
    graph.values.back().constant =
        std::make_shared<const Tensor>(Tensor::of_f32({static_cast<std::int64_t>(values.size())}, values));
    return *this;
  }
  Infer& absent() {
    node.inputs.push_back(no_value);
    return *this;
  }
  Infer& with(const std::string& name, Attribute value) {
    node.attributes.insert_or_assign(name, std::move(value));
    return *this;
  }
  Infer& run() {
    Inference inference(graph, node);
    result = find_operator(node.op)->infer(inference);
    outputs.assign(inference.results().begin(), inference.results().end());
    return *this;
  }
  Shape shape() {
    run();
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
    return result ? outputs[0].shape : Shape{-99};
  }
  std::string error() {
    run();
    EXPECT_FALSE(result.has_value());
    return result ? "" : result.error().message;
  }
};

TEST(ShapeInference, Convolution) {
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 3, 3, 3}).shape(), ElementsAre(2, 4, 6, 6));
  EXPECT_THAT(Infer("Conv").of({2, 6, 9}).of({4, 3, 3}).with("group", 2L).with("dilations", Ints{2}).shape(),
              ElementsAre(2, 4, 5));
  EXPECT_THAT(Infer("Conv").of({1, 1, 4, 4, 4}).of({1, 1, 2, 2, 2}).with("strides", Ints{2, 2, 2}).shape(),
              ElementsAre(1, 1, 2, 2, 2));
}

TEST(ShapeInference, AutoPadBecomesPads) {
  for (const bool upper : {true, false}) {
    Infer conv("Conv");
    conv.of({1, 1, 5, 5}).of({1, 1, 2, 2}).with("auto_pad", std::string(upper ? "SAME_UPPER" : "SAME_LOWER"));
    EXPECT_THAT(conv.shape(), ElementsAre(1, 1, 5, 5));
    EXPECT_FALSE(conv.node.has("auto_pad"));
    const Ints want = upper ? Ints{0, 0, 1, 1} : Ints{1, 1, 0, 0};
    EXPECT_TRUE(std::ranges::equal(conv.node.integers("pads"), want));
    EXPECT_TRUE(std::ranges::equal(conv.node.integers("kernel_shape"), Ints{2, 2}));
    EXPECT_EQ(conv.node.integer("group", 0), 1);
  }
}

TEST(ShapeInference, ConvolutionsThatDoNotFit) {
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 2, 3, 3}).error(), HasSubstr("do not fit together"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 2, 2}).of({4, 3, 3, 3}).error(), HasSubstr("window of 3"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 3, 3, 3}).with("strides", Ints{0, 1}).error(),
              HasSubstr("strides has 0"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 3, 3, 3}).with("pads", Ints{1}).error(),
              HasSubstr("needs 4"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 3, 3, 3}).with("dilations", Ints{INT64_MAX, 1}).error(),
              HasSubstr("outside"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 3, 3, 3}).with("group", INT64_MIN).error(),
              HasSubstr("group"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}).of({4, 3, 3, 3}).of({5}).error(), HasSubstr("must have [4]"));
  EXPECT_THAT(Infer("Conv").of({2, 3}).of({4, 3}).error(), HasSubstr("3 to 5 dimensions"));
  EXPECT_THAT(Infer("Conv").of({2, 3, 8, 8}, DataType::i32).of({4, 3, 3, 3}).error(), HasSubstr("int32"));
}

TEST(ShapeInference, ConvTranspose) {
  EXPECT_THAT(Infer("ConvTranspose").of({1, 4, 3, 3}).of({4, 2, 3, 3}).with("strides", Ints{2, 2}).shape(),
              ElementsAre(1, 2, 7, 7));
  Infer wanted("ConvTranspose");
  wanted.of({1, 4, 3, 3}).of({4, 2, 3, 3}).with("strides", Ints{2, 2}).with("output_shape", Ints{6, 8});
  EXPECT_THAT(wanted.shape(), ElementsAre(1, 2, 6, 8));
  EXPECT_TRUE(std::ranges::equal(wanted.node.integers("pads"), Ints{1, 0, 0, 0}));
  EXPECT_TRUE(std::ranges::equal(wanted.node.integers("output_padding"), Ints{0, 1}));
}

TEST(ShapeInference, PoolsRoundUpWithoutAWindowInThePadding) {
  Infer pool("MaxPool");
  pool.of({1, 1, 5, 5}).with("kernel_shape", Ints{2, 2}).with("strides", Ints{2, 2}).with("ceil_mode", 1L);
  EXPECT_THAT(pool.shape(), ElementsAre(1, 1, 3, 3));
  Infer edge("AveragePool");  // the third window would lie in the padding
  edge.of({1, 1, 2})
      .with("kernel_shape", Ints{2})
      .with("strides", Ints{2})
      .with("pads", Ints{1, 1})
      .with("ceil_mode", 1L);
  EXPECT_THAT(edge.shape(), ElementsAre(1, 1, 2));
  EXPECT_THAT(Infer("MaxPool").of({1, 1, 5, 5}).error(), HasSubstr("kernel_shape"));
}

TEST(ShapeInference, Matrices) {
  EXPECT_THAT(Infer("MatMul").of({2, 1, 3, 4}).of({5, 4, 6}).shape(), ElementsAre(2, 5, 3, 6));
  EXPECT_THAT(Infer("MatMul").of({4}).of({2, 4, 6}).shape(), ElementsAre(2, 6));
  EXPECT_THAT(Infer("MatMul").of({3, 4}).of({4}).shape(), ElementsAre(3));
  EXPECT_THAT(Infer("MatMul").of({4}).of({4}).shape(), ElementsAre());
  EXPECT_THAT(Infer("Gemm").of({4, 2}).of({3, 4}).of({3}).with("transA", 1L).with("transB", 1L).shape(),
              ElementsAre(2, 3));
  EXPECT_THAT(Infer("Gemm").of({2, 4}).of({4, 3}).of({4}).error(), HasSubstr("C of shape [4]"));
  EXPECT_THAT(Infer("MatMul").of({3, 4}).of({3, 4}).error(), HasSubstr("do not fit together"));
}

TEST(ShapeInference, Broadcasting) {
  EXPECT_THAT(Infer("Add").of({3, 1, 5}).of({4, 1}).shape(), ElementsAre(3, 4, 5));
  EXPECT_THAT(Infer("Add").of({0, 1}).of({1, 3}).shape(), ElementsAre(0, 3));
  EXPECT_THAT(Infer("Add").of({3}).of({4}).error(), HasSubstr("do not broadcast"));
  EXPECT_THAT(Infer("Add").of({3}).of({3}, DataType::i64).error(), HasSubstr("one type"));
  EXPECT_THAT(Infer("PRelu").of({3}).of({2, 3}).error(), HasSubstr("slope"));
  EXPECT_THAT(Infer("Where").of({2, 1}, DataType::boolean).of({1, 3}).of({}).shape(), ElementsAre(2, 3));
}

TEST(ShapeInference, Reshapes) {
  EXPECT_THAT(Infer("Reshape").of({2, 3, 4}).ints({0, -1}).shape(), ElementsAre(2, 12));
  EXPECT_THAT(Infer("Reshape").of({0, 3}).ints({3, 0}).with("allowzero", 1L).shape(), ElementsAre(3, 0));
  EXPECT_THAT(Infer("Reshape").of({2, 3}).ints({4, -1}).error(), HasSubstr("cannot take"));
  EXPECT_THAT(Infer("Reshape").of({2, 3}).ints({-1, -1}).error(), HasSubstr("more than one"));
  EXPECT_THAT(Infer("Reshape").of({2, 3}).ints({INT64_MAX, INT64_MAX, -1}).error(), HasSubstr("2^40"));
  EXPECT_THAT(Infer("Reshape").of({2}).of({1}, DataType::i64).error(), HasSubstr("not a constant"));
  EXPECT_THAT(Infer("Flatten").of({2, 3, 4}).with("axis", -1L).shape(), ElementsAre(6, 4));
  EXPECT_THAT(Infer("Squeeze").of({1, 3, 1}).shape(), ElementsAre(3));
  EXPECT_THAT(Infer("Squeeze").of({1, 3, 1}).ints({1}).error(), HasSubstr("is not 1"));
  EXPECT_THAT(Infer("Unsqueeze").of({3}).ints({0, -1}).shape(), ElementsAre(1, 3, 1));
  EXPECT_THAT(Infer("Unsqueeze").of({3}).ints({0, 0}).error(), HasSubstr("twice"));
  Infer all("Squeeze");
  all.of({1, 3}).run();
  EXPECT_EQ(all.node.op, "Reshape");
  EXPECT_EQ(all.node.inputs.size(), 1U);
}

TEST(ShapeInference, Slices) {
  const auto slice = [](const Ints& starts, const Ints& ends, const Ints& axes, const Ints& steps) {
    return Infer("Slice").of({10, 5}).ints(starts).ints(ends).ints(axes).ints(steps);
  };
  EXPECT_THAT(slice({1}, {INT64_MAX}, {0}, {3}).shape(), ElementsAre(3, 5));
  EXPECT_THAT(slice({-1}, {INT64_MIN}, {0}, {-1}).shape(), ElementsAre(10, 5));
  EXPECT_THAT(slice({9}, {0}, {0}, {INT64_MIN}).shape(), ElementsAre(1, 5));
  EXPECT_THAT(slice({8}, {2}, {0}, {-2}).shape(), ElementsAre(3, 5));
  EXPECT_THAT(slice({4}, {2}, {-1}, {1}).shape(), ElementsAre(10, 0));
  EXPECT_THAT(slice({0}, {2}, {0}, {0}).error(), HasSubstr("step is 0"));
  EXPECT_THAT(slice({0}, {2}, {2}, {1}).error(), HasSubstr("axis 2"));
  EXPECT_THAT(slice({0, 1}, {2}, {0}, {1}).error(), HasSubstr("one length"));
}

TEST(ShapeInference, MovesAndSplits) {
  EXPECT_THAT(Infer("Transpose").of({2, 3, 4}).with("perm", Ints{2, 0, 1}).shape(), ElementsAre(4, 2, 3));
  EXPECT_THAT(Infer("Transpose").of({2, 3}).with("perm", Ints{0, 0}).error(), HasSubstr("twice"));
  EXPECT_THAT(Infer("Concat").of({2, 3}).of({2, 5}).with("axis", -1L).shape(), ElementsAre(2, 8));
  EXPECT_THAT(Infer("Concat").of({2, 3}).of({3, 5}).with("axis", 1L).error(), HasSubstr("does not fit"));
  Infer split("Split", 3);
  split.of({7, 2}).with("num_outputs", 3L).run();
  ASSERT_TRUE(split.result.has_value());
  EXPECT_EQ(split.outputs[0].shape, (Shape{3, 2}));
  EXPECT_EQ(split.outputs[2].shape, (Shape{1, 2}));
  EXPECT_THAT(Infer("Split", 2).of({7, 2}).error(), HasSubstr("equal parts"));
  EXPECT_THAT(Infer("Split", 2).of({7}).ints({3, 3}).error(), HasSubstr("sum 7"));
  EXPECT_THAT(Infer("Split", 2).of({7}).ints({INT64_MAX, INT64_MIN}).error(), HasSubstr("out of range"));
  EXPECT_THAT(Infer("Tile").of({2, 3}).ints({2, 0}).shape(), ElementsAre(4, 0));
  EXPECT_THAT(Infer("Tile").of({2, 3}).ints({INT64_MAX, 2}).error(), HasSubstr("out of range"));
  EXPECT_THAT(Infer("Expand").of({3, 1}).ints({2, 1, 6}).shape(), ElementsAre(2, 3, 6));
  EXPECT_THAT(Infer("Pad").of({2, 3}).ints({0, 1, 0, -2}).shape(), ElementsAre(2, 2));
  EXPECT_THAT(Infer("Pad").of({2, 3}).ints({0, 3, 0, 0}).with("mode", std::string("reflect")).error(),
              HasSubstr("beyond"));
  EXPECT_THAT(Infer("Pad").of({2, 3}).ints({INT64_MIN, 0, 0, 0}).error(), HasSubstr("out of range"));
  EXPECT_THAT(Infer("DepthToSpace").of({1, 8, 2, 3}).with("blocksize", 2L).shape(), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(Infer("SpaceToDepth").of({1, 2, 4, 6}).with("blocksize", 2L).shape(), ElementsAre(1, 8, 2, 3));
}

TEST(ShapeInference, Resizes) {
  EXPECT_THAT(Infer("Resize").of({1, 1, 3, 3}).absent().floats({1, 1, 1.5F, 2}).shape(),
              ElementsAre(1, 1, 4, 6));
  EXPECT_THAT(Infer("Resize").of({1, 1, 3, 3}).absent().absent().ints({1, 1, 7, 2}).shape(),
              ElementsAre(1, 1, 7, 2));
  Infer axes("Resize");
  axes.of({1, 1, 3, 6}).absent().absent().ints({6, 6}).with("axes", Ints{2, 3});
  axes.with("keep_aspect_ratio_policy", std::string("not_larger"));
  EXPECT_THAT(axes.shape(), ElementsAre(1, 1, 3, 6));
  EXPECT_FALSE(axes.node.has("axes"));
  EXPECT_THAT(Infer("Resize").of({1, 1, 3, 3}).error(), HasSubstr("either scales or sizes"));
  EXPECT_THAT(Infer("Resize").of({1, 1}).absent().floats({1, 1e30F}).error(), HasSubstr("out of range"));
  EXPECT_THAT(Infer("Resize").of({1, 0}).absent().absent().ints({3, 0}).shape(), ElementsAre(3, 0));
  EXPECT_THAT(Infer("Resize").of({1, 0}).absent().absent().ints({3, 2}).error(),
              HasSubstr("sizes [3,2] makes 2 of an axis without elements"));
  EXPECT_THAT(Infer("Resize").of({1, 1}).absent().floats({1, NAN}).error(), HasSubstr("out of range"));
}

TEST(ShapeInference, Indexing) {
  EXPECT_THAT(Infer("Gather").of({5, 6}).of({2, 3}, DataType::i64).with("axis", 1L).shape(),
              ElementsAre(5, 2, 3));
  EXPECT_THAT(Infer("Gather").of({5, 6}).of({}, DataType::i64).shape(), ElementsAre(6));
  EXPECT_THAT(Infer("Gather").of({}).of({}, DataType::i64).error(), HasSubstr("axis 0"));
  EXPECT_THAT(Infer("GatherND").of({2, 3, 4}).of({2, 1}, DataType::i64).with("batch_dims", 1L).shape(),
              ElementsAre(2, 4));
  EXPECT_THAT(Infer("ScatterND").of({4, 4}).of({2, 1}, DataType::i64).of({2, 3}).error(),
              HasSubstr("must have [2,4]"));
  EXPECT_THAT(Infer("OneHot").of({2, 3}, DataType::i64).ints({5}).of({2}).with("axis", 1L).shape(),
              ElementsAre(2, 5, 3));
  EXPECT_THAT(Infer("TopK", 2).of({3, 9}).ints({4}).shape(), ElementsAre(3, 4));
  EXPECT_THAT(Infer("TopK", 2).of({3, 9}).ints({10}).error(), HasSubstr("from 0 to 9"));
}

TEST(ShapeInference, Reductions) {
  EXPECT_THAT(Infer("ReduceSum").of({2, 3, 4}).ints({-1, 0}).shape(), ElementsAre(1, 3, 1));
  EXPECT_THAT(Infer("ReduceSum").of({2, 3}).with("keepdims", 0L).shape(), ElementsAre());
  EXPECT_THAT(Infer("ReduceSum").of({2, 3}).ints({}).with("noop_with_empty_axes", 1L).shape(),
              ElementsAre(2, 3));
  EXPECT_THAT(Infer("ReduceSum").of({2, 3}).ints({2}).error(), HasSubstr("axis 2"));
  EXPECT_THAT(Infer("ArgMax").of({2, 3}).with("axis", 1L).with("keepdims", 0L).shape(), ElementsAre(2));
  EXPECT_THAT(Infer("ArgMax").of({2, 0}).with("axis", 1L).error(), HasSubstr("empty"));
}

TEST(ShapeInference, GroupNormalizationSpreadsItsParameters) {
  Infer norm("GroupNormalization");
  norm.of({1, 4, 2, 2}).floats({1, 2}).floats({3, 4}).with("num_groups", 2L).run();
  ASSERT_TRUE(norm.result.has_value()) << norm.result.error().message;
  EXPECT_THAT(norm.graph.value(norm.node.inputs[1]).constant->as<float>(), ElementsAre(1, 1, 2, 2));
}

}  // namespace
}  // namespace carillon::graph
