#include "carillon/frontend/api/model_orders.h"

#include <string>

#include "grpc_service.pb.h"
#include <gtest/gtest.h>

#include "carillon/frontend/testing/fake_service.h"

namespace carillon::frontend {
namespace {

Result<ModelOrder> order_in(const std::string& body, bool loads = true) {
  HttpRequest request;
  request.body = PaddedBytes(body);
  return order_of(request, "m", loads);
}

TEST(ModelOrders, AreTheSameOverBothProtocols) {
  const auto http = order_in(R"({"other": {"parameters": [1]}, "parameters":
      {"config": "{\"max_batch_size\": 2}", "file:1/model.onnx": "AAEC", "file:a.txt": ""}})");
  ASSERT_TRUE(http.has_value()) << http.error().message;
  inference::RepositoryModelLoadRequest message;
  message.set_model_name("m");
  auto& parameters = *message.mutable_parameters();
  parameters["config"].set_string_param(R"({"max_batch_size": 2})");
  parameters["file:1/model.onnx"].set_bytes_param(std::string("\0\1\2", 3));
  parameters["file:a.txt"].set_bytes_param("");
  const auto grpc = order_of(message);
  ASSERT_TRUE(grpc.has_value()) << grpc.error().message;
  for (const auto& order : {*http, *grpc}) {
    EXPECT_TRUE(order.loads);
    EXPECT_EQ(order.model, "m");
    EXPECT_EQ(order.brought.config, R"({"max_batch_size": 2})");
    EXPECT_EQ(order.brought.files, (std::map<std::string, std::string>{
                                       {"1/model.onnx", std::string("\0\1\2", 3)}, {"a.txt", ""}}));
  }
  EXPECT_TRUE(order_in("")->brought.files.empty());
  EXPECT_FALSE(order_in("{}", false)->dependents);
  EXPECT_TRUE(order_in(R"({"parameters": {"unload_dependents": true}})", false)->dependents);
  inference::RepositoryModelUnloadRequest unload;
  unload.set_repository_name("m");
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(true);
  EXPECT_TRUE(order_of(unload)->dependents);
  EXPECT_EQ(order_of(unload)->model, "m");
}

TEST(ModelOrders, ThereIsOneRepository) {
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("m");
  load.set_repository_name("other");
  EXPECT_EQ(order_of(load).error().code, ErrorCode::unsupported);
}

TEST(ModelOrders, WhatIsNotUnderstoodIsRefused) {
  const struct {
    std::string body;
    bool loads;
    const char* why;
  } rows[] = {
      {"[]", true, "the body must be a JSON object"},
      {"7", true, "the body must be a JSON object"},
      {R"({"parameters": )", true, "the body is not JSON"},
      {R"({"parameters": null})", true, "\"parameters\" must be an object"},
      {R"({"parameters": []})", true, "\"parameters\" must be an object"},
      {R"({"parameters": {"config": {}}})", true, "parameter 'config' must be text"},
      {R"({"parameters": {"config": [1]}})", true, "parameter 'config' must be text"},
      {R"({"parameters": {"file:a": 7}})", true, "parameter 'file:a' must be the file's bytes"},
      {R"({"parameters": {"file:a": "?"}})", true, "text in base64"},
      {R"({"parameters": {"file:a": "", "file:a": ""}})", true, "file 'a' comes twice"},
      {R"({"parameters": {"files": ""}})", true, "parameter 'files' is not known; there are config"},
      {R"({"parameters": {"unload_dependents": true}})", true, "'unload_dependents' is not known"},
      {R"({"parameters": {"unload_dependents": 1}})", false, "must be true or false"},
      {R"({"parameters": {"file:a": ""}})", false, "parameter 'file:a' is not known; there is unload"},
  };
  for (const auto& row : rows) {
    const auto order = order_in(row.body, row.loads);
    ASSERT_FALSE(order.has_value()) << row.body;
    EXPECT_EQ(order.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(order.error().message.find(row.why), std::string::npos) << order.error().message;
  }
  // Deep and wide, and nothing of it is wanted.
  std::string deep = R"({"other": )";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  for (int i = 0; i < 100'000; ++i) deep += ']';
  EXPECT_TRUE(order_in(deep + "}").has_value());
}

TEST(ModelOrders, AKeyNeedsAllTheModelsOfAnOrder) {
  const auto view_of = [](const std::string& name, const std::vector<std::string>& steps) {
    controller::ModelView view{.name = name};
    for (const std::string& step : steps) {
      view.config.steps.emplace_back();
      view.config.steps.back().model = step;
    }
    return view;
  };
  FakeService service;
  service.all_models = {view_of("a_outer", {"a_inner", "a_step"}), view_of("a_inner", {"b_step"}),
                        view_of("a_step", {}), view_of("b_step", {})};
  const Caller caller(Key{.name = "k", .models = {"a_*"}});
  ModelOrder order{.loads = false, .model = "a_outer"};
  EXPECT_FALSE(check_order(service, &caller, order)) << "its models stay";
  order.dependents = true;
  EXPECT_TRUE(check_order(service, &caller, order)) << "b_step would go with a_inner";
  EXPECT_FALSE(check_order(service, nullptr, order)) << "there are no keys";
  order.model = "a_step";
  EXPECT_FALSE(check_order(service, &caller, order));
  order.model = "b_step";
  EXPECT_TRUE(check_order(service, &caller, order));
  ModelOrder config{.loads = true, .model = "a_step"};
  config.brought.config =
      R"({"platform": "ensemble", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
          "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
          "ensemble_scheduling": {"step": [{"model_name": "b_step", "model_version": -1,
            "input_map": {"x": "x"}, "output_map": {"y": "y"}}]}})";
  EXPECT_TRUE(check_order(service, &caller, config)) << "it would run b_step";
}

}  // namespace
}  // namespace carillon::frontend
