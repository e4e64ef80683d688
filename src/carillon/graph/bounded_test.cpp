#include "carillon/graph/bounded.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Onnx;

TEST(BoundedShape, SaysTheMostThatItCanBe) {
  const std::int64_t many = std::int64_t{1} << 40;
  const Shape shape{bounded_dimension(7), 3, bounded_dimension(0), bounded_dimension(many)};
  EXPECT_EQ(bounds_of(shape), (Shape{7, 3, 0, many}));
  EXPECT_TRUE(has_bounded(shape));
  EXPECT_FALSE(has_bounded(Shape{-1, -2, 5, free_dimension(31), computed_dimension}));
  EXPECT_EQ((TensorSpec{"y", DataType::f32, {bounded_dimension(7), 3}}.open_shape()), (Shape{-1, 3}));
}

TEST(BoundedShape, ExtentsStandBehindTheElements) {
  const Shape shape{bounded_dimension(3), 3};
  EXPECT_EQ(memory_of(DataType::f32, Shape{3, 3}).count, 36U);
  EXPECT_EQ(extents_offset(DataType::f32, shape), 40U);
  ASSERT_EQ(memory_of(DataType::f32, shape).count, 56U);
  std::vector<std::byte> memory(56);
  const auto put = [&](std::int64_t rows, std::int64_t columns) {
    const std::int64_t extents[] = {rows, columns};
    std::memcpy(memory.data() + 40, extents, sizeof extents);
    return shape_in(DataType::f32, shape, memory);
  };
  for (const std::int64_t rows : {0, 1, 3}) EXPECT_EQ(*put(rows, 3), (Shape{rows, 3}));
  for (const auto& [rows, columns] : {std::pair{4, 3}, {-1, 3}, {2, 2}, {2, 4}}) {
    const auto found = put(rows, columns);
    ASSERT_FALSE(found) << rows << ", " << columns;
    EXPECT_EQ(found.error().code, ErrorCode::internal);
  }
}

TEST(BoundedShape, AnOpenRankStandsBeforeTheExtents) {
  const Shape shape{open_rank(3), bounded_dimension(6)};
  EXPECT_TRUE(has_bounded(shape));
  EXPECT_TRUE(has_open_rank(shape));
  EXPECT_FALSE(has_open_rank(Shape{bounded_dimension(std::int64_t{1} << 40)}));
  EXPECT_EQ(bounds_of(shape), Shape{6});
  EXPECT_EQ((TensorSpec{"y", DataType::f32, shape}.open_shape()), Shape{-1});
  EXPECT_EQ(extents_offset(DataType::f32, shape), 24U);
  ASSERT_EQ(memory_of(DataType::f32, shape).count, 24U + 4 * 8);
  std::vector<std::byte> memory(56);
  for (const Shape& is : {Shape{}, Shape{6}, Shape{0, 9}, Shape{1, 2, 3}}) {
    write_extents(shape, is, memory.data() + 24);
    EXPECT_EQ(*shape_in(DataType::f32, shape, memory), is);
  }
  for (const std::vector<std::int64_t>& is :
       {std::vector<std::int64_t>{4, 1, 1, 1}, {-1, 0, 0, 0}, {1, 7, 0, 0}, {2, 3, -1, 0}, {2, 2, 4, 0}}) {
    std::memcpy(memory.data() + 24, is.data(), 32);
    EXPECT_FALSE(shape_in(DataType::f32, shape, memory));
  }
}

std::vector<float> floats(const SharedTensor& tensor) {
  const auto values = tensor->as<float>();
  return {values.begin(), values.end()};
}
std::vector<std::int64_t> integers(const SharedTensor& tensor) {
  const auto values = tensor->as<std::int64_t>();
  return {values.begin(), values.end()};
}
SharedTensor tensor_of(Shape shape, std::vector<float> values) {
  return std::make_shared<const Tensor>(Tensor::of_f32(std::move(shape), values));
}

std::shared_ptr<const Model> import(const Onnx& onnx, const ImportOptions& options = {.batched = false}) {
  auto model = onnx.import(options);
  EXPECT_TRUE(model.has_value()) << model.error().message;
  return model ? *model : nullptr;
}
std::vector<SharedTensor> run(const Model& model, const std::vector<SharedTensor>& inputs) {
  const auto graph = model.specialize(1);
  EXPECT_TRUE(graph.has_value()) << graph.error().message;
  auto outputs = testing::run_plainly(*graph, inputs);
  EXPECT_TRUE(outputs.has_value()) << outputs.error().message;
  return *std::move(outputs);
}
std::string refused(const Onnx& onnx, const ImportOptions& options = {.batched = false}) {
  const auto model = onnx.import(options);
  EXPECT_FALSE(model.has_value());
  return model ? "" : model.error().message;
}

