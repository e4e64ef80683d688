#include "carillon/frontend/codec/classification.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/codec/text_elements.h"
#include "carillon/frontend/testing/fake_service.h"

namespace carillon::frontend {
namespace {

using ::testing::ElementsAre;

template <typename T>
std::vector<std::byte> bytes_of(std::initializer_list<T> values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  std::memcpy(out.data(), std::data(values), out.size());
  return out;
}

// Of the only output of a model: what becomes of `values`, asked for `classes`.
struct Asked {
  controller::ModelView model;
  InferRequest request;
  controller::InferCall call;

  Asked(graph::DataType type, graph::Shape shape, int rows, std::int64_t classes,
        std::vector<std::byte> values)
      : model(model_of(type, std::move(shape))) {
    call.rows = rows;
    call.outputs.push_back(std::move(values));
    request.outputs.push_back({.index = 0, .classes = classes});
  }
  std::vector<std::string> texts() {
    EXPECT_TRUE(finish_outputs(model.config, request, call));
    std::vector<std::string> out;
    for (const std::string_view text : text_elements(call.outputs[0])) out.emplace_back(text);
    return out;
  }
};

TEST(Classification, TheLargestOfEachRowLargestFirst) {
  Asked asked(graph::DataType::f32, {any_batch, 4}, 2, 2,
              bytes_of<float>({0.25F, -1, 7.5F, 0.5F, 1, 1, 0, 1}));
  EXPECT_THAT(asked.texts(), ElementsAre("7.500000:2", "0.500000:3", "1.000000:0", "1.000000:1"));
  EXPECT_EQ(class_shape(asked.model.config, asked.request.outputs[0], asked.call), (graph::Shape{2, 2}));
}

TEST(Classification, NoMoreClassesThanThereAre) {
  Asked asked(graph::DataType::i64, {3}, 1, std::numeric_limits<std::int64_t>::max(),
              bytes_of<std::int64_t>({-9223372036854775807, 9223372036854775807, 0}));
  EXPECT_EQ(class_shape(asked.model.config, asked.request.outputs[0], asked.call), (graph::Shape{3}));
  EXPECT_THAT(asked.texts(), ElementsAre("9223372036854775807:1", "0:2", "-9223372036854775807:0"));
}

TEST(Classification, WhatIsNoNumberComesLast) {
  Asked asked(graph::DataType::f64, {4}, 1, 4,
              bytes_of<double>({std::nan(""), -INFINITY, INFINITY, std::nan("")}));
  EXPECT_THAT(asked.texts(), ElementsAre("inf:2", "-inf:1", "nan:0", "nan:3"));
}

TEST(Classification, LabelsAsFarAsThereAreAny) {
  Asked asked(graph::DataType::u8, {3}, 1, 3, bytes_of<std::uint8_t>({1, 3, 2}));
  asked.model.config.labels =
      std::make_shared<const repository::Labels>(repository::Labels{{"y", {"cat", "a: dog"}}});
  EXPECT_THAT(asked.texts(), ElementsAre("3:1:a: dog", "2:2", "1:0:cat"));
}

TEST(Classification, EmptyRowsHaveNoClasses) {
  Asked asked(graph::DataType::f32, {any_batch, 0}, 3, 5, {});
  EXPECT_THAT(asked.texts(), ElementsAre());
  EXPECT_EQ(class_shape(asked.model.config, asked.request.outputs[0], asked.call), (graph::Shape{3, 0}));
}

TEST(Classification, IsWrittenAsTextsOrAsABlob) {
  for (const bool binary : {false, true}) {
    Asked asked(graph::DataType::f16, {any_batch, 2}, 1, 1, bytes_of<std::uint16_t>({0x3c00, 0x4000}));
    asked.request.outputs[0].binary = binary;
    ASSERT_TRUE(finish_outputs(asked.model.config, asked.request, asked.call));
    const auto body = write_infer_json(asked.model, asked.request, asked.call);
    const auto output = nlohmann::json::parse(body.json)["outputs"][0];
    EXPECT_EQ(output["datatype"], "BYTES");
    EXPECT_EQ(output["shape"], (std::vector<int>{1, 1}));
    if (!binary) {
      EXPECT_EQ(output["data"], (std::vector<std::string>{"2.000000:1"}));
      continue;
    }
    EXPECT_EQ(output["parameters"]["binary_data_size"], 14);
    EXPECT_THAT(text_elements(body.blobs.at(0)), ElementsAre("2.000000:1"));
  }
}

TEST(Classification, CountsAreNotNegative) {
  EXPECT_EQ(classes_asked_for("y", 3).value(), 3);
  EXPECT_EQ(classes_asked_for("y", -1).error().message,
            "output 'y': 'classification' is -1; it is how many classes to answer, or 0");
}

}  // namespace
}  // namespace carillon::frontend
