#include "carillon/frontend/http/http2_session.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

namespace carillon::frontend {

namespace {

constexpr std::size_t write_step = std::size_t{64} << 10;   // bytes given to the system at a time, about
constexpr std::size_t read_idle = std::size_t{8} << 10;     // and asked of it, while no body arrives
constexpr std::size_t read_bodies = std::size_t{64} << 10;  // and while one does
constexpr std::size_t waiting_frames = 1000;                // beyond which nothing is read
constexpr std::size_t most_continuations = 8;               // of a header
// All streams' together. It bounds nothing: what arrives is taken at once, and streams have windows.
constexpr std::int32_t connection_window = std::int32_t{16} << 20;
constexpr std::size_t linger_bytes = std::size_t{16} << 20;
// For so much of answers a client may say once that it has taken it: those there are say so every 4 KiB or
// more, for the stream and for the connection.
constexpr std::size_t data_per_update = std::size_t{2} << 10;

template <auto free>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using CallbacksPtr = std::unique_ptr<nghttp2_session_callbacks, FreeWith<nghttp2_session_callbacks_del>>;
using OptionPtr = std::unique_ptr<nghttp2_option, FreeWith<nghttp2_option_del>>;

std::string_view text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// RFC 9113, section 6.8.
std::string goaway_frame(std::int32_t last_stream, std::uint32_t error, std::string_view why) {
  std::string out;
  const auto number = [&](std::uint64_t value, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  };
  number(8 + why.size(), 3);
  number(NGHTTP2_GOAWAY, 1);
  number(0, 5);  // no flags; of the connection
  number(static_cast<std::uint32_t>(last_stream), 4);
  number(error, 4);
  out += why;
  return out;
}

// Of what nghttp2 gives up at, without having said so itself.
std::uint32_t code_of(ssize_t failure) {
  switch (failure) {
    case NGHTTP2_ERR_BAD_CLIENT_MAGIC:
      return NGHTTP2_PROTOCOL_ERROR;
    case NGHTTP2_ERR_NOMEM:
    case NGHTTP2_ERR_CALLBACK_FAILURE:
      return NGHTTP2_INTERNAL_ERROR;
    default:
      return NGHTTP2_ENHANCE_YOUR_CALM;  // its own limits
  }
}

std::string why_of(ssize_t failure) {
  if (failure == NGHTTP2_ERR_TOO_MANY_CONTINUATIONS)
    return "a header came in more than " + std::to_string(most_continuations) + " CONTINUATION frames";
  if (failure == NGHTTP2_ERR_FLOODED) return "too many answers to pings and settings wait to be read";
  if (failure == NGHTTP2_ERR_CALLBACK_FAILURE) return "the server has no memory for this";
  return nghttp2_strerror(static_cast<int>(failure));
}

// nghttp2 is C, through which nothing may be thrown.
template <typename Act>
int unthrown(Act&& act) noexcept {
  try {
    act();
    return 0;
  } catch (...) {
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }
}

}  // namespace

struct Http2Session::Events {
  static Http2Session& of(void* user_data) { return *static_cast<Http2Session*>(user_data); }

  // Where the connection is to end, nghttp2 reads nothing more.
  static int go_on(void* user_data) {
    return of(user_data).last_words_.empty() ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
  }

  static int on_begin_frame(nghttp2_session*, const nghttp2_frame_hd* frame, void* user_data) {
    Http2Session& session = of(user_data);
    return unthrown([&] {
             switch (frame->type) {
               case NGHTTP2_HEADERS:
               case NGHTTP2_CONTINUATION:
                 return;
               case NGHTTP2_DATA:
                 if (frame->length == 0 && (frame->flags & NGHTTP2_FLAG_END_STREAM) == 0)
                   session.on_idle_frame();
                 return;
               case NGHTTP2_WINDOW_UPDATE:
                 return session.on_window_update();
               default:
                 return session.on_idle_frame();
             }
           }) != 0
               ? NGHTTP2_ERR_CALLBACK_FAILURE
               : go_on(user_data);
  }