// What is above 0 of x: where, which values, how many, and their sum.
Onnx above_zero() {
  Onnx m;
  m.input("x", {"2", "3"}).f32("zero", {}, {0}).i64("column", {1}, {0}).i64("one", {}, {1});
  m.node("Greater", {"x", "zero"}, {"mask"}).node("NonZero", {"mask"}, {"where"});
  m.node("Transpose", {"where"}, {"places"}).node("GatherND", {"x", "places"}, {"values"});
  m.node("Shape", {"where"}, {"shape"}).node("Gather", {"shape", "one"}, {"count"});
  m.node("ReduceSum", {"values"}, {"sum"}).set("keepdims", 0);
  m.node("Add", {"sum", "sum"}, {"twice"}).node("Relu", {"twice"}, {"last"});
  m.output("places", DataType::i64).output("values").output("count", DataType::i64).output("last");
  return m;
}

TEST(Bounded, WhatFollowsHasTheExtentsThatAreFound) {
  const auto model = import(above_zero());
  ASSERT_NE(model, nullptr);
  std::vector<Shape> shapes;
  for (const TensorSpec& output : model->outputs()) shapes.push_back(output.shape);
  EXPECT_THAT(shapes,
              ElementsAre(Shape{bounded_dimension(6), 2}, Shape{bounded_dimension(6)}, Shape{}, Shape{}));

  const auto found = run(*model, {tensor_of({2, 3}, {-1, 2, 0, 3, -4, 5})});
  EXPECT_EQ(found[0]->type().shape, (Shape{3, 2}));
  EXPECT_EQ(integers(found[0]), (std::vector<std::int64_t>{0, 1, 1, 0, 1, 2}));
  EXPECT_EQ(floats(found[1]), (std::vector<float>{2, 3, 5}));
  EXPECT_EQ(integers(found[2]), std::vector<std::int64_t>{3});
  EXPECT_EQ(floats(found[3]), std::vector<float>{20});
}

TEST(Bounded, NothingFoundIsAnAnswer) {
  const auto found = run(*import(above_zero()), {tensor_of({2, 3}, {-1, -1, 0, 0, -1, -1})});
  EXPECT_EQ(found[0]->type().shape, (Shape{0, 2}));
  EXPECT_EQ(found[1]->type().shape, Shape{0});
  EXPECT_EQ(integers(found[2]), std::vector<std::int64_t>{0});
  EXPECT_EQ(floats(found[3]), std::vector<float>{0});
}

// Passes look into no node whose types are only bounds, and only such nodes read these values.
TEST(Bounded, OnlyBoundedNodesReadBoundedValues) {
  const auto graph = import(above_zero())->specialize(1);
  ASSERT_TRUE(graph.has_value());
  EXPECT_TRUE(validate(*graph).has_value());
  EXPECT_THAT(testing::operators(*graph), Contains("Bounded"));
  EXPECT_THAT(testing::operators(*graph), Not(Contains("NonZero")));
  // The sum is one number whatever is found, so what follows is fused as ever.
  EXPECT_THAT(testing::operators(*graph), Contains("Add"));
  Graph broken = *graph;
  for (Node& node : broken.nodes)
    if (node.op == bounded_node && node.text(bounded_operator, "") == "Transpose") node.op = "Transpose";
  const auto checked = validate(broken);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message, HasSubstr("whose extents the data of a run decide"));
}

TEST(Bounded, ConstantsAreFoundAtLoad) {
  Onnx m;
  m.input("x", {"2"}).f32("w", {4}, {0, 1, 0, 2}).node("NonZero", {"w"}, {"places"});
  m.node("Squeeze", {"places"}, {"indices"})
      .node("Gather", {"w", "indices"}, {"g"})
      .node("Add", {"x", "g"}, {"y"});
  const auto model = import(m.output("y"));
  EXPECT_EQ(model->outputs()[0].shape, Shape{2});
  EXPECT_THAT(testing::operators(*model->specialize(1)), ElementsAre("Add"));
}

