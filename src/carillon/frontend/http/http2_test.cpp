// HTTP/2 as a client sees it that speaks it well, and as one that does not.

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>
#include <nlohmann/json.hpp>

#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/testing/http_server_fixture.h"

namespace carillon::frontend {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace asio = boost::asio;

constexpr const char* pair_infer = "/v2/models/pair/infer";

using Http2Headers = std::vector<std::pair<std::string, std::string>>;

// What of a request is not as usual.
struct Http2Request {
  Http2Headers headers = {};
  bool says_size = true;
  bool ends = true;  // false: more of the body would come, and never does
};

// A connection of a client, on nghttp2 and a socket that waits.
class Http2Client {
 public:
  struct Answer {
    int status = 0;  // 0: none came
    std::map<std::string, std::string> headers;
    std::string body;
    bool whole = false;  // its last frame came
    bool closed = false;
    std::uint32_t error = 0;  // of the reset, where there was one
  };

  // `window`: how much of an answer may come unasked.
  explicit Http2Client(std::uint16_t port, std::uint32_t window = NGHTTP2_INITIAL_WINDOW_SIZE)
      : socket_(context_) {
    socket_.connect({asio::ip::address_v4::loopback(), port});
    socket_.set_option(asio::ip::tcp::no_delay(true));  // frames are written one by one
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t n,
                      const std::uint8_t* value, std::size_t v, std::uint8_t, void* self) {
          const std::string key(name, name + n);
          const std::string text(value, value + v);
          Answer& answer = static_cast<Http2Client*>(self)->answers_[frame->hd.stream_id];
          if (key == ":status")
            answer.status = std::stoi(text);
          else
            answer.headers[key] = text;
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* data,
                      std::size_t n, void* self) {
          static_cast<Http2Client*>(self)->answers_[id].body.append(data, data + n);
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
          auto& client = *static_cast<Http2Client*>(self);
          if (frame->hd.type == NGHTTP2_GOAWAY) {
            ++client.goaways;
            client.goaway_error = frame->goaway.error_code;
            client.goaway_last = frame->goaway.last_stream_id;
            client.goaway_text.assign(reinterpret_cast<const char*>(frame->goaway.opaque_data),
                                      frame->goaway.opaque_data_len);
          } else if (frame->hd.type == NGHTTP2_PING) {
            ++client.pongs;
          } else if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            client.answers_[frame->hd.stream_id].whole = true;
          }
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session*, std::int32_t id, std::uint32_t error, void* self) {
          Answer& answer = static_cast<Http2Client*>(self)->answers_[id];
          answer.closed = true;
          answer.error = error;
          return 0;
        });
    nghttp2_session_client_new(&frames_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry setting{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window};
    nghttp2_submit_settings(frames_, NGHTTP2_FLAG_NONE, &setting, 1);
  }
  ~Http2Client() { nghttp2_session_del(frames_); }
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  // Sends nothing yet: see flush().
  std::int32_t begin(const std::string& method, const std::string& target, const std::string& body,
                     const Http2Request& request) {
    Http2Headers all{{":method", method}, {":scheme", "http"}, {":authority", "test"}, {":path", target}};
    all.insert(all.end(), request.headers.begin(), request.headers.end());
    if (!body.empty() && request.says_size) all.emplace_back("content-length", std::to_string(body.size()));
    std::vector<nghttp2_nv> fields;
    for (auto& [name, value] : all)
      fields.push_back({reinterpret_cast<std::uint8_t*>(name.data()),
                        reinterpret_cast<std::uint8_t*>(value.data()), name.size(), value.size(),
                        NGHTTP2_NV_FLAG_NONE});
    bodies_.push_back(std::make_unique<Body>(Body{body, request.ends}));
    const nghttp2_data_provider from{
        .source = {.ptr = bodies_.back().get()},
        .read_callback = [](nghttp2_session*, std::int32_t, std::uint8_t* out, std::size_t most,
                            std::uint32_t* flags, nghttp2_data_source* source, void*) -> ssize_t {
          auto& left = *static_cast<Body*>(source->ptr);
          const std::size_t n = std::min(most, left.text.size() - left.sent);
          if (n == 0 && !left.ends) return NGHTTP2_ERR_DEFERRED;
          std::copy_n(left.text.data() + left.sent, n, out);
          left.sent += n;
          if (left.sent == left.text.size() && left.ends) *flags |= NGHTTP2_DATA_FLAG_EOF;
          return static_cast<ssize_t>(n);
        }};
    const bool has_body = !body.empty() || !request.ends;
    return nghttp2_submit_request(frames_, nullptr, fields.data(), fields.size(), has_body ? &from : nullptr,
                                  nullptr);
  }
  std::int32_t send(const std::string& method, const std::string& target, const std::string& body = {},
                    const Http2Request& request = {}) {
    const auto id = begin(method, target, body, request);
    flush();
    return id;
  }
  void reset(std::int32_t id) {
    nghttp2_submit_rst_stream(frames_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    flush();
  }
  void ping() {
    nghttp2_submit_ping(frames_, NGHTTP2_FLAG_NONE, nullptr);
    flush();
  }
  // From now on all of every answer may come.
  void open_windows() {
    constexpr std::uint32_t wide = (std::uint32_t{1} << 31) - 1;
    const nghttp2_settings_entry setting{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, wide};
    nghttp2_submit_settings(frames_, NGHTTP2_FLAG_NONE, &setting, 1);
    nghttp2_session_set_local_window_size(frames_, NGHTTP2_FLAG_NONE, 0, static_cast<std::int32_t>(wide));
    flush();
  }
  void flush() {
    boost::system::error_code error;
    const std::uint8_t* data = nullptr;
    for (ssize_t n = 0; (n = nghttp2_session_mem_send(frames_, &data)) > 0;)
      asio::write(socket_, asio::buffer(data, static_cast<std::size_t>(n)), error);
  }

  // Until `done`, or the connection has ended (false).
  bool until(const std::function<bool()>& done) {
    std::array<std::uint8_t, 16384> bytes;
    while (!done()) {
      boost::system::error_code error;
      const std::size_t n = socket_.read_some(asio::buffer(bytes), error);
      if (error || nghttp2_session_mem_recv(frames_, bytes.data(), n) < 0) return false;
      flush();
    }
    return true;
  }
  const Answer& wait(std::int32_t id) {
    (void)until([&] { return answers_[id].closed; });
    return answers_[id];
  }
  const Answer& ask(const std::string& method, const std::string& target, const std::string& body = {},
                    const Http2Request& request = {}) {
    return wait(send(method, target, body, request));
  }
  // Its header is here.
  int status(std::int32_t id) {
    (void)until([&] { return answers_[id].status != 0 || answers_[id].closed; });
    return answers_[id].status;
  }
  bool ended() {
    return !until([] { return false; });
  }
  void close() { socket_.close(); }

  int goaways = 0;
  std::uint32_t goaway_error = 0;
  std::int32_t goaway_last = 0;
  std::string goaway_text;
  int pongs = 0;

 private:
  struct Body {
    std::string text;
    bool ends;
    std::size_t sent = 0;
  };
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
  nghttp2_session* frames_ = nullptr;
  std::map<std::int32_t, Answer> answers_;
  std::vector<std::unique_ptr<Body>> bodies_;
};

