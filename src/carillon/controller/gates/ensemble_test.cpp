#include "carillon/controller/gates/ensemble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/controller/gates/ensemble_run.h"
#include "carillon/controller/testing/ensembles.h"

namespace carillon::controller {
namespace {

using ::testing::ElementsAre;
using testing::ensemble_view;
using ::testing::HasSubstr;
using testing::model_view;

class EnsembleTest : public ::testing::Test {
 protected:
  EnsembleTest() { testing::put_diamond(directory); }
  std::string reason(const std::string& name = "diamond") const {
    const auto view = directory.find(name, "").value();
    EXPECT_FALSE(view->ready);
    EXPECT_EQ(view->ensemble, nullptr);
    return view->reason;
  }
  std::shared_ptr<const Ensemble> diamond() const { return directory.find("diamond", "").value()->ensemble; }
  Directory directory;
};

TEST_F(EnsembleTest, IsReadyWhereItsModelsAre) {
  const auto view = directory.find("diamond", "").value();
  ASSERT_TRUE(view->ready) << view->reason;
  EXPECT_EQ(directory.counts().ready, 5U);
  EXPECT_EQ(directory.ensemble(view->id), view->ensemble);
  directory.put(model_view("other", 9, {{"x", 1}}, {{"y", 1}}));
  EXPECT_EQ(directory.find("diamond", "").value(), view) << "nothing of it has changed";

  auto gone = model_view("left", 1, {{"y", 4}}, {{"l", 1}});
  gone.ready = false;
  gone.left_out = true;
  gone.reason = "unloaded";
  directory.put(gone);
  EXPECT_EQ(reason(), "step 'left' (2 in the order in which they run): the model is not ready: unloaded");
  EXPECT_EQ(directory.counts().broken, 1U) << "the ensemble; the model was unloaded on purpose";
  directory.put(model_view("left", 7, {{"y", 4}}, {{"l", 1}}));
  const auto again = directory.find("diamond", "").value();
  EXPECT_TRUE(again->ready);
  EXPECT_NE(again->id, view->id);
  EXPECT_EQ(directory.ensemble(view->id), view->ensemble) << "somebody has it still";

  auto unloaded = ensemble_view("diamond", {{"in", 3}}, {{"out", 2}}, view->config.steps);
  unloaded.left_out = true;
  unloaded.reason = "unloaded";
  directory.put(unloaded);
  EXPECT_EQ(reason(), "unloaded");
  EXPECT_EQ(directory.counts().broken, 0U);
}

TEST_F(EnsembleTest, SaysWhatDoesNotFit) {
  const struct {
    ModelView view;
    const char* reason;
  } rows[] = {
      {model_view("left", 1, {{"y", 9}}, {{"l", 1}}),
       "step 'left' (2 in the order in which they run): tensor 'a' is FP32[-1,9] as input 'y' of model "
       "'left', but "
       "FP32[-1,4] as output 'y' of model 'first'; type, number of dimensions and fixed extents must be the "
       "same"},
      {model_view("left", 1, {{"q", 4}}, {{"l", 1}}),
       "step 'left' (2 in the order in which they run): input_map names input 'y', which the model does not "
       "have; "
       "it has 'q'"},
      {model_view("left", 1, {{"y", 4}, {"q", 4}}, {{"l", 1}}),
       "step 'left' (2 in the order in which they run): input_map leaves out input 'q', which the model "
       "needs; it "
       "has 'y', 'q'"},
      {model_view("left", 1, {{"y", 4}}, {{"k", 1}}),
       "step 'left' (2 in the order in which they run): output_map names output 'l', which the model does "
       "not "
       "have; it has 'k'"},
      {model_view("left", 1, {{"y", 4}}, {{"l", 1}}, 4),
       "step 'left' (2 in the order in which they run): the ensemble's max_batch_size is 8, and the model's "
       "is 4; "
       "set the ensemble's to that, or less"},
      {model_view("left", 1, {{"y", 4}}, {{"l", 1}}, 0),
       "step 'left' (2 in the order in which they run): tensor 'a' is FP32[4] as input"},
  };
  for (const auto& row : rows) {
    directory.put(row.view);
    EXPECT_EQ(reason().substr(0, std::string_view(row.reason).size()), row.reason);
  }
  auto typed = model_view("left", 1, {{"y", 4}}, {{"l", 1}});
  typed.config.inputs[0].type = graph::DataType::i64;
  directory.put(typed);
  EXPECT_THAT(reason(), HasSubstr("tensor 'a' is INT64[-1,4] as input 'y'"));
  auto whole = model_view("left", 1, {{"y", 4}}, {{"l", 1}}, 0);
  whole.config.inputs[0].shape = {8, 4};
  whole.config.outputs[0].shape = {8, 1};
  directory.put(whole);
  EXPECT_THAT(reason(),
              HasSubstr("the model does not batch, its input 'y' is always FP32[8,4]; set the ensemble's "
                        "max_batch_size to 0"));
}

TEST_F(EnsembleTest, SaysWhichModelIsMissing) {
  directory.put(
      ensemble_view("e", {{"in", 3}}, {{"out", 2}}, {{"nobody", 0, {{"x", "in"}}, {{"y", "out"}}}}));
  EXPECT_EQ(reason("e"),
            "step 'nobody' (1 in the order in which they run): there is no model 'nobody' in the repository");
  directory.put(ensemble_view("e", {{"in", 3}}, {{"out", 2}}, {{"first", 4, {{"x", "in"}}, {{"y", "out"}}}}));
  EXPECT_EQ(
      reason("e"),
      "step 'first' (1 in the order in which they run): model 'first' has no version 4 in the repository");
}

TEST_F(EnsembleTest, MayBeInEachOtherButNotInACircle) {
  const auto around = [](const std::string& name, const std::string& inner) {
    return ensemble_view(name, {{"in", 3}}, {{"out", 2}}, {{inner, 0, {{"in", "in"}}, {{"out", "out"}}}});
  };
  directory.put(around("b", "c"));
  directory.put(around("a", "b"));
  directory.put(around("c", "diamond"));
  const auto a = directory.find("a", "").value();
  ASSERT_TRUE(a->ready) << a->reason;
  EXPECT_EQ(a->ensemble->nested, 4);
  EXPECT_EQ(a->ensemble->steps_in_all, 7U);
  directory.put(around("c", "a"));
  EXPECT_EQ(reason("a"), "ensembles are in each other, in a circle: 'a', 'b', 'c', 'a'");
  EXPECT_EQ(reason("c"), "ensembles are in each other, in a circle: 'c', 'a', 'b', 'c'");
  directory.put(around("outside", "a"));
  EXPECT_THAT(reason("outside"), HasSubstr("the model is not ready: ensembles are in each other"));
  directory.put(around("c", "diamond"));
  EXPECT_TRUE(directory.find("outside", "").value()->ready);
  std::string inner = "diamond";
  for (int depth = 2; depth <= most_nested; ++depth) {
    directory.put(around("n" + std::to_string(depth), inner));
    inner = "n" + std::to_string(depth);
    EXPECT_TRUE(directory.find(inner, "").value()->ready);
  }
  directory.put(around("too_deep", inner));
  EXPECT_EQ(reason("too_deep"), "it nests ensembles 9 deep; at most 8");
}

TEST_F(EnsembleTest, TakesFromItsModelsWhatItsConfigLeavesOpen) {
  auto open = ensemble_view("open", {{"in", -1}}, {{"out", -1}}, diamond()->config.steps);
  directory.put(open);
  const auto view = directory.find("open", "").value();
  ASSERT_TRUE(view->ready) << view->reason;
  EXPECT_EQ(view->config.inputs[0].shape, (graph::Shape{graph::batch_dimension, 3}));
  EXPECT_EQ(view->config.outputs[0].shape, (graph::Shape{graph::batch_dimension, 2}));
  auto free = model_view("first", 0, {{"x", 3}}, {{"y", 4}, {"z", 5}});
  free.config.inputs[0].shape[1] = graph::free_dimension(0);
  directory.put(free);
  EXPECT_EQ(directory.find("open", "").value()->config.inputs[0].shape,
            (graph::Shape{graph::batch_dimension, graph::free_dimension(0)}));
}

TEST_F(EnsembleTest, KnowsWhatFollowsAStep) {
  const Ensemble& ensemble = *diamond();
  ASSERT_EQ(ensemble.steps.size(), 4U);
  EXPECT_EQ(ensemble.steps[0].behind, 0b1110U);
  EXPECT_EQ(ensemble.steps[1].behind, 0b1000U);
  EXPECT_EQ(ensemble.steps[3].from, 0b0110U);
  const Duration takes[] = {1ms, 10ms, 20ms, 2ms};
  // On one device left and right run one after the other.
  const EnsembleTimes one = times_of(ensemble, takes, 1);
  EXPECT_THAT(one.after, ElementsAre(32ms, 2ms, 2ms, 0ms));
  EXPECT_EQ(one.whole, 33ms);
  const EnsembleTimes two = times_of(ensemble, takes, 2);
  EXPECT_THAT(two.after, ElementsAre(22ms, 2ms, 2ms, 0ms));
  EXPECT_EQ(two.whole, 23ms);
}

using Tensors = std::vector<std::vector<std::byte>>;

std::vector<std::byte> filled(std::size_t floats, int with) {
  return std::vector<std::byte>(floats * 4, static_cast<std::byte>(with));
}

class RunTest : public EnsembleTest {
 protected:
  // A request of two rows.
  RunTest() {
    call.rows = 2;
    call.inputs.push_back(filled(6, 1));
  }
  const repository::ModelConfig& model(const std::shared_ptr<const Ensemble>& ensemble, std::size_t step) {
    return ensemble->steps[step].view->config;
  }
  // Answers a step with outputs full of its number plus 10.
  Result<> answer(EnsembleRun& run, const std::shared_ptr<const Ensemble>& of, std::size_t step) {
    InferCall answered;
    answered.rows = 2;
    for (const graph::TensorSpec& spec : model(of, step).outputs)
      answered.outputs.push_back(
          filled(static_cast<std::size_t>(2 * spec.shape[1]), static_cast<int>(step) + 10));
    return run.done(step, model(of, step), answered);
  }
  InferCall call;
};

TEST_F(RunTest, StepsStartAsSoonAsWhatTheyReadIsThere) {
  const auto ensemble = diamond();
  EnsembleRun run(ensemble, call);
  EXPECT_THAT(run.take_ready(), ElementsAre(0));
  EXPECT_THAT(run.take_ready(), ElementsAre());
  auto first = run.call_of(0, model(ensemble, 0)).value();
  EXPECT_EQ(first->rows, 2);
  EXPECT_EQ(first->inputs, (Tensors{filled(6, 1)}));
  ASSERT_TRUE(answer(run, ensemble, 0));
  EXPECT_THAT(run.take_ready(), ElementsAre(1, 2)) << "beside each other";
  EXPECT_EQ(run.call_of(1, model(ensemble, 1)).value()->inputs[0], filled(8, 10));
  EXPECT_EQ(run.call_of(2, model(ensemble, 2)).value()->inputs[0], filled(10, 10));
  ASSERT_TRUE(answer(run, ensemble, 2));
  EXPECT_THAT(run.take_ready(), ElementsAre()) << "the last needs both";
  ASSERT_TRUE(answer(run, ensemble, 1));
  EXPECT_THAT(run.take_ready(), ElementsAre(3));
  EXPECT_EQ(run.call_of(3, model(ensemble, 3)).value()->inputs, (Tensors{filled(2, 11), filled(2, 12)}));
  EXPECT_FALSE(run.finished());
  ASSERT_TRUE(answer(run, ensemble, 3));
  ASSERT_TRUE(run.finished());
  ASSERT_TRUE(run.finish(call));
  EXPECT_EQ(call.outputs, (Tensors{filled(4, 13)}));
  ASSERT_NE(call.size, nullptr);
  EXPECT_EQ(call.size->outputs, (std::vector<graph::Shape>{{2, 2}}));
}

TEST_F(RunTest, TensorsAreMovedToTheLastWhoReadsThem) {
  // "in" goes to two steps, "a" to one and out.
  directory.put(ensemble_view("e", {{"in", 3}}, {{"a", 3}, {"b", 3}, {"c", 3}},
                              {{"same", 0, {{"x", "in"}}, {{"y", "a"}}},
                               {"same", 0, {{"x", "in"}}, {{"y", "b"}}},
                               {"same", 0, {{"x", "a"}}, {{"y", "c"}}}}));
  directory.put(model_view("same", 5, {{"x", 3}}, {{"y", 3}}));
  const auto ensemble = directory.find("e", "").value()->ensemble;
  ASSERT_NE(ensemble, nullptr);
  const std::byte* const in = call.inputs[0].data();
  EnsembleRun run(ensemble, call);
  EXPECT_THAT(run.take_ready(), ElementsAre(0, 1));
  EXPECT_NE(run.call_of(0, model(ensemble, 0)).value()->inputs[0].data(), in) << "a copy";
  EXPECT_EQ(run.call_of(1, model(ensemble, 1)).value()->inputs[0].data(), in) << "the same memory";
  InferCall answered;
  answered.rows = 2;
  answered.outputs.push_back(filled(6, 7));
  const std::byte* const a = answered.outputs[0].data();
  ASSERT_TRUE(run.done(0, model(ensemble, 0), answered));
  EXPECT_THAT(run.take_ready(), ElementsAre(2));
  EXPECT_EQ(run.call_of(2, model(ensemble, 2)).value()->inputs[0], filled(6, 7));
  ASSERT_TRUE(answer(run, ensemble, 1));
  ASSERT_TRUE(answer(run, ensemble, 2));
  ASSERT_TRUE(run.finish(call));
  EXPECT_EQ(call.outputs[0].data(), a) << "it went out without a copy";
}

TEST_F(RunTest, ShapesThatNobodyKnewAreHeldAgainstTheNextModel) {
  auto first = model_view("first", 0, {{"x", 3}}, {{"y", 4}, {"z", 5}});
  first.config.outputs[0].shape[1] = graph::computed_dimension;
  directory.put(first);
  const auto ensemble = diamond();
  ASSERT_NE(ensemble, nullptr);
  EnsembleRun run(ensemble, call);
  (void)run.take_ready();
  InferCall answered;
  answered.rows = 2;
  auto size = std::make_shared<Size>();
  size->outputs = {{1, 6}, {1, 5}};
  answered.size = size;
  answered.outputs = {filled(12, 1), filled(10, 1)};
  ASSERT_TRUE(run.done(0, model(ensemble, 0), answered));
  const auto left = run.call_of(1, model(ensemble, 1));
  ASSERT_FALSE(left.has_value());
  EXPECT_EQ(left.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(left.error().message,
            "tensor 'a' is [2,6], which input 'y' of model 'left', [-1,4] with at most 8 rows, does not take "
            "beside "
            "its other inputs");
}

TEST_F(RunTest, WholeTensorsBecomeRowsOfModelsThatBatch) {
  auto whole =
      ensemble_view("whole", {{"in", 3}}, {{"out", 3}}, {{"same", 0, {{"x", "in"}}, {{"y", "out"}}}}, 0);
  whole.config.inputs[0].shape = whole.config.outputs[0].shape = {2, 3};
  directory.put(whole);
  directory.put(model_view("same", 5, {{"x", 3}}, {{"y", 3}}));
  const auto ensemble = directory.find("whole", "").value()->ensemble;
  ASSERT_NE(ensemble, nullptr);
  call.rows = 1;
  EnsembleRun run(ensemble, call);
  (void)run.take_ready();
  EXPECT_EQ(run.call_of(0, model(ensemble, 0)).value()->rows, 2);
  whole.config.inputs[0].shape = whole.config.outputs[0].shape = {9, 3};
  directory.put(whole);
  EXPECT_EQ(reason("whole"),
            "step 'same' (1 in the order in which they run): tensor 'in' is always 9 rows, and the model "
            "takes 8 at "
            "most (its max_batch_size)");
}

}  // namespace
}  // namespace carillon::controller
