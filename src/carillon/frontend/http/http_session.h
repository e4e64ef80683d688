#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "carillon/frontend/http/http_exchange.h"
#include "carillon/frontend/http/http_stream.h"
#include "carillon/frontend/http/padded_body.h"

namespace carillon::frontend {

// One connection of HTTP/1.1: reads a request, hands it over, writes its answer, and again. Everything
// happens on the loop's thread, but for what is heavy.
//
// While a request is open a read stays posted: it notices a client that goes, and keeps what a pipelining
// client sends ahead. Where that is as much as may be kept, the sweep looks whether the client has gone. That
// same read serves as the wait for the next request. Over TLS it is all the same, after a handshake that has
// as long as a header.
//
// A connection that turns out to speak HTTP/2 (by ALPN over TLS, by its first bytes otherwise) is handed to
// an Http2Session, in this one's place.
class HttpSession final : public HttpConnection,
                          public HttpExchange,
                          public std::enable_shared_from_this<HttpSession> {
 public:
  // An HttpLoop::Serve.
  static std::shared_ptr<HttpConnection> on(Descriptor connection, std::shared_ptr<HttpLoop> loop);
  HttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpLoop> loop, std::string peer);

  void start() override;
  void begin_stop() override;
  void refuse_open() override;
  void close() override;
  void sweep(Time now, bool no_room) override;

 private:
  using Error = boost::system::error_code;
  enum class State { handshake, idle, header, body, open, writing, lingering, closed };

  std::shared_ptr<HttpExchange> self() override { return shared_from_this(); }
  void on_waiting() override;
  void send(std::optional<Coding> packed) override;
  void shake_hands();
  void refuse_plain();
  void become_http2();
  void next_request();
  void begin_request();
  void await_opening();
  void read_header();
  void skip_empty_lines();
  void parse_header();
  bool hold_header(std::size_t bytes);
  void let_header_go();
  void on_header(Error error);
  void send_continue();
  void read_body();
  void read_sized_body();
  void read_chunked_body();
  void on_chunk(Error error);
  void on_body();
  void watch();
  void on_watched(Error error, std::size_t bytes);
  bool client_closed() const;
  void reply_and_close(HttpReply reply);
  void cut_short(HttpReply reply);
  void on_written(Error error);
  void linger();
  void shut_down();
  void drain();
  void set_deadline(Duration from_now);
  void begin_progress();

  std::unique_ptr<HttpStream> stream_;  // null once it is another's
  const std::string peer_;              // of the access log
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;
  std::optional<boost::beast::http::request_parser<PaddedBody>> chunked_;
  State state_ = State::idle;
  Time deadline_ = Time::max();
  SideRoom header_room_;         // for a header that is more than a small one, while it is kept
  std::size_t header_size_ = 0;  // as it came
  int empty_lines_ = 0;          // before the request
  bool watching_ = false;        // a read is posted by watch()
  bool gone_ = false;            // the client has closed its side
  bool close_after_ = false;     // no further request on this connection
  bool answered_ = false;        // at least one
  unsigned version_ = 11;
  std::size_t received_ = 0;            // bytes of the body
  std::size_t received_at_window_ = 0;  // of them, when the time that deadline_ ends began
  Time body_began_;
  std::optional<HttpReply> cut_short_;  // instead of what is being read
  std::string head_;
  std::size_t lingered_ = 0;
};

}  // namespace carillon::frontend