class Http2Test : public HttpServerTest {
 protected:
  ~Http2Test() override {
    service.release();
    if (server) server->stop();
    EXPECT_EQ(commons.bodies->used(), 0U);
  }
  // Also after whatever a test did to others.
  void expect_alive() {
    EXPECT_EQ(Http2Client(server->port()).ask("GET", "/v2/health/live").status, 200);
    EXPECT_EQ(client().ask("GET", "/v2/health/live").result_int(), 200U);
  }
};

// The first GOAWAY in what a server sent.
struct Goaway {
  std::uint32_t error = 0xffffffff;  // there is none
  std::string text;
};
Goaway goaway_in(const std::string& bytes) {
  const auto number = [&](std::size_t at, int size) {
    std::uint32_t n = 0;
    for (int i = 0; i < size; ++i) n = n << 8 | static_cast<unsigned char>(bytes[at + i]);
    return n;
  };
  for (std::size_t at = 0; at + 9 <= bytes.size();) {
    const std::size_t length = number(at, 3);
    if (bytes[at + 3] == NGHTTP2_GOAWAY && at + 9 + length <= bytes.size())
      return {.error = number(at + 13, 4), .text = bytes.substr(at + 17, length - 8)};
    at += 9 + length;
  }
  return {};
}

// By hand, for what no library sends. Lengths up to 255.
std::string frame(char type, char flags, char stream, const std::string& payload) {
  return std::string({0, 0, static_cast<char>(payload.size()), type, flags, 0, 0, 0, stream}) + payload;
}
const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string settings_frame = frame(4, 0, 0, "");

