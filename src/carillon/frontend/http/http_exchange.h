#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/http/http_handler.h"
#include "carillon/frontend/http/http_loop.h"
#include "carillon/frontend/net/transfer_time.h"
#include "carillon/frontend/telemetry/access_record.h"

namespace carillon::frontend {

// What of a request's header counts, in whichever version of HTTP it came; as long as the call.
struct HttpFields {
  std::string_view method;  // as sent
  std::string_view target;
  std::string_view content_encoding;
  std::string_view accept_encoding;
  std::string_view accept;
  std::string_view fetch_site;
  std::optional<std::string_view> inference_header_length;
  std::string_view repeated = {};  // a field that says one thing and came twice; empty: there is none
  Credentials credentials;
  std::string_view traceparent;  // empty: none, or several
  std::string tracestate;        // empty: none, or one that may not be passed on
};

// A request from its header to the answer that is to be sent, and the next one after it. Whatever carries it
// (a connection of HTTP/1.1, a stream of HTTP/2) reads its header and body and writes its answer; all between
// is here. Everything happens on the loop's thread, but for what is heavy.
class HttpExchange {
 public:
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

 protected:
  // `peer`: of the access log.
  HttpExchange(std::shared_ptr<HttpLoop> loop, std::string_view peer);
  virtual ~HttpExchange() = default;

  // What the carrier does.
  virtual std::shared_ptr<HttpExchange> self() = 0;
  virtual void on_waiting() = 0;  // for the answer, however long it takes
  // Of what is no inference; null: there is one answer at a time.
  virtual std::shared_ptr<ConnectionShare> side_share() const { return nullptr; }
  // `reply_` is to be sent, whose body is packed in this way already.
  virtual void send(std::optional<Coding> packed) = 0;

  // What the carrier calls, in this order; where one of them has a reply, that is the answer. A header is
  // there: the request counts as open.
  void begin();
  std::optional<HttpReply> take_header(HttpFields fields);
  // What is kept of a header until its request is answered.
  std::size_t kept_of_header() const { return request_.target.size() + request_.accept.size(); }
  // Takes room for a body of `size` bytes, before any of it is read; for large JSON of an inference also a
  // place in the room where it is read.
  std::optional<HttpReply> reserve(std::uint64_t size);
  // Of `what`, with which this request's body has `bytes` bytes.
  HttpReply no_room_reply(const std::string& what, std::size_t bytes) const;
  // `request_.body` is whole: the request is handled, and answered by send().
  void body_done();
  // Packs where that is asked for, and sends. Whatever else would answer this request comes too late. From
  // here until end() the answer's bytes are in flight; one that may be refused is where there is no room for
  // them.
  void answer(HttpReply reply);
  // Adds what every reply has, and returns how long its body is.
  std::size_t complete_reply();
  // Calls off what is being done about the request; it may still be answered.
  void cancel();
  // The request has been answered (HTTP's status), or its client has gone (499).
  void end(int status);
  // It has had no request: nothing is counted or told.
  void forget();
  // Nothing comes of the request any more.
  void abandon();
  bool is_open() const { return stage_ != Stage::none; }

  const std::shared_ptr<HttpLoop> loop_;  // first: sockets need its context to the end
  HttpRequest request_;
  HttpReply reply_;
  bool head_only_ = false;  // the method is HEAD

 private:
  using Outcome = std::variant<HttpReply, Deferred>;
  enum class Stage { none, open, packing };

  void count_open(bool open);
  void begin_record();
  bool admit_json(std::size_t size);
  void take_room();
  void unpack_body();
  void dispatch();
  void dispatch_heavy(bool packed);
  Deliver deliver_to(std::uint64_t exchange);
  Outcome handle(HttpRequest request, Deliver deliver);
  void on_handled(std::uint64_t exchange, Outcome outcome);
  void on_reply(std::uint64_t exchange, ReplyMaker make);
  bool pack_elsewhere(Coding coding);

  Stage stage_ = Stage::none;
  bool counted_ = false;        // in HttpShared::open
  std::uint64_t exchange_ = 0;  // a reply to an earlier request than this one is too late
  bool cancelled_ = false;      // its client has gone
  std::move_only_function<void()> cancel_;
  std::string content_encoding_;
  std::string accept_encoding_;
  TraceContext trace_;                    // of the request
  std::string tracestate_;                // the client's, passed back
  std::unique_ptr<AccessRecord> record_;  // null: there are neither an access log nor spans
  bool recording_ = false;                // somebody wants it, of a request that has not ended
};

// What a header may take without counting against SideBudget: as much as an idle connection's buffer.
inline constexpr std::size_t free_header = std::size_t{8} << 10;

// A body that arrives more slowly (bytes a second) makes way when others find no room.
inline constexpr std::size_t slow_body = std::size_t{1} << 20;

}  // namespace carillon::frontend
