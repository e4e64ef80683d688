// What a server gives to clients that ask for much, or take long.
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

namespace carillon::frontend {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class HttpLimitsTest : public HttpServerTest {};

std::string with_length(std::size_t length) {
  return "POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(length) +
         "\r\n\r\n";
}

TEST_F(HttpLimitsTest, BodiesThatAreTooLargeAreRefusedEarly) {
  start({.max_body = 1000});
  auto c = client();
  c.send("POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n");
  const auto response = c.receive();
  EXPECT_EQ(response.result_int(), 413U);
  EXPECT_THAT(json::parse(response.body())["error"], HasSubstr("at most 1000"));
  EXPECT_TRUE(c.closed());

  auto chunked = client();
  chunked.send("POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.send("800\r\n" + std::string(0x800, ' ') + "\r\n");
  EXPECT_EQ(chunked.receive().result_int(), 413U);
  EXPECT_TRUE(chunked.closed());

  auto packed = client();
  const std::string zeros(100000, ' ');
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(zeros))};
  EXPECT_EQ(
      packed.ask("POST", "/v2/models/pair/infer", pack(Coding::gzip, pieces), {{"Content-Encoding", "gzip"}})
          .result_int(),
      413U);
}

TEST_F(HttpLimitsTest, HeadersThatAreTooLargeOrNotHttp) {
  start({.max_header = 4096});
  auto c = client();
  c.send("GET /v2 HTTP/1.1\r\nX: " + std::string(8192, 'x') + "\r\n\r\n");
  EXPECT_EQ(c.receive().result_int(), 431U);
  auto garbage = client();
  garbage.send("\x16\x03\x01 not http at all\r\n\r\n");
  EXPECT_EQ(garbage.receive().result_int(), 400U);
  EXPECT_TRUE(garbage.closed());
  auto smuggler = client();
  smuggler.send("POST /v2 HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_EQ(smuggler.receive().result_int(), 400U);
}

// Above 8 KiB: from when it is read, and with what its fields take as the server keeps them.
TEST_F(HttpLimitsTest, LargeHeadersAreInFlight) {
  start();
  const std::string begin = "POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\n";
  const std::string large = begin + "X: " + std::string(20000, 'x');
  auto c = client();
  c.send(large);
  while (commons.bodies->used() < large.size()) std::this_thread::yield();
  const std::string body = pair_request();
  c.send("\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n");
  // Once it is whole it takes nothing more, however long the body does.
  while (commons.bodies->used() > body.size()) std::this_thread::yield();
  c.send(body);
  EXPECT_EQ(c.receive().result_int(), 200U);

  std::string many = begin;
  for (int i = 0; i < 400; ++i) many += "a:\r\n";
  const std::string rest = "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  EXPECT_EQ((c.send(many + rest), c.receive().result_int()), 200U);
  {
    SideRoom all(commons.side);
    ASSERT_TRUE(all.hold(commons.side.limit()));
    for (const std::string& header : {large, many + rest}) {
      auto refused = client();
      refused.send(header);
      const auto response = refused.receive();
      EXPECT_EQ(response.result_int(), 503U);
      EXPECT_EQ(response["Retry-After"], "1");
      EXPECT_THAT(json::parse(response.body())["error"], HasSubstr("there is no room now for a header of"));
      EXPECT_TRUE(refused.closed());
    }
    EXPECT_EQ(c.ask("POST", "/v2/models/pair/infer", body).result_int(), 200U);
  }
  EXPECT_EQ((c.send(many + rest), c.receive().result_int()), 200U);
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

// Answers that clients of one port do not take leave the room of the ports for watching the server.
TEST_F(HttpLimitsTest, APortToWatchByHasRoomOfItsOwn) {
  service.all_models.push_back(model_of(graph::DataType::u8, {1}, "wordy"));
  service.all_models.back().config.inputs[0].name.assign(std::size_t{40} << 10, 'x');
  start();
  auto watching = HttpServer::start(api, {.address = {"127.0.0.1", 0}, .watches = true, .commons = &commons});
  ASSERT_TRUE(watching) << watching.error().message;
  SideRoom all(commons.side);
  ASSERT_TRUE(all.hold(commons.side.limit()));
  EXPECT_EQ(client().ask("GET", "/v2/models/wordy").result_int(), 503U);
  EXPECT_EQ(TestClient((*watching)->port()).ask("GET", "/v2/models/wordy").result_int(), 200U);
  (*watching)->stop();
}

// The wait ends when the server closes, not after a time.
TEST_F(HttpLimitsTest, SlowClientsAreDropped) {
  start({.idle_timeout = 50ms, .header_timeout = 50ms, .body_timeout = 50ms});
  auto silent = client();
  EXPECT_TRUE(silent.closed());
  auto slow_header = client();
  slow_header.send("GET /v2 HTT");
  EXPECT_EQ(slow_header.receive().result_int(), 408U);
  EXPECT_TRUE(slow_header.closed());
  const std::string head = "POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\n";
  for (const char* body :
       {"Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"}) {
    auto slow_body = client();
    slow_body.send(head + body);
    auto response = slow_body.receive();
    if (response.result_int() == 100U) response = slow_body.receive();
    EXPECT_EQ(response.result_int(), 408U);
    EXPECT_THAT(response.body(), HasSubstr("too slowly"));
    EXPECT_TRUE(slow_body.closed());
  }
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

// For one more, the connection goes that has asked for nothing yet, then the one idle for longest; never one
// whose request is open.
TEST_F(HttpLimitsTest, IdleConnectionsMakeRoom) {
  start({.max_connections = 3});
  auto open = client();
  service.hold(true);
  open.send("POST", "/v2/models/pair/infer", pair_request("open"));
  service.wait_for_held(1);
  auto known = client();
  EXPECT_EQ(known.ask("GET", "/v2/health/live").result_int(), 200U);
  auto stranger = client();
  EXPECT_EQ(client().ask("GET", "/v2/health/live").result_int(), 200U);
  EXPECT_TRUE(stranger.closed());
  EXPECT_EQ(known.ask("GET", "/v2/health/live").result_int(), 200U);
  std::deque<TestClient> more;
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(more.emplace_back(server->port()).ask("GET", "/v2/health/live").result_int(), 200U);
  EXPECT_TRUE(known.closed());
  service.release();
  EXPECT_EQ(json::parse(open.receive().body())["id"], "open");
}

TEST_F(HttpLimitsTest, WhereAllAreBusyMoreAreRefused) {
  start({.max_connections = 1});
  auto open = client();
  service.hold(true);
  open.send("POST", "/v2/models/pair/infer", pair_request("open"));
  service.wait_for_held(1);
  auto second = client();
  const auto response = second.receive();
  EXPECT_EQ(response.result_int(), 503U);
  EXPECT_THAT(response.body(), HasSubstr("too many connections"));
  EXPECT_TRUE(second.closed());
  service.release();
  EXPECT_EQ(open.receive().result_int(), 200U);
}

// 64 MiB in flight, of which 56 are for large bodies; nothing of them has been sent when the answers come.
TEST_F(HttpLimitsTest, BodiesInFlightAreBounded) {
  start({.max_body = 16 << 20});
  std::deque<TestClient> holders;
  for (int i = 0; i < 3; ++i) holders.emplace_back(server->port()).send(with_length(16 << 20));
  while (commons.bodies->used() < 48U << 20) std::this_thread::yield();
  auto late = client();
  late.send(with_length(16 << 20));
  const auto refused = late.receive();
  EXPECT_EQ(refused.result_int(), 503U);
  EXPECT_EQ(refused["Retry-After"], "1");
  EXPECT_THAT(json::parse(refused.body())["error"], HasSubstr("too many are in flight"));
  EXPECT_TRUE(late.closed());

  auto chunked = client();
  chunked.send("POST /v2/models/pair/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "100000\r\n" + std::string(0x100000, ' ') + "\r\n";
  for (int i = 0; i < 9; ++i) chunked.send(chunk);
  EXPECT_EQ(chunked.receive().result_int(), 503U);

  EXPECT_EQ(client().ask("POST", "/v2/models/pair/infer", pair_request()).result_int(), 200U);
  holders.clear();
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

TEST_F(HttpLimitsTest, ABodyIsInFlightUntilItsAnswerIsSent) {
  start();
  service.hold(true);
  auto c = client();
  const std::string body = pair_request();
  c.send("POST", "/v2/models/pair/infer", body);
  service.wait_for_held(1);
  constexpr std::size_t outputs = 3 * 4 + 8;
  EXPECT_EQ(commons.bodies->used(), body.size() + outputs);
  service.release();
  EXPECT_EQ(c.receive().result_int(), 200U);
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

// Of answers that nobody reads, on however many connections, there are as many bytes as may be in flight.
TEST_F(HttpLimitsTest, AnswersThatNobodyReadsAreInFlight) {
  service.all_models.push_back(large_model());
  start();
  const auto wait_for = [&](std::size_t bytes) {
    while (commons.bodies->used() < bytes) std::this_thread::yield();
  };
  auto reads_nothing = client();
  std::string pipelined;
  for (int i = 0; i < 3; ++i) pipelined += TestClient::request("POST", large_infer, large_request);
  reads_nothing.send(pipelined);
  wait_for(large_answer);
  // Whatever else it asked for waits until this is read: an answer at a time. The next one has been through
  // the loop after it.
  EXPECT_EQ(client().ask("GET", "/v2/health/live").result_int(), 200U);
  EXPECT_LT(commons.bodies->used(), 2 * large_answer);

  auto second = client();
  second.send("POST", large_infer, large_request);
  wait_for(2 * large_answer);
  auto third = client();
  const auto refused = third.ask("POST", large_infer, large_request);
  EXPECT_EQ(refused.result_int(), 503U);
  EXPECT_EQ(refused["Retry-After"], "1");
  EXPECT_THAT(json::parse(refused.body())["error"],
              ::testing::AllOf(HasSubstr("no room now for the "), HasSubstr(" bytes that answering takes")));
  EXPECT_EQ(third.ask("POST", "/v2/models/pair/infer", pair_request()).result_int(), 200U);

  for (int i = 0; i < 3; ++i) EXPECT_EQ(reads_nothing.receive().body().size() / large_answer, 1U);
  EXPECT_EQ(second.receive().result_int(), 200U);
  EXPECT_EQ(third.ask("POST", large_infer, large_request).result_int(), 200U);
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

// The one heavy thread is held up by the test: what is packed waits for it, all else goes on.
TEST_F(HttpLimitsTest, UnpackingHoldsUpNobodyElse) {
  start();
  std::promise<void> begun, gate;
  ASSERT_TRUE(commons.heavy.post([&] {
    begun.set_value();
    gate.get_future().wait();
  }));
  begun.get_future().wait();
  const std::string body = pair_request() + std::string(1 << 20, ' ');
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(body))};
  const std::string packed = pack(Coding::gzip, pieces);
  auto waits = client();
  waits.send("POST", "/v2/models/pair/infer", packed, {{"Content-Encoding", "gzip"}});
  while (commons.bodies->used() == 0) std::this_thread::yield();
  auto other = client();
  EXPECT_EQ(other.ask("GET", "/v2/health/live").result_int(), 200U);
  EXPECT_EQ(other.ask("POST", "/v2/models/pair/infer", pair_request()).result_int(), 200U);
  // The queue holds one.
  const auto second = client().ask("POST", "/v2/models/pair/infer", packed, {{"Content-Encoding", "gzip"}});
  EXPECT_EQ(second.result_int(), 503U);
  EXPECT_EQ(second["Retry-After"], "1");
  gate.set_value();
  EXPECT_EQ(waits.receive().result_int(), 200U);
}

TEST_F(HttpLimitsTest, ClientsThatGoWhileTheirBodyWaitsAreNotServed) {
  start();
  std::promise<void> begun, gate;
  ASSERT_TRUE(commons.heavy.post([&] {
    begun.set_value();
    gate.get_future().wait();
  }));
  begun.get_future().wait();
  service.hold(true);  // whether it is dropped before or after it is submitted: it never has an answer
  auto c = client();
  c.send("POST", "/v2/models/pair/infer", pair_request() + std::string(2 << 20, ' '));
  c.close();
  gate.set_value();
  while (server->connections() > 0) std::this_thread::yield();
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

TEST_F(HttpLimitsTest, BombsAreRefused) {
  start({.max_body = 16 << 20});
  const std::string zeros(20 << 20, '\0');
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(zeros))};
  auto c = client();
  const auto refused =
      c.ask("POST", "/v2/models/pair/infer", pack(Coding::gzip, pieces), {{"Content-Encoding", "gzip"}});
  EXPECT_EQ(refused.result_int(), 413U);
  EXPECT_THAT(refused.body(), HasSubstr("more than 16777216 bytes"));
  EXPECT_EQ(c.ask("GET", "/v2/health/live").result_int(), 200U);
  while (commons.bodies->used() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace carillon::frontend
