#include "carillon/frontend/http/http_server.h"

#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "carillon/base/random.h"
#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/testing/http_server_fixture.h"
#include "carillon/frontend/testing/lent_object.h"

namespace carillon::frontend {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(HttpServerTest, AnswersJson) {
  start();
  auto c = client();
  const auto response = c.ask("POST", "/v2/models/pair/infer", pair_request("id-7", 2));
  ASSERT_EQ(response.result_int(), 200U) << response.body();
  EXPECT_EQ(response["Content-Type"], "application/json");
  const auto body = json::parse(response.body());
  EXPECT_EQ(body["id"], "id-7");
  EXPECT_EQ(body["model_version"], "2");
  EXPECT_EQ(body["outputs"][0]["data"].size(), 6U);
  EXPECT_EQ(service.last_deadline(), TimePoint::max());
}

TEST_F(HttpServerTest, AnswersBlobs) {
  start();
  auto c = client();
  const std::string head = json{
      {"parameters", {{"binary_data_output", true}, {"timeout", 30000}}},
      {"inputs",
       {{{"name", "x"}, {"datatype", "FP32"}, {"shape", {1, 3}}, {"parameters", {{"binary_data_size", 12}}}},
        {{"name", "n"},
         {"datatype", "INT32"},
         {"shape", {1, 2}},
         {"parameters",
          {{"binary_data_size",
            8}}}}}}}.dump();
  const auto response = c.ask("POST", "/v2/models/pair/versions/2/infer", head + std::string(20, '\1'),
                              {{"Inference-Header-Content-Length", std::to_string(head.size())}});
  ASSERT_EQ(response.result_int(), 200U) << response.body();
  EXPECT_EQ(response["Content-Type"], "application/octet-stream");
  const auto length = std::stoul(std::string(response["Inference-Header-Content-Length"]));
  const auto body = json::parse(response.body().substr(0, length));
  EXPECT_EQ(body["outputs"][0]["parameters"]["binary_data_size"], 12);
  EXPECT_EQ(body["outputs"][1]["parameters"]["binary_data_size"], 8);
  ASSERT_EQ(response.body().size(), length + 20);
  EXPECT_EQ(response.body()[length + 5], 5);
  EXPECT_EQ(service.last_deadline(), service.now() + 30ms);
}

TEST_F(HttpServerTest, Statuses) {
  start();
  const std::string good = pair_request();
  const struct {
    std::string method, target, body;
    unsigned status;
    std::string wanted;
  } rows[] = {
      {"GET", "/v2", "", 200, "\"extensions\":["},
      {"GET", "/v2/health/live", "", 200, R"({"live":true})"},
      {"GET", "/v2/health/ready", "", 200, R"({"ready":true})"},
      {"GET", "/v2/models/pair", "", 200, R"("shape":[-1,3])"},
      {"GET", "/v2/models/pair/ready", "", 200, R"({"name":"pair","ready":true})"},
      {"GET", "/v2/models/p%61ir/versions/2/ready", "", 200, "\"ready\":true"},
      {"GET", "/v2/models/pair/config", "", 200, "\"max_batch_size\""},
      {"GET", "/v2/models/pair/stats", "", 200, "model_stats"},
      {"GET", "/v2/models/stats", "", 200, "model_stats"},
      {"POST", "/v2/repository/index", "", 200, R"("state":"READY")"},
      {"POST", "/v2/repository/index", "[]", 400, "must be a JSON object"},
      {"GET", "/v2/models/sick/ready", "", 503, "damaged"},
      {"POST", "/v2/models/sick/infer", good, 503, "damaged"},
      {"GET", "/v2/models/nobody", "", 404, "nobody"},
      {"POST", "/v2/models/nobody/infer", good, 404, "nobody"},
      {"POST", "/v2/models/pair/versions/3/infer", good, 404, "'3'"},
      {"POST", "/v2/models/pair/infer", "{}", 400, "inputs"},
      {"POST", "/v2/models/pair/infer", "", 400, "no JSON"},
      {"GET", "/v2/models/pair/infer", "", 405, "use POST"},
      {"POST", "/v2", "", 405, "use GET"},
      {"GET", "/v3", "", 404, "no such path"},
      {"GET", "/v2/models/%zz", "", 400, "escape"},
      {"POST", "/v2/repository/models/pair/load", "", 501, "loading models: it serves the models that"},
      {"POST", "/v2/repository/models/pair/unload", "", 501, "when it started"},
      {"POST", "/v2/cudasharedmemory/region/r/register", "", 501, "system shared memory"},
      {"GET", "/v2/cudasharedmemory/region/r/status", "", 404, "'r'"},
      {"POST", "/v2/systemsharedmemory/register", "", 404, "no such path"},
      {"GET", "/v2/logging", "", 501, "no settings"},
      {"GET", "/v2/trace/setting", "", 200, R"("trace_level":["OFF"])"},
      {"GET", "/v2/models/pair/trace/setting", "{", 200, R"("trace_rate":"1000")"},
      {"GET", "/v2/models/nobody/trace/setting", "", 404, "nobody"},
      {"POST", "/v2/trace/setting", R"({"trace_count":12,"log_frequency":["3"]})", 200,
       R"("trace_count":"12")"},
      {"POST", "/v2/trace/setting", R"({"trace_count":null})", 200, R"("trace_count":"-1")"},
      {"POST", "/v2/trace/setting", R"({"trace_level":["TIMESTAMPS"]})", 501, "records no traces"},
      {"POST", "/v2/trace/setting", R"({"trace_level":[{}]})", 400, "must be text"},
      {"POST", "/v2/trace/setting", R"({"colour":"red"})", 400, "'colour'"},
      {"POST", "/v2/trace/setting", "[1]", 400, "must be a JSON object"},
  };
  auto c = client();  // one connection for all: an error does not end it
  for (const auto& [method, target, body, status, wanted] : rows) {
    const auto response = c.ask(method, target, body);
    EXPECT_EQ(response.result_int(), status) << target;
    EXPECT_THAT(response.body(), HasSubstr(wanted)) << target;
    EXPECT_EQ(response["Content-Type"], "application/json") << target;
    const auto parsed = json::parse(response.body());
    if (status != 200) {
      EXPECT_TRUE(parsed["error"].is_string()) << target;
    }
  }
}

TEST_F(HttpServerTest, LogSettings) {
  LogLevels levels;
  Commons with_log{{.log_control = {.levels = [&] { return levels; },
                                    .set = [&](const LogLevels& now) { levels = now; }}}};
  HttpApi logged{service, with_log};
  auto started = HttpServer::start(logged, {.address = {"127.0.0.1", 0}, .commons = &with_log});
  ASSERT_TRUE(started) << started.error().message;
  TestClient c((*started)->port());
  const std::string usual = R"({"log_error":true,"log_file":"","log_format":"default","log_info":true,)"
                            R"("log_verbose_level":0,"log_warning":true})";
  EXPECT_EQ(c.ask("GET", "/v2/logging").body(), usual);
  EXPECT_EQ(c.ask("GET", "/v2/logging", R"({"log_info":false})").body(), usual) << "asking changes nothing";
  EXPECT_THAT(c.ask("POST", "/v2/logging", R"({"log_info":false})").body(), HasSubstr(R"("log_info":false)"));
  EXPECT_FALSE(levels.info);
  for (const char* bad : {R"({"log_info":null})", R"({"log_info":1})", R"({"colour":true})", "[]", "{",
                          R"({"log_verbose_level":-1})"})
    EXPECT_EQ(c.ask("POST", "/v2/logging", bad).result_int(), 400U) << bad;
  EXPECT_THAT(c.ask("POST", "/v2/logging", R"({"log_verbose_level":-1})").body(),
              HasSubstr("log setting 'log_verbose_level' is -1, below 0"));
  EXPECT_EQ(c.ask("POST", "/v2/logging", R"({"log_file":"x"})").result_int(), 501U);
  EXPECT_THAT(c.ask("GET", "/v2").body(), HasSubstr("\"logging\""));
  (*started)->stop();
}

TEST_F(HttpServerTest, InfersInSharedMemory) {
  start();
  auto c = client();
  LentObject object(64);
  object.put(0, "abcdefghijkl");
  const json lend{{"key", object.key()}, {"byte_size", 64}};
  auto response = c.ask("POST", "/v2/systemsharedmemory/region/r%20s/register", lend.dump());
  EXPECT_EQ(response.result_int(), 200U) << response.body();
  const std::string all = R"([{"name":"r s","key":")" + object.key() + R"(","offset":0,"byte_size":64}])";
  EXPECT_EQ(c.ask("GET", "/v2/systemsharedmemory/status").body(), all);
  EXPECT_EQ(c.ask("GET", "/v2/systemsharedmemory/region/r%20s/status").body(), all);
  EXPECT_EQ(c.ask("GET", "/v2/systemsharedmemory/region/q/status").result_int(), 404U);
  EXPECT_EQ(c.ask("GET", "/v2/cudasharedmemory/status").body(), "[]");

  auto request = json::parse(pair_request());
  request["inputs"][0].erase("data");
  request["inputs"][0]["parameters"] = {{"shared_memory_region", "r s"}, {"shared_memory_byte_size", 12}};
  request["outputs"] = json::array(
      {{{"name", "y"},
        {"parameters",
         {{"shared_memory_region", "r s"}, {"shared_memory_byte_size", 12}, {"shared_memory_offset", 32}}}}});
  response = c.ask("POST", "/v2/models/pair/infer", request.dump());
  EXPECT_EQ(response.result_int(), 200U) << response.body();
  EXPECT_FALSE(json::parse(response.body())["outputs"][0].contains("data"));
  EXPECT_EQ(object.get(32, 4), std::string("\0\1\2\3", 4));

  // No room for what is in shared memory: as for a body.
  constexpr std::size_t large = std::size_t{60} << 20;
  LentObject sparse(large);
  ASSERT_TRUE(commons.regions.add({.name = "large", .key = sparse.key(), .byte_size = large}));
  const auto ask_with = [&](std::size_t bytes) {
    service.all_models.back() = model_of(graph::DataType::u8, {static_cast<std::int64_t>(bytes)}, "big");
    const json big{
        {"inputs",
         {{{"name", "x"},
           {"datatype", "UINT8"},
           {"shape", {bytes}},
           {"parameters", {{"shared_memory_region", "large"}, {"shared_memory_byte_size", bytes}}}}}}};
    return c.ask("POST", "/v2/models/big/infer", big.dump());
  };
  service.all_models.emplace_back();
  {
    Reservation others(commons.bodies);
    ASSERT_TRUE(others.grow(large / 2));
    response = ask_with(large / 2);
    EXPECT_EQ(response.result_int(), 503U) << response.body();
    EXPECT_EQ(response["Retry-After"], "1");
  }
  // Beyond seven eighths of 64 MiB there never is: coming back is in vain.
  response = ask_with(large);
  EXPECT_EQ(response.result_int(), 400U) << response.body();
  EXPECT_THAT(response.body(), HasSubstr("more than can ever be in flight, 58720256 (--inflight-limit"));
  EXPECT_EQ(response.count("Retry-After"), 0U);

  EXPECT_EQ(c.ask("POST", "/v2/systemsharedmemory/region/r%20s/unregister").result_int(), 200U);
  EXPECT_EQ(c.ask("POST", "/v2/systemsharedmemory/unregister").result_int(), 200U);
  EXPECT_EQ(c.ask("POST", "/v2/cudasharedmemory/unregister").result_int(), 200U);
  EXPECT_EQ(c.ask("GET", "/v2/systemsharedmemory/status").body(), "[]");
  EXPECT_EQ(c.ask("POST", "/v2/models/pair/infer", request.dump()).result_int(), 400U);
  for (const char* bad : {"", "[]", "{", R"({"key":7,"byte_size":1})", R"({"key":"/k"})",
                          R"({"key":"/k","byte_size":-1})", R"({"key":"/k","byte_size":1,"offset":"2"})"})
    EXPECT_EQ(c.ask("POST", "/v2/systemsharedmemory/region/r/register", bad).result_int(), 400U) << bad;
}

TEST_F(HttpServerTest, NotReady) {
  start();
  service.set_ready(false);
  const auto response = client().ask("GET", "/v2/health/ready");
  EXPECT_EQ(response.result_int(), 503U);
  EXPECT_EQ(json::parse(response.body())["ready"], false);
}

TEST_F(HttpServerTest, StrictReadinessIsOfAllModels) {
  const auto reason = [&]() -> std::string {
    Commons strict;
    const auto ready = server_ready(service, strict);
    return ready ? "" : ready.error().message;
  };
  EXPECT_THAT(reason(), HasSubstr("1 of 2 models are not ready, 'sick' for one"));
  service.all_models.back().left_out = true;
  EXPECT_EQ(reason(), "") << "nobody wants it here";
  service.all_models.erase(service.all_models.begin());
  EXPECT_EQ(reason(), "there are no models to serve");
  service.all_models = {pair_model()};
  service.set_ready(false);
  EXPECT_EQ(reason(), "the server is not ready");
}

TEST_F(HttpServerTest, MapsFailures) {
  start();
  auto c = client();
  const struct {
    ErrorCode code;
    unsigned status;
  } rows[] = {{ErrorCode::deadline_exceeded, 504},
              {ErrorCode::unavailable, 503},
              {ErrorCode::resource_exhausted, 503},
              {ErrorCode::internal, 500},
              {ErrorCode::unsupported, 501}};
  for (const auto& [code, status] : rows) {
    service.fail_with(Error{code, "because"});
    const auto response = c.ask("POST", "/v2/models/pair/infer", pair_request());
    EXPECT_EQ(response.result_int(), status);
    const bool refused = code == ErrorCode::deadline_exceeded;
    EXPECT_EQ(json::parse(response.body()),
              refused ? (json{{"error", "because"}, {"would_take_us", 31200}, {"retry_after_ms", 1201}})
                      : (json{{"error", "because"}}));
    EXPECT_EQ(response["carillon-would-take-us"], refused ? "31200" : "");
    EXPECT_EQ(response["Retry-After"], refused ? "2" : "");
    EXPECT_EQ(response["retry-after-ms"], refused ? "1201" : "");
    EXPECT_EQ(response["carillon-request"], "");
  }
}

TEST_F(HttpServerTest, AClientThatGoesIsCancelled) {
  start();
  service.hold(true);
  auto c = client();
  c.send("POST", "/v2/models/pair/infer", pair_request());
  service.wait_for_held(1);
  c.close();
  service.wait_for_cancelled(1);
  EXPECT_EQ(service.cancelled(), 1);
  service.hold(false);
  EXPECT_EQ(client().ask("POST", "/v2/models/pair/infer", pair_request()).result_int(), 200U);
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  service.hold(true);
  auto c = client();
  std::string three;
  for (const char* id : {"one", "two", "three"})
    three += TestClient::request("POST", "/v2/models/pair/infer", pair_request(id));
  c.send(three);
  service.wait_for_held(1);
  service.hold(false);
  service.release();
  for (const char* id : {"one", "two", "three"}) EXPECT_EQ(json::parse(c.receive().body())["id"], id);
  EXPECT_EQ(service.cancelled(), 0);
}

TEST_F(HttpServerTest, ATargetMayBeAbsolute) {
  start();
  auto c = client();
  EXPECT_EQ(c.ask("GET", "http://test/v2/health/live").result_int(), 200U);
  EXPECT_EQ(c.ask("GET", "HTTPS://test:8000/v2/models/pair?x=/y").result_int(), 200U);
  EXPECT_EQ(c.ask("POST", "http://test/v2/models/pair/infer", pair_request()).result_int(), 200U);
  EXPECT_EQ(c.ask("GET", "ftp://test/v2").result_int(), 404U);
}

// As some clients send them behind a body.
TEST_F(HttpServerTest, AFewEmptyLinesBeforeARequestMeanNothing) {
  start();
  auto c = client();
  const std::string live = TestClient::request("GET", "/v2/health/live");
  for (const std::string lines : {"\r\n", "\r\n\r\n\r\n\r\n", "\n"}) {
    c.send(lines + live);
    EXPECT_EQ(c.receive().result_int(), 200U);
  }
  c.send(live + "\r\n" + live);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(c.receive().result_int(), 200U);
  for (const char each : "\r\n" + live) c.send(std::string(1, each));
  EXPECT_EQ(c.receive().result_int(), 200U);
  c.send("\r\n\r\n\r\n\r\n\r\n\r\n" + live);
  EXPECT_EQ(c.receive().result_int(), 400U);
}

TEST_F(HttpServerTest, ChunkedAndCompressedBodies) {
  start();
  const std::string body = pair_request();
  auto c = client();
  char size[16];
  std::snprintf(size, sizeof size, "%zx", body.size() - 10);
  c.send("POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" +
         std::string("a\r\n") + body.substr(0, 10) + "\r\n" + size + "\r\n" + body.substr(10) +
         "\r\n0\r\n\r\n");
  EXPECT_EQ(c.receive().result_int(), 200U);
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(body))};
  EXPECT_EQ(c.ask("POST", "/v2/models/pair/infer", pack(Coding::gzip, pieces), {{"Content-Encoding", "gzip"}})
                .result_int(),
            200U);
  EXPECT_EQ(
      c.ask("POST", "/v2/models/pair/infer", pack(Coding::deflate, pieces), {{"Content-Encoding", "deflate"}})
          .result_int(),
      200U);
  EXPECT_EQ(c.ask("POST", "/v2/models/pair/infer", body, {{"Content-Encoding", "gzip"}}).result_int(), 400U);
  EXPECT_EQ(c.ask("POST", "/v2/models/pair/infer", body, {{"Content-Encoding", "br"}}).result_int(), 415U);
}

