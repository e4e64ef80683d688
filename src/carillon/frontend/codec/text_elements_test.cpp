#include "carillon/frontend/codec/text_elements.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/testing/fake_service.h"

namespace carillon::frontend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two texts that a model's output has.
struct Spelt {
  controller::ModelView model = model_of(graph::DataType::string, {2});
  InferRequest request;
  controller::InferCall call;

  Spelt(std::string_view first, std::string_view second, bool binary) {
    call.rows = 1;
    for (const std::string_view text : {first, second})
      put_handle(call.outputs.emplace_back(), graph::known_texts().add(text).value());
    call.outputs[0].insert(call.outputs[0].end(), call.outputs[1].begin(), call.outputs[1].end());
    call.outputs.pop_back();
    request.outputs.push_back({.index = 0, .binary = binary});
  }
};

TEST(TextElements, OutputsAreSpelt) {
  Spelt spelt("", "gr\xc3\xbc\xc3\x9f", false);
  ASSERT_TRUE(finish_outputs(spelt.model.config, spelt.request, spelt.call));
  EXPECT_THAT(text_elements(spelt.call.outputs[0]), ElementsAre("", "gr\xc3\xbc\xc3\x9f"));
}

TEST(TextElements, WhatIsNotUtf8GoesAsABlobAlone) {
  Spelt json("a", "\xfc", false), blob("a", "\xfc", true);
  const auto refused = finish_outputs(json.model.config, json.request, json.call);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("output 'y' of model 'one': element 1 is not UTF-8"));
  ASSERT_TRUE(finish_outputs(blob.model.config, blob.request, blob.call));
  EXPECT_THAT(text_elements(blob.call.outputs[0]), ElementsAre("a", "\xfc"));
}

TEST(TextElements, AreReadBack) {
  ASSERT_TRUE(graph::known_texts().add("cat"));
  std::vector<std::byte> data, wanted;
  append_element(data, "cat");
  append_element(data, "no model names this");
  put_handle(wanted, graph::known_texts().find("cat"));
  put_handle(wanted, graph::unknown_text);
  const auto read = read_texts("it", 2, data, nullptr);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, wanted);
  EXPECT_TRUE(read_texts("it", 0, {}, nullptr));
  for (std::size_t size = 0; size < data.size(); ++size)
    EXPECT_FALSE(read_texts("it", 2, std::span(data).first(size), nullptr)) << size;
  EXPECT_FALSE(read_texts("it", 1, data, nullptr));
}

TEST(TextElements, WhatNoModelNamesComesBackAsItWas) {
  Spelt spelt("a", "b", true);
  std::vector<std::byte> data;
  append_element(data, "nobody has named this");
  append_element(data, "\xfe, nor this");
  const auto handles = read_texts("it", 2, data, own_texts(spelt.model.config, spelt.call));
  ASSERT_TRUE(handles) << handles.error().message;
  spelt.call.outputs[0] = *handles;
  ASSERT_TRUE(finish_outputs(spelt.model.config, spelt.request, spelt.call));
  EXPECT_THAT(text_elements(spelt.call.outputs[0]), ElementsAre("nobody has named this", "\xfe, nor this"));
}

TEST(TextElements, AnAnswersTextsHaveABound) {
  const std::string text(most_spelt / 2 + 1, 'x');
  Spelt spelt("a", "b", true);
  spelt.call.outputs[0].clear();
  for (int i = 0; i < 2; ++i) put_handle(spelt.call.outputs[0], graph::first_own_text);
  append_element(spelt.call.texts, text);
  const auto made = finish_outputs(spelt.model.config, spelt.request, spelt.call);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(made.error().message, HasSubstr("the texts of the answer take more than 268435456 bytes"));
}

TEST(TextElements, ATextThatTheRequestDoesNotHaveIsAFault) {
  for (const graph::TextHandle beyond : {1, 5, 1000}) {
    Spelt spelt("a", "b", true);
    append_element(spelt.call.texts, "x");
    spelt.call.outputs[0].clear();
    put_handle(spelt.call.outputs[0], graph::first_own_text);
    put_handle(spelt.call.outputs[0], graph::first_own_text + beyond);
    const auto made = finish_outputs(spelt.model.config, spelt.request, spelt.call);
    ASSERT_FALSE(made) << beyond;
    EXPECT_EQ(made.error().code, ErrorCode::internal);
  }
}

}  // namespace
}  // namespace carillon::frontend
