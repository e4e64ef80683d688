#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "carillon/frontend/access_record.h"
#include "carillon/frontend/compression.h"
#include "carillon/frontend/http_loop.h"
#include "carillon/frontend/http_stream.h"
#include "carillon/frontend/padded_body.h"

namespace carillon::frontend {

// One connection: reads a request, hands it over, writes its answer, and again. Everything happens on the
// loop's thread, but for what is heavy.
//
// While a request is open a read stays posted: it notices a client that goes, and keeps what a pipelining
// client sends ahead. That same read serves as the wait for the next request. Over TLS it is all the same,
// after a handshake that has as long as a header.
class HttpSession final : public HttpConnection, public std::enable_shared_from_this<HttpSession> {
 public:
  // An HttpLoop::Serve.
  static std::shared_ptr<HttpConnection> on(Descriptor connection, std::shared_ptr<HttpLoop> loop);
  HttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpLoop> loop);

  void start() override;
  void begin_stop() override;
  void refuse_open() override;
  void close() override;
  void sweep(Time now, bool no_room) override;

 private:
  using Error = boost::system::error_code;
  using Outcome = std::variant<HttpReply, Deferred>;
  enum class State { handshake, idle, header, body, open, packing, writing, lingering, closed };

  void shake_hands();
  void refuse_plain();
  void next_request();
  void read_header();
  void on_header(Error error);
  HttpReply no_room_reply(const std::string& what, std::size_t bytes) const;
  void send_continue();
  void read_body();
  void read_sized_body();
  void read_chunked_body();
  void on_chunk(Error error);
  void on_body();
  void unpack_body();
  void dispatch();
  void dispatch_heavy(bool packed);
  Deliver deliver_to(std::uint64_t exchange);
  Outcome handle(HttpRequest request, Deliver deliver);
  void on_handled(std::uint64_t exchange, Outcome outcome);
  void watch();
  void on_watched(Error error, std::size_t bytes);
  void on_reply(std::uint64_t exchange, ReplyMaker make);
  void reply_and_close(HttpReply reply);
  void cut_short(HttpReply reply);
  void write(HttpReply reply);
  bool pack_elsewhere(Coding coding);
  void send(std::optional<Coding> packed);
  void on_written(Error error);
  void linger();
  void shut_down();
  void drain();
  void set_deadline(Duration from_now);
  void begin_progress();
  void count_open(bool open);
  void begin_record();
  void join_trace_of(const boost::beast::http::fields& header);
  void end_record(int status);

  const std::shared_ptr<HttpLoop> loop_;  // first: the socket needs its context to the end
  HttpStream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;
  std::optional<boost::beast::http::request_parser<PaddedBody>> chunked_;
  State state_ = State::idle;
  Time deadline_ = Time::max();
  bool watching_ = false;     // a read is posted by watch()
  bool gone_ = false;         // the client has closed its side
  bool close_after_ = false;  // no further request on this connection
  bool answered_ = false;     // at least one
  bool counted_ = false;      // in HttpShared::open
  bool head_only_ = false;    // the method is HEAD
  unsigned version_ = 11;
  HttpRequest request_;
  std::string content_encoding_;
  std::string accept_encoding_;
  std::size_t received_ = 0;            // bytes of the body
  std::size_t received_at_window_ = 0;  // of them, when the time that deadline_ ends began
  Time body_began_;
  std::optional<HttpReply> cut_short_;  // instead of what is being read
  std::uint64_t exchange_ = 0;          // a reply to an earlier request than this one is too late
  std::move_only_function<void()> cancel_;
  HttpReply reply_;
  std::string head_;
  std::string tracestate_;                // the client's, passed back
  TraceContext trace_;                    // of the request
  std::unique_ptr<AccessRecord> record_;  // null: there is no access log
  bool recording_ = false;                // it is of a request that has not ended
  std::size_t lingered_ = 0;
};

}  // namespace carillon::frontend