TEST_F(HttpServerTest, CompressesWhenAsked) {
  auto big = model_of(graph::DataType::f32, {any_batch, 1000}, "big");
  big.id = ModelId{3};
  service.all_models.push_back(big);
  start();
  auto c = client();
  const std::string head = json{{"parameters", {{"binary_data_output", true}}},
                                {"inputs",
                                 {{{"name", "x"},
                                   {"datatype", "FP32"},
                                   {"shape", {1, 1000}},
                                   {"parameters", {{"binary_data_size", 4000}}}}}}}
                               .dump();
  const TestClient::Headers length{{"Inference-Header-Content-Length", std::to_string(head.size())}};
  auto asking = length;
  asking.emplace_back("Accept-Encoding", "deflate, gzip");
  const std::string body = head + std::string(4000, 'x');
  const auto plain = c.ask("POST", "/v2/models/big/infer", body, length);
  const auto packed = c.ask("POST", "/v2/models/big/infer", body, asking);
  EXPECT_EQ(plain["Content-Encoding"], "");
  EXPECT_EQ(packed["Content-Encoding"], "gzip");
  EXPECT_EQ(packed["Inference-Header-Content-Length"], plain["Inference-Header-Content-Length"]);
  const auto unpacked = unpack(packed.body(), 1 << 20);
  ASSERT_TRUE(unpacked) << unpacked.error().message;
  EXPECT_EQ(unpacked->text(), plain.body());
}