  // Of frames that nobody knows, which are to be passed over (RFC 9113, section 4.1) but are counted.
  static int on_unknown(nghttp2_session*, void**, const nghttp2_frame_hd*, void*) {
    return NGHTTP2_ERR_CANCEL;
  }

  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    return unthrown([&] { of(user_data).begin_stream(frame->hd.stream_id); });
  }

  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                       std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t,
                       void* user_data) {
    auto* const stream = of(user_data).find(frame->hd.stream_id);
    if (stream == nullptr) return 0;
    return unthrown([&] { stream->on_field(text(name, name_size), text(value, value_size)); });
  }

  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    auto& session = of(user_data);
    if (frame->hd.type == NGHTTP2_SETTINGS && !std::exchange(session.settled_, true))
      session.deadline_ = std::chrono::steady_clock::now() + session.loop_->shared->options.idle_timeout;
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    auto* const stream = session.find(frame->hd.stream_id);
    if (stream == nullptr) return 0;
    const bool ended = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    const bool header = frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    return unthrown([&] {
      if (header)
        stream->on_header(ended);
      else if (ended)
        stream->on_end();
    });
  }

  static int on_data(nghttp2_session* frames, std::uint8_t, std::int32_t id, const std::uint8_t* data,
                     std::size_t size, void* user_data) {
    (void)nghttp2_session_consume_connection(frames, size);
    auto* const stream = of(user_data).find(id);
    if (stream == nullptr) return 0;
    return unthrown([&] { stream->on_data(text(data, size)); });
  }

  static int on_close(nghttp2_session*, std::int32_t id, std::uint32_t, void* user_data) {
    if (const int failed = unthrown([&] { of(user_data).on_stream_closed(id); }); failed != 0) return failed;
    return go_on(user_data);
  }

  static int on_sent(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    if ((frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) ||
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
      return 0;
    return unthrown([&] { of(user_data).on_stream_sent(frame->hd.stream_id); });
  }

  static int send_data(nghttp2_session*, nghttp2_frame*, const std::uint8_t* head, std::size_t size,
                       nghttp2_data_source* source, void* user_data) {
    constexpr std::size_t frame_head = 9;
    auto& session = of(user_data);
    if (session.out_.size() >= write_step) return NGHTTP2_ERR_WOULDBLOCK;
    return unthrown([&] {
      session.sent_data_ += size;
      session.out_.append(reinterpret_cast<const char*>(head), frame_head);
      static_cast<Http2Stream*>(source->ptr)->take(size, session.out_);
    });
  }
};

Http2Session::Http2Session(std::shared_ptr<HttpLoop> loop, std::string peer, std::string_view opening,
                           std::unique_ptr<HttpStream>&& stream)
    : loop_(std::move(loop)),
      peer_(std::move(peer)),
      side_share_(std::make_shared<ConnectionShare>(loop_->shared->side.of_connection())),
      opening_(opening),
      deadline_(std::chrono::steady_clock::now() + loop_->shared->options.header_timeout),
      frames_(make_frames()),
      stream_(std::move(stream)) {}

std::unique_ptr<nghttp2_session, Http2Session::Free> Http2Session::make_frames() {
  const auto& options = loop_->shared->options;
  nghttp2_session_callbacks* new_callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&new_callbacks) != 0) throw std::bad_alloc();
  const CallbacksPtr callbacks(new_callbacks);
  nghttp2_session_callbacks_set_on_begin_frame_callback(new_callbacks, Events::on_begin_frame);
  nghttp2_session_callbacks_set_on_begin_headers_callback(new_callbacks, Events::on_begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(new_callbacks, Events::on_header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(new_callbacks, Events::on_frame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(new_callbacks, Events::on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(new_callbacks, Events::on_close);
  nghttp2_session_callbacks_set_on_frame_send_callback(new_callbacks, Events::on_sent);
  nghttp2_session_callbacks_set_send_data_callback(new_callbacks, Events::send_data);
  nghttp2_session_callbacks_set_unpack_extension_callback(new_callbacks, Events::on_unknown);

  nghttp2_option* new_option = nullptr;
  if (nghttp2_option_new(&new_option) != 0) throw std::bad_alloc();
  const OptionPtr option(new_option);
  nghttp2_option_set_no_auto_window_update(new_option, 1);
  nghttp2_option_set_no_closed_streams(new_option, 1);
  nghttp2_option_set_max_continuations(new_option, most_continuations);
  // Else these would be passed over unseen.
  for (unsigned type = NGHTTP2_CONTINUATION + 1; type <= 0xff; ++type)
    nghttp2_option_set_user_recv_extension_type(new_option, static_cast<std::uint8_t>(type));

  nghttp2_session* session = nullptr;
  if (nghttp2_session_server_new2(&session, new_callbacks, this, new_option) != 0) throw std::bad_alloc();
  std::unique_ptr<nghttp2_session, Free> frames(session);
  const auto value = [](std::size_t n) {
    return static_cast<std::uint32_t>(std::min<std::size_t>(n, std::uint32_t{1} << 31));
  };
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, value(options.max_streams)},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, value(options.max_header)},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1}};
  if (nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings)) != 0 ||
      nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, connection_window) != 0)
    throw std::bad_alloc();
  return frames;
}