TEST_F(Http2Test, BothVersionsAnswerAlike) {
  start();
  const std::string json_text = pair_request();
  const std::string binary = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"parameters":)"
                             R"({"binary_data_size":12}},{"name":"n","datatype":"INT32","shape":[1,2],)"
                             R"("data":[1,2]}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]})";
  const std::string length = std::to_string(binary.size());
  struct Row {
    std::string method, target, body;
    Http2Headers headers = {};
  };
  const Row rows[] = {
      {"GET", "/v2", ""},
      {"HEAD", "/v2", ""},
      {"GET", "/v2/models/pair", ""},
      {"GET", "/v2/health/ready", ""},
      {"GET", "/nowhere", ""},
      {"POST", "/v2", ""},
      {"DELETE", "/v2", ""},
      {"GET", "/v2/models/sick/ready", ""},
      {"POST", pair_infer, json_text},
      {"POST", pair_infer, "{"},
      {"POST", pair_infer, ""},
      {"POST", "/v2/models/none/infer", json_text},
      {"POST", pair_infer, binary + std::string(12, '\1'), {{"inference-header-content-length", length}}},
      {"POST", pair_infer, binary + "short", {{"inference-header-content-length", length}}},
      {"POST", pair_infer, json_text, {{"content-encoding", "br"}}},
      {"POST", pair_infer, json_text, {{"content-encoding", "gzip"}}},
      {"GET", "/v2", "", {{"traceparent", "nonsense"}}},
  };
  Http2Client two(server->port());
  for (const Row& row : rows) {
    SCOPED_TRACE(row.method + " " + row.target + " " + row.body.substr(0, 40));
    auto one = client();
    one.send(row.method, row.target, row.body, row.headers);
    const auto& got = two.ask(row.method, row.target, row.body, {.headers = row.headers});
    EXPECT_TRUE(got.whole);
    if (row.method == "HEAD") {
      EXPECT_EQ(got.status, 200);
      EXPECT_EQ(got.body, "");
      EXPECT_NE(got.headers.at("content-length"), "0");
      continue;
    }
    const auto want = one.receive();
    EXPECT_EQ(got.status, static_cast<int>(want.result_int()));
    EXPECT_EQ(got.body, want.body());
    std::map<std::string, std::string> headers;
    for (const auto& field : want) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      headers[name] = std::string(field.value());
    }
    EXPECT_EQ(got.headers, headers);
  }
}

TEST_F(Http2Test, PackedBothWays) {
  start();
  const std::string text = pair_request("packed", 4);
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(text))};
  Http2Client c(server->port());
  const auto plain = c.ask("POST", pair_infer, text);
  const auto packed = c.ask("POST", pair_infer, pack(Coding::gzip, pieces),
                            {.headers = {{"content-encoding", "gzip"}, {"accept-encoding", "gzip"}}});
  EXPECT_EQ(plain.status, 200);
  EXPECT_EQ(packed.status, 200);
  EXPECT_EQ(packed.body, plain.body);  // too small to be worth packing
}

TEST_F(Http2Test, ManyStreamsAtATime) {
  start();
  service.hold(true);
  Http2Client c(server->port());
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 100; ++i)
    ids.push_back(c.begin("POST", pair_infer, pair_request(std::to_string(i)), {}));
  c.flush();
  service.wait_for_held(100);
  EXPECT_EQ(server->connections(), 1U);
  service.release(true);
  for (int i = 0; i < 100; ++i) {
    const auto& answer = c.wait(ids[i]);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(json::parse(answer.body)["id"], std::to_string(i));
  }
}

TEST_F(Http2Test, MoreStreamsThanAllowedAreRefused) {
  start({.max_streams = 2});
  service.hold(true);
  Http2Client c(server->port());
  // All at once, before the client has seen what is allowed.
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(c.begin("POST", pair_infer, pair_request(), {}));
  c.flush();
  EXPECT_EQ(c.wait(ids[2]).error, NGHTTP2_REFUSED_STREAM);
  service.wait_for_held(2);
  service.release();
  EXPECT_EQ(c.wait(ids[0]).status, 200);
  EXPECT_EQ(c.wait(ids[1]).status, 200);
}

TEST_F(Http2Test, AStreamThatIsResetIsCancelled) {
  start();
  service.hold(true);
  Http2Client c(server->port());
  const auto gone = c.send("POST", pair_infer, pair_request("gone"));
  const auto stays = c.send("POST", pair_infer, pair_request("stays"));
  service.wait_for_held(2);
  c.reset(gone);
  service.wait_for_cancelled(1);
  service.release();
  EXPECT_EQ(json::parse(c.wait(stays).body)["id"], "stays");
  EXPECT_EQ(c.wait(gone).status, 0);
}

