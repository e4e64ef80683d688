#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/plain/plain_test.h"
#include "carillon/graph/testing.h"

// What ONNX's node tests leave open.
namespace carillon::graph::plain {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsNan;
using testing::Onnx;

TEST(Losses, AClassThatIsNotThereIsBadDataOfItsRow) {
  for (const char* op : {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}) {
    SCOPED_TRACE(op);
    Case test(op);
    test.f32({3, 2}, {0, 0, 1, 0, 0, 2}).i64({3}, {0, 2, 1}).with("reduction", std::string("none"));
    test.out(DataType::f32, {3});
    EXPECT_FALSE(test.run());
    const Faults faults = test.faults(3);
    ASSERT_EQ(faults.all().size(), 1U);
    ASSERT_NE(faults.of(1), nullptr);
    EXPECT_THAT(faults.of(1)->error.message, HasSubstr("index 2, which comes from input 'ids', is outside"));
  }
}

TEST(Losses, WhatIsIgnoredCountsForNothing) {
  Case test("NegativeLogLikelihoodLoss");
  test.f32({3, 2}, {-1, 0, -9, -9, 0, -3}).i64({3}, {0, 7, 1}).with("ignore_index", std::int64_t{7});
  EXPECT_THAT(test.out(DataType::f32, {}).floats(), ElementsAre(2));
}

// The loss itself may be wanted by nobody.
TEST(Losses, TheLogarithmsAloneAreAnAnswer) {
  Onnx m;
  m.input("x", {"1", "2"})
      .i64("labels", {1}, {0})
      .node("SoftmaxCrossEntropyLoss", {"x", "labels"}, {"loss", "logs"});
  const auto model = m.output("logs").import({.batched = false});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const std::vector<float> x{1, 1};
  const auto out = testing::run_plainly(*(*model)->specialize(1),
                                        {std::make_shared<const Tensor>(Tensor::of_f32({1, 2}, x))});
  ASSERT_TRUE(out.has_value()) << out.error().message;
  EXPECT_THAT((*out)[0]->as<float>(),
              ElementsAre(FloatNear(-std::log(2.0F), 1e-6F), FloatNear(-std::log(2.0F), 1e-6F)));
}

// As ReduceMean's of none.
TEST(Training, BatchNormalizationLearnsNoNumberOfNoRows) {
  Case test("TrainingBatchNormalization");
  test.f32({0, 1, 3}, {});
  for (int i = 0; i < 4; ++i) test.f32({1}, {2});
  test.out(DataType::f32, {0, 1, 3}).out(DataType::f32, {1}).out(DataType::f32, {1});
  EXPECT_THAT(test.result<float>(1), ElementsAre(IsNan()));
  EXPECT_THAT(test.result<float>(2), ElementsAre(IsNan()));
}

TEST(Training, DropoutNeedsASeed) {
  const auto import = [](bool seed, float ratio) {
    Onnx m;
    m.input("x", {"4"}).f32("ratio", {}, {ratio});
    m.tensor("train", {}, DataType::boolean)->add_int32_data(1);
    m.node("Dropout", {"x", "ratio", "train"}, {"y"});
    if (seed) m.set("seed", 3);
    return m.output("y").import({.batched = false});
  };
  EXPECT_TRUE(import(true, 0.5).has_value());
  EXPECT_TRUE(import(false, 0).has_value());
  const auto refused = import(false, 0.5);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("it has no seed"));
}

}  // namespace
}  // namespace carillon::graph::plain
