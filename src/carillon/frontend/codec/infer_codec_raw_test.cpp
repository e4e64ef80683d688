#include "carillon/frontend/codec/infer_codec_raw.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/frontend/testing/fake_service.h"
#include "carillon/graph/known_texts.h"

namespace carillon::frontend {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t free_extent = graph::free_dimension(0);

Result<InferRequest> parse(const controller::ModelView& model, std::size_t bytes) {
  return parse_infer_raw(model, PaddedBytes(std::string(bytes, 'a')), TimePoint{5s});
}

TEST(InferRaw, TheBodyIsTheOneInputOfOneRow) {
  auto model = model_of(graph::DataType::f32, {any_batch, 3});
  const auto request = parse(model, 12);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->rows, 1);
  EXPECT_EQ(request->call->inputs[0], std::vector(12, std::byte{'a'}));
  EXPECT_EQ(request->call->deadline, TimePoint::max());
  ASSERT_EQ(request->outputs.size(), 1U);
  EXPECT_TRUE(request->outputs[0].binary);
  const auto short_one = parse(model, 8);
  ASSERT_FALSE(short_one);
  EXPECT_THAT(short_one.error().message, HasSubstr("has 8 bytes; shape [1,3] of FP32 takes 12"));
}

TEST(InferRaw, OneOpenExtentFollowsFromTheSize) {
  auto model = model_of(graph::DataType::f32, {any_batch, free_extent, 2});
  const auto request = parse(model, 40);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->call->extents, (graph::Extents{5}));
  const auto odd = parse(model, 41);
  ASSERT_FALSE(odd);
  EXPECT_THAT(odd.error().message, HasSubstr("a multiple of 8 bytes"));
  model.config.inputs[0].shape = {any_batch, free_extent, graph::free_dimension(1)};
  const auto two = parse(model, 40);
  ASSERT_FALSE(two);
  EXPECT_THAT(two.error().message, HasSubstr("leaves 2 extents unknown"));
}

TEST(InferRaw, TheBodyIsOneText) {
  auto model = model_of(graph::DataType::string, {any_batch, 1});
  EXPECT_TRUE(parse(model, 5));
  EXPECT_TRUE(parse(model, 0));
  model.config.inputs[0].shape = {any_batch, 2};
  const auto two = parse(model, 5);
  ASSERT_FALSE(two);
  EXPECT_THAT(two.error().message, HasSubstr("one element of BYTES"));
}

TEST(InferRaw, IsForModelsWithOneInput) {
  const auto refused = parse(pair_model(), 12);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("has 2 inputs"));
}

}  // namespace
}  // namespace carillon::frontend
