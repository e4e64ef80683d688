#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "carillon/frontend/http_loop.h"

namespace carillon::frontend {

// One connection: reads a request, hands it over, writes its answer, and again. Everything happens on the
// loop's thread.
//
// While a request is open a read stays posted: it notices a client that goes, and keeps what a pipelining
// client sends ahead. That same read serves as the wait for the next request.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  HttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpLoop> loop);

  void start();
  void begin_stop();
  void refuse_open();
  void close();
  void sweep(Time now) {
    if (now >= deadline_) close();
  }

 private:
  using Error = boost::system::error_code;
  enum class State { idle, reading, open, writing, lingering, closed };

  void read_header();
  void on_header(Error error);
  void send_continue();
  void read_body();
  void read_sized_body(std::size_t size);
  void read_chunked_body();
  void on_body();
  void dispatch();
  void watch();
  void on_watched(Error error, std::size_t bytes);
  void on_reply(std::uint64_t exchange, ReplyMaker make);
  void reply_and_close(int status, std::string_view message);
  void write(HttpReply reply);
  void on_written(Error error);
  void linger();
  void drain();
  void set_deadline(Duration from_now);

  const std::shared_ptr<HttpLoop> loop_;  // first: the socket needs its context to the end
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> chunked_;
  State state_ = State::idle;
  Time deadline_ = Time::max();
  bool watching_ = false;     // a read is posted by watch()
  bool gone_ = false;         // the client has closed its side
  bool close_after_ = false;  // no further request on this connection
  unsigned version_ = 11;
  HttpRequest request_;
  std::string content_encoding_;
  std::string accept_encoding_;
  std::uint64_t exchange_ = 0;  // a reply to an earlier request than this one is too late
  std::move_only_function<void()> cancel_;
  HttpReply reply_;
  std::string head_;
  std::size_t lingered_ = 0;
};

}  // namespace carillon::frontend
