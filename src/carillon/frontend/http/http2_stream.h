#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nghttp2/nghttp2.h>

#include "carillon/frontend/http/http_exchange.h"

namespace carillon::frontend {

// Where a stream of HTTP/2 is: its header or body arrives, its request is with the handler, its answer is
// being sent, has been, or will not be.
enum class Http2Stage { header, body, open, sending, sent, closed };

// The connection of a stream, as the stream sees it.
class Http2Link {
 public:
  virtual ~Http2Link() = default;
  virtual nghttp2_session* frames() = 0;
  virtual void moved(Http2Stage from, Http2Stage to) = 0;
  virtual void pump() = 0;  // there is something to send
  // So many bytes more, or fewer, of answers wait for the client to take them.
  virtual void count_unread(std::int64_t more) = 0;
  // Whether another request may begin; else its stream is refused.
  virtual bool may_begin() const = 0;
  // The connection's, of answers that are of no inference.
  virtual const std::shared_ptr<ConnectionShare>& side_share() const = 0;
};

// One stream: a request and its answer. On its connection's thread. Its connection calls it with what
// arrives, and takes its answer's bytes as the client's windows let it.
class Http2Stream final : public HttpExchange, public std::enable_shared_from_this<Http2Stream> {
 public:
  using Time = HttpConnection::Time;

  // `link` is there until the stream is closed.
  Http2Stream(std::shared_ptr<HttpLoop> loop, Http2Link& link, std::int32_t id, std::string_view peer);
  ~Http2Stream() override;

  Http2Stage stage() const { return stage_; }
  // It was refused before anything was done about it, and is closed or about to be.
  bool refused() const { return refused_; }

  // A field of the header; those of a trailer mean nothing.
  void on_field(std::string_view name, std::string_view value);
  void on_header(bool ended);
  void on_data(std::string_view bytes);
  void on_end();  // no more comes of the body

  // Of the answer's body: how much is to be sent yet, and the next of it, which is put behind `out`.
  std::size_t left() const { return left_; }
  void take(std::size_t bytes, std::string& out);
  // The answer's last frame is on its way; the system has taken it, or (an error) never will.
  void on_sent();
  void on_written(bool error);
  // The stream is no more: without its answer its client has gone. Ends the link.
  void on_closed();

  void refuse_open();  // cancels the request and answers 503, or resets
  // As HttpConnection's. False: its header takes too long, which is the whole connection's end.
  bool sweep(Time now, bool no_room);

 private:
  // The fields that count, until the header is whole.
  struct Header;

  std::shared_ptr<HttpExchange> self() override { return shared_from_this(); }
  void on_waiting() override;
  std::shared_ptr<ConnectionShare> side_share() const override { return connection_.share(); }
  void send(std::optional<Coding> packed) override;
  std::optional<HttpReply> check_header(const Header& header);
  std::optional<HttpReply> make_room(const Header& header);
  bool grow_window(std::size_t more);
  void go(Http2Stage to);
  void set_deadline(Duration from_now);
  void reset(std::uint32_t error);
  void refuse();

  Http2Link* link_;
  const CallOfConnection connection_;
  const std::int32_t id_;
  Http2Stage stage_ = Http2Stage::header;
  bool ended_ = false;  // nothing more comes from the client
  bool refused_ = false;
  std::unique_ptr<Header> header_;
  std::size_t header_size_ = 0;  // as SETTINGS_MAX_HEADER_LIST_SIZE counts
  SideRoom header_room_;         // for one that is more than a small one
  bool header_fits_ = true;      // it found that room
  bool sized_ = false;           // the header says how long the body is
  std::size_t received_ = 0;     // bytes of the body
  std::size_t window_ = 0;       // how much of a body without a size may come unasked; room is taken for it
  std::size_t received_at_window_ = 0;  // of them, when the time that deadline_ ends began
  Time body_began_;
  Time deadline_;
  std::size_t left_ = 0;
  std::size_t piece_ = 0;  // of the answer's pieces (its body, then its blobs) the one being sent
  std::size_t piece_sent_ = 0;
};

}  // namespace carillon::frontend