TEST_F(Http2Test, AConnectionThatGoesCancelsItsStreams) {
  start();
  service.hold(true);
  Http2Client c(server->port());
  for (int i = 0; i < 3; ++i) c.send("POST", pair_infer, pair_request());
  c.send("POST", pair_infer, "half", {.says_size = false, .ends = false});
  service.wait_for_held(3);
  c.close();
  service.wait_for_cancelled(3);
  expect_alive();
}

TEST_F(Http2Test, WhoResetsTooOftenIsShownOut) {
  start({.max_resets = 10});
  service.hold(true);
  Http2Client c(server->port());
  for (int i = 0; i < 12; ++i) c.reset(c.send("POST", pair_infer, pair_request()));
  EXPECT_TRUE(c.ended());
  EXPECT_EQ(c.goaway_error, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_THAT(c.goaway_text, HasSubstr("more than 10 streams ended without an answer"));
  service.wait_for_cancelled(11);
  expect_alive();
}

// Answers make up for resets.
TEST_F(Http2Test, WhoResetsNowAndThenStays) {
  start({.max_resets = 2});
  Http2Client c(server->port());
  for (int i = 0; i < 20; ++i) {
    c.reset(c.send("POST", pair_infer, "half", {.says_size = false, .ends = false}));
    EXPECT_EQ(c.ask("GET", "/v2").status, 200);
  }
  EXPECT_EQ(c.goaways, 0);
}

TEST_F(Http2Test, FramesThatAskForNothingAreCounted) {
  start({.max_idle_frames = 20});
  Http2Client c(server->port());
  // The client's settings, and its word that it has the server's, are frames too.
  for (int i = 0; i < 10; ++i) c.ping();
  EXPECT_TRUE(c.until([&] { return c.pongs == 10; }));
  EXPECT_EQ(c.ask("GET", "/v2").status, 200);
  for (int i = 0; i < 20; ++i) c.ping();
  EXPECT_TRUE(c.until([&] { return c.pongs == 30; }));
  EXPECT_EQ(c.goaways, 0);
  c.ping();
  EXPECT_TRUE(c.ended());
  EXPECT_EQ(c.goaway_error, NGHTTP2_ENHANCE_YOUR_CALM);
  EXPECT_EQ(c.goaway_last, 1);
  EXPECT_THAT(c.goaway_text, HasSubstr("more than 20 frames that ask for nothing"));

  // Stream 1 has an open body.
  const std::string get("\x83\x86\x04\x03/v2\x41\x01t",
                        10);  // POST http: / with ":path" written out as "/v2"
  const struct {
    const char* what;
    std::string frame;
  } rows[] = {
      {"settings", frame(4, 0, 0, "")},
      {"priorities", frame(2, 0, 1, std::string(5, '\0'))},
      {"answers to pings", frame(6, 1, 0, std::string(8, '\0'))},
      {"empty data", frame(0, 0, 1, "")},
      {"windows of the connection", frame(8, 0, 0, std::string("\0\0\0\x01", 4))},
      {"windows of a stream", frame(8, 0, 1, std::string("\0\0\0\x01", 4))},
      {"words that it goes", frame(7, 0, 0, std::string(8, '\0'))},
      {"a type that nobody knows", frame(0x42, 0, 0, "who knows")},
      {"the last type", frame(static_cast<char>(0xff), 0, 1, "")},
      {"an update of a priority", frame(0x10, 0, 0, std::string("\0\0\0\x01u=1", 7))},
  };
  for (const auto& row : rows) {
    for (const int more : {0, 1}) {
      auto raw = client();
      std::string many = preface + settings_frame + frame(1, 4, 1, get);
      for (int i = 0; i < 19 + more; ++i) many += row.frame;
      // Where that was not too much, a frame that breaks the rules ends it.
      many += frame(0, 0, 0, "data of no stream");
      raw.send(many);
      const auto goaway = goaway_in(raw.receive_all());
      EXPECT_EQ(goaway.error, more == 1 ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_PROTOCOL_ERROR) << row.what;
      EXPECT_THAT(goaway.text, HasSubstr(more == 1 ? "more than 20 frames" : "DATA")) << row.what;
    }
  }
  expect_alive();
}

// Whoever reads a long answer says so often: once for each 2 KiB, and nobody minds.
TEST_F(Http2Test, WindowsThatAnswersUseUpAreNotCounted) {
  service.all_models.push_back(large_model());
  start({.max_idle_frames = 20});
  Http2Client c(server->port(), 4096);  // nghttp2 says so for each half of this
  const auto& answer = c.ask("POST", large_infer, large_request);
  EXPECT_EQ(answer.status, 200);
  EXPECT_GE(answer.body.size(), large_answer);
  EXPECT_EQ(c.goaways, 0);
}

TEST_F(Http2Test, LargeBodiesPassTheWindows) {
  start();
  const std::string body = std::string(std::size_t{8} << 20, ' ') + pair_request();
  Http2Client c(server->port());
  EXPECT_EQ(c.ask("POST", pair_infer, body).status, 200);
  EXPECT_EQ(c.ask("POST", pair_infer, body, {.says_size = false}).status, 200);
  const std::string middling = std::string(70000, ' ') + pair_request();
  EXPECT_EQ(c.ask("POST", pair_infer, middling).status, 200);
  EXPECT_EQ(c.ask("POST", pair_infer, middling, {.says_size = false}).status, 200);
}

// 65,535 bytes may come unasked; nothing more does where there is no room for it.
TEST_F(Http2Test, BodiesWithoutRoomAreHeldBackAndRefused) {
  start({.max_body = std::size_t{1} << 20});
  Http2Client c(server->port());
  const std::string large(std::size_t{2} << 20, ' ');
  const auto declared = c.ask("POST", pair_infer, large);
  EXPECT_EQ(declared.status, 413);
  EXPECT_TRUE(declared.whole);
  EXPECT_EQ(declared.error, NGHTTP2_NO_ERROR);
  EXPECT_EQ(c.ask("POST", pair_infer, large, {.says_size = false}).status, 413);

  Reservation others(commons.bodies);
  ASSERT_TRUE(others.grow(commons.bodies->limit() * 7 / 8 - 200000));
  const auto crowded = c.ask("POST", pair_infer, std::string(500000, ' '));
  EXPECT_EQ(crowded.status, 503);
  EXPECT_EQ(crowded.headers.at("retry-after"), "1");
  EXPECT_EQ(c.ask("POST", pair_infer, std::string(500000, ' '), {.says_size = false}).status, 503);
  EXPECT_EQ(c.ask("GET", "/v2").status, 200);
  others.shrink_to(0);
  EXPECT_EQ(c.ask("POST", pair_infer, std::string(500000, ' ') + pair_request()).status, 200);
}

// A target that is no small one is kept until its request is answered, however long the body takes.
TEST_F(Http2Test, LargeHeadersAreInFlight) {
  start();
  Http2Client c(server->port());
  const std::string target = "/v2/models/pair/infer?" + std::string(20000, 'x');
  const auto open = c.send("POST", target, "{", {.ends = false});
  while (commons.bodies->used() < target.size()) std::this_thread::yield();
  c.reset(open);
  while (commons.bodies->used() > 0) std::this_thread::yield();
  SideRoom all(commons.side);
  ASSERT_TRUE(all.hold(commons.side.limit()));
  const auto& refused = c.ask("POST", target, pair_request());
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("there is no room now for a header of more than 8192 bytes"));
  EXPECT_EQ(c.ask("POST", pair_infer, pair_request()).status, 200);
}