// What an exporter writes for a detector: the boxes that are kept, gathered, and their scores.
Onnx detector() {
  Onnx m;
  m.input("boxes", {"1", "5", "4"}).input("scores", {"1", "2", "5"});
  m.i64("most", {1}, {3}).f32("overlap", {1}, {0.5}).f32("least", {1}, {0.25});
  m.i64("two", {1}, {2})
      .i64("three", {1}, {3})
      .i64("last", {1}, {-1})
      .i64("zero", {1}, {0})
      .i64("flat", {2}, {-1, 4});
  m.node("NonMaxSuppression", {"boxes", "scores", "most", "overlap", "least"}, {"kept"});
  m.node("Slice", {"kept", "two", "three", "last"}, {"column"})
      .node("Squeeze", {"column", "last"}, {"indices"});
  m.node("Squeeze", {"boxes", "zero"}, {"plain"})
      .node("Gather", {"plain", "indices"}, {"rows"})
      .set("axis", 0);
  m.node("Reshape", {"rows", "flat"}, {"found"}).node("Cast", {"kept"}, {"labels"}).set("to", 1);
  m.node("Concat", {"found", "labels"}, {"all"}).set("axis", 1);
  return std::move(m.output("kept", DataType::i64).output("all"));
}

TEST(Bounded, BoxesAreKeptByClass) {
  const auto model = import(detector());
  EXPECT_EQ(model->outputs()[0].shape, (Shape{bounded_dimension(6), 3}));
  EXPECT_EQ(model->outputs()[1].shape, (Shape{bounded_dimension(6), 7}));
  // Two boxes nearly the same, one of them by its other corners; two apart; one without a size.
  const SharedTensor boxes =
      tensor_of({1, 5, 4}, {0, 0, 1, 1, 1, 1.1F, 0, 0, 2, 2, 3, 3, 5, 5, 6, 6, 9, 9, 9, 9});
  const auto found =
      run(*model, {boxes, tensor_of({1, 2, 5}, {0.5, 0.9F, 0.3F, 0.25F, 0.3F, 0, 0, 0, 0.1F, 0.2F})});
  EXPECT_EQ(integers(found[0]), (std::vector<std::int64_t>{0, 0, 1, 0, 0, 2, 0, 0, 4}));
  EXPECT_EQ(found[1]->type().shape, (Shape{3, 7}));
  EXPECT_EQ(floats(found[1]),
            (std::vector<float>{1, 1.1F, 0, 0, 0, 0, 1, 2, 2, 3, 3, 0, 0, 2, 9, 9, 9, 9, 0, 0, 4}));
  const auto none = run(*model, {boxes, tensor_of({1, 2, 5}, std::vector<float>(10, 0.25F))});
  EXPECT_EQ(none[1]->type().shape, (Shape{0, 7}));
}

// As many as there are, of what is sorted: extents decide what Slice, TopK, Range and others do.
TEST(Bounded, ExtentsDecideShapes) {
  Onnx m;
  m.input("x", {"6"}).f32("zero", {}, {0}).i64("one", {}, {1}).i64("none", {}, {0}).i64("first", {1}, {0});
  m.node("Greater", {"x", "zero"}, {"mask"}).node("Compress", {"x", "mask"}, {"kept"});
  m.node("Size", {"kept"}, {"count"}).node("Unsqueeze", {"count", "first"}, {"k"});
  m.node("TopK", {"x", "k"}, {"best", "places"}).node("Slice", {"x", "first", "k"}, {"head"});
  m.node("Range", {"none", "count", "one"}, {"numbers"}).node("ConstantOfShape", {"k"}, {"zeros"});
  m.node("Add", {"zeros", "best"}, {"y"});
  const auto model = import(m.output("y").output("head").output("numbers", DataType::i64));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->outputs()[0].shape, Shape{bounded_dimension(6)});
  const auto found = run(*model, {tensor_of({6}, {1, -1, 7, 0, 3, -2})});
  EXPECT_EQ(floats(found[0]), (std::vector<float>{7, 3, 1}));
  EXPECT_EQ(floats(found[1]), (std::vector<float>{1, -1, 7}));
  EXPECT_EQ(integers(found[2]), (std::vector<std::int64_t>{0, 1, 2}));
}

