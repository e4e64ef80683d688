#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nghttp2/nghttp2.h>

#include "carillon/frontend/http/http2_stream.h"
#include "carillon/frontend/http/http_loop.h"
#include "carillon/frontend/http/http_stream.h"

namespace carillon::frontend {

// A connection of HTTP/2 (RFC 9113), with the frames as nghttp2 reads and writes them: its streams are
// requests as any others. Everything happens on the loop's thread.
//
// What a client may make large or many is bounded: streams at a time, a header's bytes, bytes of bodies (all
// that its windows let it send has room already), bytes of answers that it does not take (beyond them its
// streams are refused), streams that end early, frames that ask for nothing, and frames that wait to be sent
// to it: while those are too many, nothing is read. Where it breaks a limit for good, GOAWAY says which.
class Http2Session final : public HttpConnection,
                           public Http2Link,
                           public std::enable_shared_from_this<Http2Session> {
 public:
  // `opening`: what was read of the connection already. Throws std::bad_alloc, and has left `stream` where it
  // was.
  Http2Session(std::shared_ptr<HttpLoop> loop, std::string peer, std::string_view opening,
               std::unique_ptr<HttpStream>&& stream);

  void start() override;
  void begin_stop() override;
  void refuse_open() override;
  void close() override;
  void sweep(Time now, bool no_room) override;

  nghttp2_session* frames() override { return frames_.get(); }
  void moved(Http2Stage from, Http2Stage to) override;
  void pump() override;
  void count_unread(std::int64_t more) override { unread_ += more; }
  bool may_begin() const override;
  const std::shared_ptr<ConnectionShare>& side_share() const override { return side_share_; }

 private:
  using Error = boost::system::error_code;
  struct Free {
    void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
  };
  // nghttp2's callbacks, whose user data is the session.
  struct Events;
  friend struct Events;
  enum class Leaving { no, noticed, yes };  // GOAWAY: not sent, sent as a notice, sent

  std::unique_ptr<nghttp2_session, Free> make_frames();
  Http2Stream* find(std::int32_t id) const;
  void begin_stream(std::int32_t id);
  void on_stream_closed(std::int32_t id);
  void on_stream_sent(std::int32_t id);
  void on_idle_frame();
  void on_window_update();
  void read();
  void on_read(Error error, std::size_t bytes);
  void feed(std::string_view bytes);
  void gather();
  void on_written(Error error);
  void leave();
  void end(std::uint32_t error, std::string_view why);
  void drop_streams();
  void update_place();
  void linger();
  void shut_down();
  void drain();

  const std::shared_ptr<HttpLoop> loop_;  // first: the socket needs its context to the end
  const std::string peer_;
  const std::shared_ptr<ConnectionShare> side_share_;
  std::string opening_;
  std::unordered_map<std::int32_t, std::shared_ptr<Http2Stream>> streams_;
  std::array<std::size_t, 6> at_stage_{};  // of `streams_`, by Http2Stage
  HttpPlace place_ = HttpPlace::strangers;
  std::vector<std::shared_ptr<Http2Stream>> sent_;  // whose last bytes are in `out_`
  std::string out_;                                 // being written, or about to be
  std::vector<char> in_;
  bool feeding_ = false;  // nghttp2 is reading, and may not be asked to write
  bool reading_ = false;
  bool writing_ = false;
  bool settled_ = false;  // the client has said its settings, as it must at first
  bool any_ = false;      // there has been a stream
  bool answered_ = false;
  bool lingering_ = false;
  bool closed_ = false;
  Leaving leaving_ = Leaving::no;
  std::string last_words_;  // a GOAWAY of our own; where there is one, `frames_` is not used any more
  bool said_last_ = false;  // it is in `out_`, or was
  std::int32_t last_stream_ = 0;
  std::int64_t unread_ = 0;      // bytes of answers that wait for the client to take them
  std::size_t resets_ = 0;       // streams that ended unanswered, less those answered since
  std::size_t idle_frames_ = 0;  // since the last answer
  std::size_t sent_data_ = 0;    // bytes of bodies since then that no window update has been set off against
  std::size_t lingered_ = 0;
  Time deadline_;        // without streams, or while lingering
  Time write_deadline_;  // while writing
  std::unique_ptr<nghttp2_session, Free> frames_;
  std::unique_ptr<HttpStream> stream_;  // last: see the constructor
};

}  // namespace carillon::frontend