TEST_F(Http2Test, HeadersThatAreTooLarge) {
  start({.max_header = 4096});
  Http2Client c(server->port());
  EXPECT_EQ(c.ask("GET", "/v2", "", {.headers = {{"x", std::string(8192, 'x')}}}).status, 431);
  Http2Headers many;
  for (int i = 0; i < 200; ++i) many.emplace_back("a", "b");
  EXPECT_EQ(c.ask("GET", "/v2", "", {.headers = many}).status, 431);
  EXPECT_EQ(c.ask("GET", "/v2").status, 200);
}

TEST_F(Http2Test, SlowClientsAreDropped) {
  start({.idle_timeout = 50ms, .header_timeout = 50ms, .body_timeout = 50ms});
  Http2Client silent(server->port());
  silent.flush();
  EXPECT_TRUE(silent.ended());
  EXPECT_EQ(silent.goaways, 1);
  EXPECT_EQ(silent.goaway_error, NGHTTP2_NO_ERROR);

  for (const bool says_size : {true, false}) {
    Http2Client slow(server->port());
    Http2Request request{.says_size = says_size, .ends = false};
    if (says_size) request.headers.emplace_back("content-length", "100");
    request.says_size = false;
    const auto answer = slow.ask("POST", pair_infer, "half", request);
    EXPECT_EQ(answer.status, 408);
    EXPECT_THAT(answer.body, HasSubstr("4 bytes"));
  }
  auto half_opening = client();
  half_opening.send("PRI * HT");
  EXPECT_EQ(half_opening.receive().result_int(), 408U);
  auto no_settings = client();
  no_settings.send(preface);
  (void)no_settings.receive_all();
  auto half_header = client();
  half_header.send(preface + settings_frame + frame(1, 1, 1, "\x82"));  // without END_HEADERS
  EXPECT_THAT(half_header.receive_all(), HasSubstr(std::string("\0\0\0\x0b", 4)));
  expect_alive();
}