// A model counts on a size that only some data have.
TEST(Bounded, DataThatDoNotFitFailTheRun) {
  Onnx m;
  m.input("x", {"4"}).node("NonZero", {"x"}, {"places"}).i64("flat", {1}, {2});
  m.node("Reshape", {"places", "flat"}, {"y"});
  // Not at the most that there can be: that is refused at load.
  EXPECT_THAT(refused(m.output("y", DataType::i64)),
              HasSubstr("at the most that they can be: node 'Reshape"));
  Onnx fits;
  fits.input("x", {"4"}).node("NonZero", {"x"}, {"places"}).i64("flat", {2}, {2, -1});
  const auto model =
      import(fits.node("Reshape", {"places", "flat"}, {"y"}, "pairs").output("y", DataType::i64));
  const auto graph = model->specialize(1);
  EXPECT_EQ((*testing::run_plainly(*graph, {tensor_of({4}, {1, 1, 0, 0})}))[0]->type().shape, (Shape{2, 1}));
  const auto failed = testing::run_plainly(*graph, {tensor_of({4}, {1, 1, 1, 0})});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(failed.error().message, HasSubstr("pairs"));
}

TEST(Bounded, SuchModelsDoNotBatch) {
  Onnx m;
  m.input("x", {"batch", "3"}).node("NonZero", {"x"}, {"y"}).output("y", DataType::i64);
  EXPECT_THAT(refused(m, {}), HasSubstr("'y' has shape [2,-1], and data decide what is -1 there"));
  const auto model = import(m, {.open = true, .batched = true, .batch_from_file = true});
  EXPECT_FALSE(model->batched());
  EXPECT_EQ(model->outputs()[0].open_shape(), (Shape{2, -1}));
  // What is as long as its batch whatever is found does.
  Onnx whole;
  whole.input("x", {"batch", "3"}).node("NonZero", {"x"}, {"places"}).node("Transpose", {"places"}, {"rows"});
  whole.node("GatherND", {"x", "rows"}, {"values"}).node("ScatterND", {"x", "rows", "values"}, {"y"});
  EXPECT_TRUE(import(whole.output("y"), {})->batched());
}

TEST(Bounded, EachBranchFindsItsOwn) {
  Onnx yes, no, m;
  yes.node("NonZero", {"x"}, {"a"}).output("a", DataType::i64);
  no.node("NonZero", {"z"}, {"b"}).output("b", DataType::i64);
  m.input("x", {"3"}).input("z", {"5"}).input("c", {}, DataType::boolean);
  m.node("If", {"c"}, {"y"}, "choice").set("then_branch", yes).set("else_branch", no);
  m.node("Transpose", {"y"}, {"t"});
  const auto model = import(m.output("t", DataType::i64));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->outputs()[0].shape, (Shape{bounded_dimension(5), 1}));
  for (const bool when : {true, false}) {
    Tensor c(TensorType{DataType::boolean, {}});
    c.bytes()[0] = std::byte{when ? std::uint8_t{1} : std::uint8_t{0}};
    const auto found = run(*model, {tensor_of({3}, {0, 1, 0}), tensor_of({5}, {1, 1, 0, 1, 1}),
                                    std::make_shared<const Tensor>(std::move(c))});
    EXPECT_EQ(integers(found[0]),
              when ? (std::vector<std::int64_t>{1}) : (std::vector<std::int64_t>{0, 1, 3, 4}));
  }
}

TEST(Bounded, UniqueValuesInEitherOrder) {
  for (const bool sorted : {true, false}) {
    Onnx m;
    m.input("x", {"5"}).node("Unique", {"x"}, {"y", "", "inverse", "counts"}).set("sorted", sorted ? 1 : 0);
    const auto model = import(m.output("y").output("inverse", DataType::i64).output("counts", DataType::i64));
    EXPECT_EQ(model->outputs()[1].shape, Shape{5});
    const auto found = run(*model, {tensor_of({5}, {3, 1, 3, 2, 1})});
    EXPECT_EQ(floats(found[0]), sorted ? (std::vector<float>{1, 2, 3}) : (std::vector<float>{3, 1, 2}));
    EXPECT_EQ(integers(found[1]), sorted ? (std::vector<std::int64_t>{2, 0, 2, 1, 0})
                                         : (std::vector<std::int64_t>{0, 1, 0, 2, 1}));
    EXPECT_EQ(integers(found[2]),
              sorted ? (std::vector<std::int64_t>{2, 1, 2}) : (std::vector<std::int64_t>{2, 2, 1}));
  }
}

}  // namespace
}  // namespace carillon::graph
