#include "carillon/graph/edge_reshape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/onnx_import.h"
#include "carillon/graph/testing.h"

namespace carillon::graph {
namespace {

using testing::Folder;
using testing::Onnx;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = x + b, with b over the last dimension.
Onnx sum(const testing::Dims& x, std::int64_t last) {
  Onnx m;
  m.input("x", x).output("y").random("b", {last}).node("Add", {"x", "b"}, {"y"});
  return m;
}

using Made = Result<std::shared_ptr<const Model>>;
Made reshaped(const Onnx& m, const std::vector<EdgeReshape>& edges,
              const ImportOptions& options = {}) {
  const Folder folder;
  auto source = read_onnx(folder.write("model.onnx", m.bytes()));
  if (!source) return std::unexpected(source.error());
  if (auto ok = reshape_edges(*source, edges, options.batched); !ok) return std::unexpected(ok.error());
  return make_model(*std::move(source), options);
}

TEST(EdgeReshape, ShowsTheClientsShapesAndComputesInTheFiles) {
  const auto model = reshaped(sum({"n", "2", "3"}, 3), {{"x", true, {6}, {2, 3}}, {"y", false, {3, 2}, {2, 3}}},
                              {.batched = true});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_THAT((*model)->inputs()[0].shape, ElementsAre(batch_dimension, 6));
  EXPECT_THAT((*model)->outputs()[0].shape, ElementsAre(batch_dimension, 3, 2));
  EXPECT_EQ((*model)->inputs()[0].name, "x");
  EXPECT_EQ((*model)->outputs()[0].name, "y");

  const auto plain = sum({"n", "2", "3"}, 3).import({.batched = true});
  ASSERT_TRUE(plain);
  std::vector<float> numbers;
  for (int i = 0; i < 12; ++i) numbers.push_back(static_cast<float>(i));
  const auto values = [&](const Made& made, const Shape& shape) {
    const auto graph = (*made)->specialize(2, 0);
    EXPECT_TRUE(graph) << graph.error().message;
    const auto out =
        testing::run_plainly(*graph, {std::make_shared<const Tensor>(Tensor::of_f32(shape, numbers))});
    EXPECT_TRUE(out) << out.error().message;
    const auto bytes = (*out)[0]->bytes();
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(values(model, {2, 6}), values(plain, {2, 2, 3}));
}

TEST(EdgeReshape, TakesRowsOfNoDimension) {
  const auto model = reshaped(sum({"n"}, 1), {{"x", true, {1}, {}}, {"y", false, {1}, {}}}, {.batched = true});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_THAT((*model)->inputs()[0].shape, ElementsAre(batch_dimension, 1));
  EXPECT_THAT((*model)->outputs()[0].shape, ElementsAre(batch_dimension, 1));
}

TEST(EdgeReshape, KeepsAnExtentOpen) {
  const auto model = reshaped(sum({"n", "2", "k"}, 1), {{"x", true, {-1}, {2, -1}}, {"y", false, {-1}, {2, -1}}},
                              {.open = true, .batched = true});
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ((*model)->inputs()[0].shape.size(), 2U);
  EXPECT_TRUE(is_free((*model)->inputs()[0].shape[1]));
  const auto at = (*model)->specialize_at(3, std::vector<std::int64_t>{8});
  ASSERT_TRUE(at) << at.error().message;
  EXPECT_THAT(at->value(at->outputs[0]).type.shape, ElementsAre(3, 8));
}

TEST(EdgeReshape, ServesModelsWithoutABatch) {
  const auto model = reshaped(sum({"2", "3"}, 3), {{"x", true, {3, 2}, {2, 3}}}, {.batched = false});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_THAT((*model)->inputs()[0].shape, ElementsAre(3, 2));
  EXPECT_THAT((*model)->outputs()[0].shape, ElementsAre(2, 3));
}

TEST(EdgeReshape, AnOutputThatIsAnInputKeepsTheInputsName) {
  Onnx m = sum({"n", "4"}, 4);
  m.output("x");
  const auto model = reshaped(m, {{"x", false, {2, 2}, {4}}}, {.batched = true});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->inputs()[0].name, "x");
  EXPECT_THAT((*model)->inputs()[0].shape, ElementsAre(batch_dimension, 4));
  EXPECT_THAT((*model)->outputs()[1].shape, ElementsAre(batch_dimension, 2, 2));
}

TEST(EdgeReshape, SaysWhatDoesNotFit) {
  const auto said = [](const std::vector<EdgeReshape>& edges) {
    const auto model = reshaped(sum({"n", "2", "3"}, 3), edges, {.batched = true});
    return model ? std::string("made") : model.error().message;
  };
  EXPECT_THAT(said({{"x", true, {6}, {6}}}),
              HasSubstr("input 'x': reshape gives the model [6] without the batch dimension, but the file has "
                        "[-1,2,3] with it"));
  EXPECT_THAT(said({{"x", true, {6}, {3, 2}}}), HasSubstr("but the file has [-1,2,3]"));
  EXPECT_THAT(said({{"z", true, {6}, {2, 3}}}), HasSubstr("input 'z' of the config, which has a reshape"));
  EXPECT_THAT(said({{"z", false, {6}, {2, 3}}}), HasSubstr("output 'z' of the config, which has a reshape"));
  EXPECT_THAT(said({{"y", false, {7}, {7}}}), HasSubstr("reshape of 'y'"));
}

}  // namespace
}  // namespace carillon::graph