TEST_F(HttpServerTest, LargeBodiesArriveWhole) {
  auto big = model_of(graph::DataType::u8, {3000000}, "big");
  big.id = ModelId{3};
  service.all_models.push_back(big);
  start({.threads = 2});
  const std::string head = json{{"parameters", {{"binary_data_output", true}}},
                                {"inputs",
                                 {{{"name", "x"},
                                   {"datatype", "UINT8"},
                                   {"shape", {3000000}},
                                   {"parameters", {{"binary_data_size", 3000000}}}}}}}
                               .dump();
  auto c = client();
  c.send("POST", "/v2/models/big/infer", head + std::string(3000000, 'x'),
         {{"Inference-Header-Content-Length", std::to_string(head.size())}});
  const auto response = c.receive();
  ASSERT_EQ(response.result_int(), 200U) << response.body();
  EXPECT_GT(response.body().size(), 3000000U);
}

TEST_F(HttpServerTest, Expect100Continue) {
  start();
  auto c = client();
  const std::string body = pair_request();
  c.send("POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(c.receive().result_int(), 100U);
  c.send(body);
  EXPECT_EQ(c.receive().result_int(), 200U);
}

TEST_F(HttpServerTest, ConnectionsCloseWhenAskedTo) {
  start();
  auto c = client();
  const auto response = c.ask("GET", "/v2/health/live", "", {{"Connection", "close"}});
  ASSERT_EQ(response.result_int(), 200U) << response.body();
  EXPECT_TRUE(c.closed());
  auto old = client();
  old.send("GET /v2/health/live HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.receive().result_int(), 200U);
  EXPECT_TRUE(old.closed());
}

TEST_F(HttpServerTest, OnlyAnswersOfInferenceArePacked) {
  for (int i = 0; i < 40; ++i)
    service.all_models.push_back(model_of(graph::DataType::f32, {2}, "m" + std::to_string(i)));
  start();
  auto c = client();
  const TestClient::Headers asking{{"Accept-Encoding", "gzip"}};
  for (const auto& [method, target] : {std::pair("POST", "/v2/repository/index"),
                                       {"GET", "/v2/models/pair/config"},
                                       {"GET", "/v2/models/stats"}}) {
    const auto response = c.ask(method, target, "", asking);
    EXPECT_EQ(response["Content-Encoding"], "") << target;
    EXPECT_TRUE(json::accept(response.body())) << target;
  }
}

TEST_F(HttpServerTest, FramingThatIsInDoubtIsRefused) {
  start();
  const std::string post = "POST /v2/models/pair/infer HTTP/1.1\r\n";
  const struct {
    std::string head;
    unsigned status;
    std::string words;
  } rows[] = {
      {"GET /v2 HTTP/1.1\r\n", 400, "exactly one Host"},
      {"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400, "exactly one Host"},
      {post + "Host: t\r\nTransfer-Encoding: xchunked\r\n", 501, "'xchunked' is not understood"},
      {post + "Host: t\r\nTransfer-Encoding: gzip, chunked\r\n", 501, "'gzip' is not understood"},
      {post + "Host: t\r\nTransfer-Encoding: xchunked\r\nContent-Length: 4\r\n", 501, "xchunked"},
      {post + "Host: t\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n", 400, ""},
      {post + "Host: t\r\nContent-Length: 4\r\nContent-Length: 5\r\n", 400, ""},
      {"POST /v2/models/pair/infer HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 400, ""},
  };
  for (const auto& [head, status, words] : rows) {
    auto c = client();
    // A request smuggled behind it must not be answered.
    c.send(head + "\r\nGET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n");
    const auto response = c.receive();
    EXPECT_EQ(response.result_int(), status) << head;
    EXPECT_THAT(response.body(), HasSubstr(words)) << head;
    EXPECT_TRUE(c.closed()) << head;
  }
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  auto c = client();
  const auto get = c.ask("GET", "/v2/health/live");
  c.send(
      "HEAD /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
      "HEAD /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\n\r\n"
      "HEAD /nowhere HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const std::string all = c.receive_all();
  EXPECT_THAT(all, ::testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(all, HasSubstr("Content-Length: " + std::to_string(get.body().size()) + "\r\n"));
  EXPECT_THAT(all, HasSubstr("\r\n\r\nHTTP/1.1 405 "));
  EXPECT_THAT(all, HasSubstr("\r\n\r\nHTTP/1.1 404 "));
  EXPECT_THAT(all, ::testing::EndsWith("\r\n\r\n"));
  EXPECT_EQ(all.find('{'), std::string::npos);
}

TEST_F(HttpServerTest, WhileDrainingNewRequestsAreRefused) {
  start();
  service.hold(true);
  auto open = client();
  open.send("POST", "/v2/models/pair/infer", pair_request("last"));
  service.wait_for_held(1);
  commons.draining = true;
  const auto refused = client().ask("POST", "/v2/models/pair/infer", pair_request());
  EXPECT_EQ(refused.result_int(), 503U);
  EXPECT_EQ(refused["Connection"], "close");
  EXPECT_THAT(refused.body(), HasSubstr("going away"));
  EXPECT_EQ(client().ask("GET", "/v2/health/live").result_int(), 200U);
  const auto ready = client().ask("GET", "/v2/health/ready");
  EXPECT_EQ(ready.result_int(), 503U);
  EXPECT_EQ(ready["Connection"], "close");
  std::thread release([&] { service.release(); });
  server->wait_drained(1h);
  release.join();
  EXPECT_EQ(json::parse(open.receive().body())["id"], "last");
  EXPECT_TRUE(open.closed());
}

TEST_F(HttpServerTest, StopLetsOpenRequestsFinish) {
  start();
  service.hold(true);
  auto idle = client();
  EXPECT_EQ(idle.ask("GET", "/v2/health/live").result_int(), 200U);
  auto open = client();
  open.send("POST", "/v2/models/pair/infer", pair_request("last"));
  service.wait_for_held(1);
  std::thread stopping([&] { server->stop(); });
  while (!commons.draining) std::this_thread::yield();  // so stop() has begun
  EXPECT_EQ(client().ask("GET", "/v2/health/ready").result_int(), 503U) << "the port is open until the end";
  service.release();
  const auto response = open.receive();
  EXPECT_EQ(json::parse(response.body())["id"], "last");
  EXPECT_EQ(response["Connection"], "close");
  EXPECT_TRUE(open.closed());
  open.close();
  stopping.join();
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(server->connections(), 0U);
}

TEST_F(HttpServerTest, StopRefusesWhatDoesNotFinish) {
  start({.stop_grace = 1ms});
  service.hold(true);
  auto open = client();
  open.send("POST", "/v2/models/pair/infer", pair_request());
  service.wait_for_held(1);
  std::thread stopping([&] { server->stop(); });
  const auto response = open.receive();
  EXPECT_EQ(response.result_int(), 503U);
  EXPECT_THAT(response.body(), HasSubstr("going away"));
  open.close();
  stopping.join();
  EXPECT_EQ(service.cancelled(), 1);
}

// An answer that comes after the server has gone is dropped.
TEST_F(HttpServerTest, LateAnswersAreDropped) {
  class Stubborn final : public HttpHandler {
   public:
    std::variant<HttpReply, Deferred> handle(HttpRequest, Deliver deliver) override {
      const std::lock_guard lock(mutex);
      late = std::move(deliver);
      has.notify_all();
      return Deferred{.cancel = [] {}};
    }
    std::mutex mutex;
    std::condition_variable has;
    Deliver late;
  } stubborn;
  auto started = HttpServer::start(stubborn, {.address = {"127.0.0.1", 0}, .stop_grace = 1ms});
  ASSERT_TRUE(started);
  TestClient c((*started)->port());
  c.send("GET", "/");
  {
    std::unique_lock lock(stubborn.mutex);
    stubborn.has.wait(lock, [&] { return static_cast<bool>(stubborn.late); });
  }
  c.close();
  (*started)->stop();
  stubborn.late([] { return HttpReply{}; });
}

TEST_F(HttpServerTest, HandlersThatThrowAreAnswered) {
  class Thrower final : public HttpHandler {
   public:
    std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver) override {
      if (request.target == "/memory") throw std::bad_alloc();
      throw std::runtime_error("broken");
    }
  } thrower;
  auto started = HttpServer::start(thrower, {.address = {"127.0.0.1", 0}});
  ASSERT_TRUE(started);
  TestClient c((*started)->port());
  EXPECT_EQ(c.ask("GET", "/").result_int(), 500U);
  EXPECT_EQ(c.ask("GET", "/memory").result_int(), 503U);
}

TEST_F(HttpServerTest, APortInUse) {
  start();
  HttpOptions options;
  options.address = {"127.0.0.1", server->port()};
  const auto second = HttpServer::start(api, options);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("port in use; choose another with --http"));
  EXPECT_THAT(second.error().message, HasSubstr("127.0.0.1:" + std::to_string(server->port())));
  options.address = {"203.0.113.7", 0};
  const auto elsewhere = HttpServer::start(api, options);
  ASSERT_FALSE(elsewhere);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("not one of this machine's"));
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  start({.threads = 2});
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      auto c = client();
      for (int i = 0; i < 50; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        const auto response = c.ask("POST", "/v2/models/pair/infer", pair_request(id, 1 + i % 4));
        if (response.result_int() == 200 && json::parse(response.body())["id"] == id) ++good;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
}

// Whatever bytes come, the server answers or closes, and goes on.
TEST_F(HttpServerTest, SurvivesMangledConnections) {
  start({.max_body = 1 << 16, .idle_timeout = 100ms, .body_timeout = 100ms});
  const std::string whole = TestClient::request("POST", "/v2/models/pair/infer", pair_request());
  Random random(31);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int e = 0; e < 3; ++e) bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    auto c = client();
    c.send(bytes);
    if (random.below(2) == 0) {
      c.close();
      continue;
    }
    (void)c.receive();
  }
  EXPECT_EQ(client().ask("GET", "/v2/health/live").result_int(), 200U);
}

}  // namespace
}  // namespace carillon::frontend