// An answer that a client has no window for, and never has: it may not stay for ever.
TEST_F(Http2Test, AnswersThatNobodyTakesAreDropped) {
  start({.idle_timeout = 400ms, .header_timeout = 400ms, .body_timeout = 50ms});
  auto raw = client();
  const std::string no_window("\0\x04\0\0\0\0", 6);
  // GET http: / with ":path" written out as "/v2".
  raw.send(preface + frame(4, 0, 0, no_window) +
           frame(1, 5, 1, std::string("\x82\x86\x04\x03/v2\x41\x01t", 10)));
  // Its reset, with CANCEL.
  EXPECT_THAT(raw.receive_all(), HasSubstr(std::string("\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08", 13)));
  expect_alive();
}

TEST_F(Http2Test, FramesThatBreakTheRulesEndTheirConnection) {
  start();
  const std::string opened = preface + settings_frame;
  const std::string bad[] = {
      preface + frame(0, 0, 1, "data before settings"),
      preface + std::string(1000, '\xff'),
      opened + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9),  // a frame of 16 MiB
      opened + frame(0, 0, 1, "of a stream that is not open"),
      opened + frame(0, 0, 0, "of no stream"),
      opened + frame(1, 5, 2, "\x82\x86\x84"),                    // a client's streams are odd
      opened + frame(1, 5, 1, "\xff\xff\xff\xff\xff"),            // not HPACK
      opened + frame(9, 4, 1, "\x82"),                            // CONTINUATION of nothing
      opened + frame(8, 0, 0, std::string(4, '\0')),              // a window that grows by nothing
      opened + frame(6, 0, 0, "short"),                           // a ping of 5 bytes
      opened + frame(4, 0, 0, "\x01"),                            // half a setting
      opened + frame(5, 4, 1, std::string("\0\0\0\x02\x82", 5)),  // a client's push
      opened + frame(3, 0, 1, std::string(4, '\0')),              // a reset of a stream that never was
  };
  for (const std::string& bytes : bad) {
    auto raw = client();
    raw.send(bytes);
    const std::string all = raw.receive_all();
    const auto goaway = std::string("\x07\0\0\0\0\0", 6);
    EXPECT_THAT(all, HasSubstr(goaway)) << testing::PrintToString(bytes.substr(24));
  }
  auto not_quite = client();
  not_quite.send("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n");
  EXPECT_EQ(not_quite.receive().result_int(), 400U);
  expect_alive();
}

// Where nghttp2 gives up at once, within the first bytes, nothing but the loop's place has held the session.
TEST_F(Http2Test, AHeaderInTooManyPiecesEndsItsConnection) {
  start();
  for (const int pieces : {8, 9}) {
    std::string bytes = preface + settings_frame + frame(1, 0, 1, "\x82");
    for (int i = 1; i <= pieces; ++i) bytes += frame(9, i == pieces ? 4 : 0, 1, "");
    bytes += frame(0, 0, 0, "data of no stream");
    auto raw = client();
    raw.send(bytes);
    const auto goaway = goaway_in(raw.receive_all());
    if (pieces == 8) {
      EXPECT_EQ(goaway.error, NGHTTP2_PROTOCOL_ERROR);
      continue;
    }
    EXPECT_EQ(goaway.error, NGHTTP2_ENHANCE_YOUR_CALM);
    EXPECT_EQ(goaway.text, "a header came in more than 8 CONTINUATION frames");
  }
  expect_alive();
}