void Http2Session::start() {
  // Whoever calls may hold nothing but the loop's place for it, which feed() and pump() may give up.
  const auto kept = shared_from_this();
  const std::string opening = std::exchange(opening_, {});
  gather();  // the settings, which come before all else, whatever there is to say of the client's first bytes
  if (!opening.empty()) feed(opening);
  pump();
  read();
}

Http2Stream* Http2Session::find(std::int32_t id) const {
  const auto it = streams_.find(id);
  return it == streams_.end() ? nullptr : it->second.get();
}

void Http2Session::begin_stream(std::int32_t id) {
  any_ = true;
  last_stream_ = std::max(last_stream_, id);
  streams_.emplace(id, std::make_shared<Http2Stream>(loop_, *this, id, peer_));
  ++at_stage_[static_cast<std::size_t>(Http2Stage::header)];
}

void Http2Session::moved(Http2Stage from, Http2Stage to) {
  --at_stage_[static_cast<std::size_t>(from)];
  ++at_stage_[static_cast<std::size_t>(to)];
  update_place();
}

void Http2Session::update_place() {
  const auto at = [this](Http2Stage stage) { return at_stage_[static_cast<std::size_t>(stage)]; };
  HttpPlace place = answered_ ? HttpPlace::idle : HttpPlace::strangers;
  if (at(Http2Stage::open) + at(Http2Stage::sending) > 0)
    place = HttpPlace::busy;
  else if (at(Http2Stage::body) > 0)
    place = HttpPlace::reading;
  if (lingering_) place = HttpPlace::strangers;
  if (closed_ || std::exchange(place_, place) == place) return;
  loop_->move(*this, place);
}

void Http2Session::on_stream_closed(std::int32_t id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  const auto stream = std::move(it->second);
  streams_.erase(it);
  const bool unanswered = stream->stage() != Http2Stage::sent;
  stream->on_closed();
  --at_stage_[static_cast<std::size_t>(stream->stage())];
  if (streams_.empty()) deadline_ = std::chrono::steady_clock::now() + loop_->shared->options.idle_timeout;
  if (stream->refused()) return on_idle_frame();
  // Beginning requests and taking them back costs a client nothing.
  const std::size_t most = loop_->shared->options.max_resets;
  if (unanswered && ++resets_ > most)
    end(NGHTTP2_ENHANCE_YOUR_CALM, "more than " + std::to_string(most) + " streams ended without an answer");
}

void Http2Session::on_stream_sent(std::int32_t id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  sent_.push_back(it->second);
  answered_ = true;
  idle_frames_ = 0;
  sent_data_ = 0;
  if (resets_ > 0) --resets_;
  it->second->on_sent();
}

void Http2Session::on_idle_frame() {
  const std::size_t most = loop_->shared->options.max_idle_frames;
  if (++idle_frames_ > most)
    end(NGHTTP2_ENHANCE_YOUR_CALM,
        "more than " + std::to_string(most) +
            " frames that ask for nothing came between two answers (pings, settings, "
            "resets, window updates, empty data, unknown ones)");
}

void Http2Session::on_window_update() {
  if (sent_data_ < data_per_update) return on_idle_frame();
  sent_data_ -= data_per_update;
}

bool Http2Session::may_begin() const {
  return unread_ <= static_cast<std::int64_t>(loop_->shared->options.max_unread);
}

// For good, and at once: what else there was to say is not. By hand, as nghttp2 takes no text along, and may
// have given up.
void Http2Session::end(std::uint32_t error, std::string_view why) {
  if (!last_words_.empty()) return;
  last_words_ = goaway_frame(last_stream_, error, why);
  deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(2);
}

void Http2Session::drop_streams() {
  for (const auto& [id, stream] : std::exchange(streams_, {})) stream->on_closed();
}

void Http2Session::read() {
  if (reading_ || closed_ || lingering_ || !last_words_.empty()) return;
  if (writing_ && nghttp2_session_get_outbound_queue_size(frames_.get()) > waiting_frames) return;
  reading_ = true;
  const bool bodies = at_stage_[static_cast<std::size_t>(Http2Stage::body)] > 0;
  const std::size_t size = bodies ? read_bodies : read_idle;
  if (in_.size() != size) std::vector<char>(size).swap(in_);
  stream_->async_read_some(
      boost::asio::buffer(in_),
      [self = shared_from_this()](Error error, std::size_t bytes) { self->on_read(error, bytes); });
}

void Http2Session::on_read(Error error, std::size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (lingering_) return shut_down();
  if (error) return close();
  feed({in_.data(), bytes});
  pump();
  read();
}

