#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/frontend/api/http_api.h"
#include "carillon/frontend/doors/commons.h"
#include "carillon/frontend/http/http_server.h"
#include "carillon/frontend/testing/fake_service.h"
#include "carillon/frontend/testing/test_client.h"

// For tests: an HTTP server in front of a service that answers as it is told.
namespace carillon::frontend {

inline std::string pair_request(const std::string& id = "a", int rows = 1) {
  using nlohmann::json;
  json x = json::array();
  for (int i = 0; i < rows * 3; ++i) x.push_back(i);
  json n = json::array();
  for (int i = 0; i < rows * 2; ++i) n.push_back(i);
  return json{{"id", id},
              {"inputs",
               {{{"name", "x"}, {"datatype", "FP32"}, {"shape", {rows, 3}}, {"data", x}},
                {{"name", "n"}, {"datatype", "INT32"}, {"shape", {rows, 2}}, {"data", n}}}}}
      .dump();
}

// A model whose answers are so large that only two of them may be in flight, and no socket takes one whole.
inline constexpr std::size_t large_answer = std::size_t{24} << 20;
inline constexpr const char* large_infer = "/v2/models/large/infer";
inline const std::string large_request =
    R"({"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"data":[1]}],)"
    R"("parameters":{"binary_data_output":true}})";
inline controller::ModelView large_model() {
  auto view = model_of(graph::DataType::u8, {1}, "large");
  view.id = ModelId{11};
  view.config.outputs[0].shape = {static_cast<std::int64_t>(large_answer)};
  return view;
}

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    service.all_models = {pair_model()};
    auto sick = model_of(graph::DataType::f32, {2}, "sick");
    sick.ready = false;
    sick.id = ModelId{9};
    sick.reason = "its file is damaged";
    service.all_models.push_back(sick);
  }
  ~HttpServerTest() override {
    service.release();
    if (server) server->stop();
  }

  void start(HttpOptions options = {}) {
    options.address = {"127.0.0.1", 0};
    options.commons = &commons;
    auto started = HttpServer::start(api, std::move(options));
    ASSERT_TRUE(started) << started.error().message;
    server = std::move(*started);
  }

  TestClient client() { return TestClient(server->port()); }

  FakeService service;
  Commons commons{{.inflight = std::size_t{64} << 20,
                   .max_body = std::size_t{16} << 20,
                   .strict_readiness = false,
                   .heavy_threads = 1,
                   .heavy_queue = 1}};
  HttpApi api{service, commons};
  std::unique_ptr<HttpServer> server;
};

}  // namespace carillon::frontend