// What a client does not read counts, in bytes: first its own streams are refused, and where all that may be
// in flight is taken, its answers are.
TEST_F(Http2Test, AnswersThatNobodyReadsAreBoundedInBytes) {
  service.all_models.push_back(large_model());
  start({.max_unread = large_answer});
  Http2Client c(server->port(), 0);
  const auto ask = [&] { return c.send("POST", large_infer, large_request); };
  const auto first = ask();
  EXPECT_EQ(c.status(first), 200);
  EXPECT_GE(commons.bodies->used(), large_answer);
  // Its JSON is beyond the limit already.
  const auto refused = ask();
  ASSERT_EQ(c.status(refused), 0);
  EXPECT_EQ(c.wait(refused).error, NGHTTP2_REFUSED_STREAM);
  c.open_windows();
  EXPECT_GE(c.wait(first).body.size(), large_answer);
  EXPECT_EQ(c.wait(ask()).status, 200);
  EXPECT_EQ(c.goaways, 0);
  expect_alive();
}

// A sixteenth of 64 MiB is for answers of other methods than inference, an eighth of that a connection's.
TEST_F(Http2Test, AnswersOfOtherMethodsLeaveTheRestToInferences) {
  auto wordy = model_of(graph::DataType::u8, {1}, "wordy");
  wordy.config.inputs[0].name.assign(std::size_t{40} << 10, 'x');
  service.all_models.push_back(wordy);
  start();
  const char* const metadata = "/v2/models/wordy";
  Http2Client c(server->port(), 0);
  std::vector<std::int32_t> ids;
  while (ids.size() < 20 && c.status(ids.emplace_back(c.send("GET", metadata))) == 200) continue;
  EXPECT_GE(ids.size(), 10U);
  EXPECT_EQ(c.status(ids.back()), 503);
  EXPECT_LT(commons.bodies->used(), std::size_t{1} << 20);
  // Health goes out, its inferences go on, and other connections do.
  EXPECT_EQ(c.status(c.send("GET", "/v2/health/live")), 200);
  EXPECT_EQ(c.status(c.send("POST", pair_infer, pair_request())), 200);
  const std::size_t held = commons.bodies->used();
  EXPECT_EQ(client().ask("GET", metadata).result_int(), 200U);
  Http2Client other(server->port());
  EXPECT_EQ(other.ask("GET", metadata).status, 200);
  while (commons.bodies->used() > held) std::this_thread::yield();
  {
    SideRoom rest(commons.side);
    for (std::size_t size = commons.side.limit(); !rest.hold(size); size -= 1024) continue;
    EXPECT_EQ(client().ask("GET", metadata).result_int(), 503U);
    EXPECT_EQ(client().ask("GET", "/v2/health/live").result_int(), 200U);
    EXPECT_EQ(other.ask("POST", pair_infer, pair_request()).status, 200);
  }
  c.open_windows();
  for (const auto id : ids) (void)c.wait(id);
  EXPECT_EQ(c.wait(c.send("GET", metadata)).status, 200);
}

TEST_F(Http2Test, AnswersWithoutRoomAreRefused) {
  service.all_models.push_back(large_model());
  start();
  Http2Client c(server->port(), 0);
  const auto ask = [&] { return c.send("POST", large_infer, large_request); };
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 2; ++i) {
    ids.push_back(ask());
    EXPECT_EQ(c.status(ids.back()), 200);
  }
  const auto crowded = ask();
  EXPECT_EQ(c.status(crowded), 503);
  c.open_windows();
  const auto& answer = c.wait(crowded);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_THAT(answer.body,
              ::testing::AllOf(HasSubstr("no room now for the "), HasSubstr(" bytes that answering takes")));
  for (const auto id : ids) EXPECT_GE(c.wait(id).body.size(), large_answer);
  EXPECT_EQ(c.wait(ask()).status, 200);
}

// One who is refused for what it does not read, and goes on all the same, is shown out.
TEST_F(Http2Test, WhoIsRefusedTooOftenIsShownOut) {
  start({.idle_timeout = 5s, .body_timeout = 5s, .max_idle_frames = 50, .max_unread = 0});
  Http2Client c(server->port(), 0);
  EXPECT_EQ(c.status(c.send("GET", "/v2")), 200);
  for (int i = 0; i < 60; ++i) c.send("GET", "/v2");
  EXPECT_TRUE(c.ended());
  EXPECT_EQ(c.goaway_error, NGHTTP2_ENHANCE_YOUR_CALM);
  expect_alive();
}

TEST_F(Http2Test, ABodyThatIsNotAsLongAsItSaysEndsItsStream) {
  start();
  Http2Client c(server->port());
  for (const char* length : {"3", "5"}) {
    const auto answer =
        c.ask("POST", pair_infer, "four", {.headers = {{"content-length", length}}, .says_size = false});
    EXPECT_EQ(answer.error, NGHTTP2_PROTOCOL_ERROR);
    EXPECT_EQ(answer.status, 0);
  }
  EXPECT_EQ(c.ask("GET", "/v2").status, 200);
}