void Http2Session::feed(std::string_view bytes) {
  if (!last_words_.empty()) return;
  feeding_ = true;
  const auto taken = nghttp2_session_mem_recv(
      frames_.get(), reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  feeding_ = false;
  // Faults of the protocol are no errors here, but a GOAWAY that is to be sent.
  if (taken < 0) end(code_of(taken), why_of(taken));
}

// What there is to send, behind what is in `out_` already.
void Http2Session::gather() {
  while (out_.size() < write_step && last_words_.empty()) {
    const std::uint8_t* data = nullptr;
    const auto size = nghttp2_session_mem_send(frames_.get(), &data);
    if (size < 0) end(code_of(size), why_of(size));
    if (size <= 0) break;
    out_.append(text(data, static_cast<std::size_t>(size)));
  }
}

void Http2Session::pump() {
  if (feeding_ || writing_ || closed_ || lingering_) return;
  gather();
  if (!last_words_.empty() && !std::exchange(said_last_, true)) {
    out_ += last_words_;
    drop_streams();
  }
  if (out_.empty()) {
    if (streams_.empty()) out_.shrink_to_fit();  // of many connections that wait it would be much
    const bool done = said_last_ || (nghttp2_session_want_read(frames_.get()) == 0 &&
                                     nghttp2_session_want_write(frames_.get()) == 0);
    if (done) linger();
    return;
  }
  writing_ = true;
  write_deadline_ = std::chrono::steady_clock::now() + loop_->shared->options.body_timeout;
  boost::asio::async_write(
      *stream_, boost::asio::buffer(out_),
      [self = shared_from_this()](Error error, std::size_t) { self->on_written(error); });
}

void Http2Session::on_written(Error error) {
  writing_ = false;
  out_.clear();
  if (closed_) return;
  if (error) return close();
  for (const auto& stream : std::exchange(sent_, {})) stream->on_written(false);
  if (leaving_ == Leaving::no && loop_->shared->commons.draining) leave();
  pump();
  read();
}

// First a notice, so that requests under way are still answered; later that nothing more is.
void Http2Session::leave() {
  if (leaving_ == Leaving::yes || !last_words_.empty()) return;
  if (leaving_ == Leaving::no) {
    leaving_ = Leaving::noticed;
    (void)nghttp2_submit_shutdown_notice(frames_.get());
    return;
  }
  leaving_ = Leaving::yes;
  (void)nghttp2_submit_goaway(frames_.get(), NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(frames_.get()), NGHTTP2_NO_ERROR,
                              nullptr, 0);
}

void Http2Session::begin_stop() {
  leaving_ = Leaving::noticed;
  leave();
  pump();
}

void Http2Session::refuse_open() {
  const auto kept = shared_from_this();
  const auto streams = streams_;
  for (const auto& [id, stream] : streams)
    if (!closed_) stream->refuse_open();
}

void Http2Session::sweep(Time now, bool no_room) {
  if ((lingering_ || streams_.empty() || !settled_) && now >= deadline_) {
    if (lingering_ || !settled_ || writing_) return close();
    deadline_ = now + loop_->shared->options.header_timeout;
    (void)nghttp2_session_terminate_session(frames_.get(), NGHTTP2_NO_ERROR);
    return pump();
  }
  if (lingering_) return;
  if (writing_ && now >= write_deadline_) return close();
  const auto streams = streams_;
  for (const auto& [id, stream] : streams) {
    if (closed_ || lingering_) return;
    if (stream->stage() == Http2Stage::closed) continue;
    if (!stream->sweep(now, no_room)) end(NGHTTP2_ENHANCE_YOUR_CALM, "a header did not arrive in time");
  }
  if (loop_->shared->commons.draining && any_) leave();
  pump();
}

// As HttpSession's: what is unread must not take the last frames with it.
void Http2Session::linger() {
  lingering_ = true;
  deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  update_place();
  if (reading_) return stream_->cancel();
  shut_down();
}

void Http2Session::shut_down() {
  const auto last = [self = shared_from_this()] {
    if (self->closed_) return;
    Error ignored;
    (void)self->stream_->socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
    self->drain();
  };
  if (!stream_->is_tls()) return last();
  stream_->async_shutdown([last](Error) { last(); });
}

void Http2Session::drain() {
  if (in_.empty()) in_.resize(read_idle);
  stream_->socket().async_read_some(boost::asio::buffer(in_),
                                    [self = shared_from_this()](Error error, std::size_t bytes) {
                                      if (self->closed_) return;
                                      self->lingered_ += bytes;
                                      if (error || self->lingered_ > linger_bytes) return self->close();
                                      self->drain();
                                    });
}

void Http2Session::close() {
  if (std::exchange(closed_, true)) return;
  const auto kept = shared_from_this();
  for (const auto& stream : std::exchange(sent_, {})) stream->on_written(true);
  drop_streams();
  Error ignored;
  (void)stream_->socket().shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
  (void)stream_->socket().close(ignored);
  loop_->remove(*this);
}

}  // namespace carillon::frontend