TEST_F(Http2Test, TheOpeningMayComeInPieces) {
  start();
  auto raw = client();
  raw.send("PRI");
  raw.send(" * HTTP/2.0\r\n");
  raw.send("\r\nSM\r\n\r\n" + settings_frame + frame(6, 0, 0, "pingpong"));
  raw.send(frame(7, 0, 0, std::string(8, '\0')));
  EXPECT_THAT(raw.receive_all(), HasSubstr("pingpong"));
}

TEST_F(Http2Test, AnUpgradeIsAnsweredInHttp1) {
  start();
  auto c = client();
  const auto response = c.ask("GET", "/v2", "",
                              {{"Connection", "Upgrade, HTTP2-Settings"},
                               {"Upgrade", "h2c"},
                               {"HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"}});
  EXPECT_EQ(response.result_int(), 200U);
  EXPECT_EQ(response.version(), 11U);
  EXPECT_EQ(c.ask("GET", "/v2").result_int(), 200U);
}

TEST_F(Http2Test, GrpcIsToldThatItHasAPortOfItsOwn) {
  start();
  Http2Client c(server->port());
  const auto answer = c.ask("POST", "/inference.GRPCInferenceService/ServerLive", std::string(5, '\0'),
                            {.headers = {{"content-type", "application/grpc"}, {"te", "trailers"}}});
  EXPECT_EQ(answer.status, 415);
  EXPECT_EQ(answer.headers.at("grpc-status"), "12");
  EXPECT_THAT(answer.headers.at("grpc-message"), HasSubstr("--grpc"));
  EXPECT_EQ(answer.body, "");
}

TEST_F(Http2Test, WhenTheServerDrainsOpenStreamsFinish) {
  start({.idle_timeout = 40ms * 100, .header_timeout = 400ms});
  service.hold(true);
  Http2Client c(server->port());
  const auto open = c.send("POST", pair_infer, pair_request("open"));
  service.wait_for_held(1);
  commons.draining = true;
  // The notice, which takes back no stream, and then the end of new ones.
  EXPECT_TRUE(c.until([&] { return c.goaways == 1; }));
  EXPECT_EQ(c.goaway_last, 0x7fffffff);
  EXPECT_TRUE(c.until([&] { return c.goaways == 2; }));
  EXPECT_EQ(c.goaway_last, open);
  service.release();
  const auto answer = c.wait(open);
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(c.ended());
  EXPECT_EQ(c.goaway_error, NGHTTP2_NO_ERROR);
  // Whoever comes meanwhile is told as in HTTP/1.1.
  Http2Client late(server->port());
  EXPECT_EQ(late.ask("POST", pair_infer, pair_request()).status, 503);
}

TEST_F(Http2Test, StoppingAnswersWhatIsOpen) {
  start({.stop_grace = 1ms});
  service.hold(true);
  Http2Client c(server->port());
  Http2Client idle(server->port());
  EXPECT_EQ(idle.ask("GET", "/v2").status, 200);
  const auto open = c.send("POST", pair_infer, pair_request());
  const auto half = c.send("POST", pair_infer, "half", {.says_size = false, .ends = false});
  service.wait_for_held(1);
  c.ping();
  EXPECT_TRUE(c.until([&] { return c.pongs == 1; }));  // both are known
  std::thread stopping([this] { server->stop(); });
  EXPECT_EQ(c.wait(open).status, 503);
  EXPECT_EQ(c.wait(half).error, NGHTTP2_REFUSED_STREAM);
  EXPECT_TRUE(c.ended());
  EXPECT_TRUE(idle.ended());
  stopping.join();
  EXPECT_EQ(service.cancelled(), 1);
}

TEST_F(Http2Test, ConnectionsMakeRoomByWhatTheyDo) {
  start({.max_connections = 2});
  service.hold(true);
  Http2Client busy(server->port());
  const auto open = busy.send("POST", pair_infer, pair_request());
  service.wait_for_held(1);
  Http2Client idle(server->port());
  EXPECT_EQ(idle.ask("GET", "/v2").status, 200);
  Http2Client another(server->port());
  EXPECT_EQ(another.ask("GET", "/v2").status, 200);
  EXPECT_TRUE(idle.ended());
  service.release();
  EXPECT_EQ(busy.wait(open).status, 200);
}

}  // namespace
}  // namespace carillon::frontend
