#include "carillon/frontend/http/http2_stream.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "carillon/frontend/http/http_framing.h"
#include "carillon/frontend/telemetry/trace.h"

namespace carillon::frontend {

namespace {

// How much of a body may come before the server has said anything of it (RFC 9113, section 6.9.2).
constexpr std::size_t first_window = 65535;
// And how much at most at a time, of bodies that say their size and of those that do not.
constexpr std::size_t sized_window = std::size_t{16} << 20;
constexpr std::size_t unsized_window = std::size_t{1} << 20;

constexpr std::size_t field_overhead = 32;  // RFC 9113, section 6.5.2

bool is_grpc(std::string_view content_type) {
  return content_type.starts_with("application/grpc");
}

// In gRPC's own way, so that its clients show the words (their status comes before HTTP's).
HttpReply grpc_reply() {
  HttpReply reply{.status = 415, .content_type = "application/grpc"};
  reply.headers.emplace_back("grpc-status", "12");
  reply.headers.emplace_back("grpc-message", "this port serves HTTP; gRPC has a port of its own (--grpc)");
  return reply;
}

// `name` is in small letters, as HTTP/2 has it.
bool same_field(std::string_view name, std::string_view other) {
  return std::ranges::equal(name, other, {}, {}, [](unsigned char c) { return std::tolower(c); });
}

nghttp2_nv field(std::string_view name, std::string_view value) {
  // nghttp2 copies both, and changes neither.
  const auto bytes = [](std::string_view text) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

ssize_t read_answer(nghttp2_session*, std::int32_t, std::uint8_t*, std::size_t most, std::uint32_t* flags,
                    nghttp2_data_source* source, void*) {
  const std::size_t left = static_cast<Http2Stream*>(source->ptr)->left();
  *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (left <= most) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return static_cast<ssize_t>(std::min(left, most));
}

}  // namespace

struct Http2Stream::Header {
  std::string method;
  std::string target;
  std::string content_type;
  std::string content_encoding;
  std::string accept_encoding;
  std::string accept;
  std::string fetch_site;
  std::string authorization;
  std::string api_key;
  std::string traceparent;
  std::string tracestate;
  std::string expect;
  std::optional<std::string> inference_header_length;
  std::optional<std::uint64_t> content_length;
  std::array<bool, fields_once.size()> there{};  // of these: it came
  std::string_view repeated;                     // one of them that came again
  std::size_t authorizations = 0;
  std::size_t api_keys = 0;
  std::size_t traceparents = 0;
};

Http2Stream::Http2Stream(std::shared_ptr<HttpLoop> loop, Http2Link& link, std::int32_t id,
                         std::string_view peer)
    : HttpExchange(std::move(loop), peer),
      link_(&link),
      connection_(link.side_share()),
      id_(id),
      header_(std::make_unique<Header>()),
      header_room_(loop_->shared->side, connection_.share()) {
  set_deadline(loop_->shared->options.header_timeout);
}

Http2Stream::~Http2Stream() = default;

void Http2Stream::go(Http2Stage to) {
  const Http2Stage from = std::exchange(stage_, to);
  if (link_ != nullptr) link_->moved(from, to);
}

void Http2Stream::set_deadline(Duration from_now) {
  deadline_ = std::chrono::steady_clock::now() + from_now;
}

void Http2Stream::reset(std::uint32_t error) {
  (void)nghttp2_submit_rst_stream(link_->frames(), NGHTTP2_FLAG_NONE, id_, error);
  link_->pump();
}

void Http2Stream::on_field(std::string_view name, std::string_view value) {
  if (!header_) return;
  header_size_ += name.size() + value.size() + field_overhead;
  if (header_size_ > loop_->shared->options.max_header || !header_fits_) return;
  header_fits_ = header_size_ <= free_header || header_room_.hold(header_size_);
  if (!header_fits_) return;
  Header& header = *header_;
  // Of several the first counts, as in HTTP/1.1.
  const auto first = [&](std::string& text, std::size_t& count) {
    if (count++ == 0) text = value;
  };
  const auto keep = [&](std::string& text) {
    if (text.empty()) text = value;
  };
  for (std::size_t i = 0; i < fields_once.size(); ++i)
    if (same_field(name, fields_once[i]) && std::exchange(header.there[i], true))
      header.repeated = fields_once[i];
  if (name == ":method") return keep(header.method);
  if (name == ":path") return keep(header.target);
  if (name == "content-type") return keep(header.content_type);
  if (name == "content-encoding") return keep(header.content_encoding);
  if (name == "accept-encoding") return keep(header.accept_encoding);
  if (name == "accept") return keep(header.accept);
  if (name == "sec-fetch-site") return keep(header.fetch_site);
  if (name == "expect") return keep(header.expect);
  if (name == "authorization") return first(header.authorization, header.authorizations);
  if (name == "x-api-key") return first(header.api_key, header.api_keys);
  if (name == traceparent_key) return first(header.traceparent, header.traceparents);
  if (name == tracestate_key) {
    header.tracestate += (header.tracestate.empty() ? "" : ",") + std::string(value);
  } else if (name == "inference-header-content-length") {
    if (!header.inference_header_length) header.inference_header_length = value;
  } else if (name == "content-length") {
    // nghttp2 has seen to it that this is one number, and that the body has as many bytes.
    std::uint64_t length = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
    if (error == std::errc() && end == value.data() + value.size()) header.content_length = length;
  }
}

std::optional<HttpReply> Http2Stream::check_header(const Header& header) {
  const std::size_t most = loop_->shared->options.max_header;
  if (header_size_ > most)
    return error_reply(431, "the request's header has more than " + std::to_string(most) + " bytes");
  if (!header_fits_)
    return full_reply("there is no room now for a header of more than " + std::to_string(free_header) +
                      " bytes: too many are being read");
  const bool traced = header.traceparents == 1;
  HttpFields fields{
      .method = header.method,
      .target = header.target,
      .content_encoding = header.content_encoding,
      .accept_encoding = header.accept_encoding,
      .accept = header.accept,
      .fetch_site = header.fetch_site,
      .inference_header_length = header.inference_header_length,
      .repeated = header.repeated,
      .credentials = {.authorization = header.authorization,
                      .api_key = header.api_key,
                      .ambiguous = header.authorizations > 1 || header.api_keys > 1},
      .traceparent = traced ? std::string_view(header.traceparent) : std::string_view(),
      .tracestate = traced && is_tracestate(header.tracestate) ? header.tracestate : std::string()};
  auto refused = take_header(std::move(fields));
  return is_grpc(header.content_type) ? grpc_reply() : std::move(refused);
}

// For the body, before the client is told that it may send it. (What it may send without is no more than
// first_window, and dropped where there is no room for it.)
std::optional<HttpReply> Http2Stream::make_room(const Header& header) {
  if (!header.content_length) {
    if (request_.room.grow(first_window)) {
      window_ = first_window;
      return std::nullopt;
    }
    return no_room_reply("this body", first_window);
  }
  sized_ = true;
  if (auto refused = reserve(*header.content_length)) return refused;
  const auto size = static_cast<std::size_t>(*header.content_length);
  try {
    request_.body = PaddedBytes(size);
  } catch (const std::bad_alloc&) {
    return full_reply("no memory for a body of " + std::to_string(size) + " bytes");
  }
  if (size > first_window)
    (void)nghttp2_session_set_local_window_size(link_->frames(), NGHTTP2_FLAG_NONE, id_,
                                                static_cast<std::int32_t>(std::min(size, sized_window)));
  return std::nullopt;
}

// REFUSED_STREAM says that nothing was done, so that any request may be sent again (RFC 9113, section 8.7).
// An answer with a status would be one more that waits for a client which does not read.
void Http2Stream::refuse() {
  header_.reset();
  refused_ = true;
  go(Http2Stage::closed);
  reset(NGHTTP2_REFUSED_STREAM);
}

void Http2Stream::on_header(bool ended) {
  if (!link_->may_begin()) return refuse();
  begin();
  ended_ = ended;
  const auto header = std::exchange(header_, nullptr);
  auto refused = check_header(*header);
  header_room_.shrink_to(kept_of_header() > free_header ? kept_of_header() : 0);
  if (refused) return answer(std::move(*refused));
  if (ended) return body_done();
  if (auto full = make_room(*header)) return answer(std::move(*full));
  if (header->expect == "100-continue") {
    const nghttp2_nv status = field(":status", "100");
    (void)nghttp2_submit_headers(link_->frames(), NGHTTP2_FLAG_NONE, id_, nullptr, &status, 1, nullptr);
  }
  body_began_ = std::chrono::steady_clock::now();
  set_deadline(loop_->shared->options.body_timeout);
  go(Http2Stage::body);
}

// Room for more of a body whose size nobody knows, so that all that may come has some.
bool Http2Stream::grow_window(std::size_t more) {
  const std::size_t wanted = received_ + more + window_;
  const std::size_t held = request_.room.bytes();
  if (held < wanted && !request_.room.grow(wanted - held)) return false;
  const std::size_t wider = window_ * 2;
  if (received_ >= 2 * wider && wider <= unsized_window && request_.room.grow(wider - window_)) {
    window_ = wider;
    (void)nghttp2_session_set_local_window_size(link_->frames(), NGHTTP2_FLAG_NONE, id_,
                                                static_cast<std::int32_t>(window_));
  }
  return true;
}

void Http2Stream::on_data(std::string_view bytes) {
  if (stage_ != Http2Stage::body) return;
  const std::size_t most = loop_->shared->options.max_body;
  if (!sized_) {
    if (received_ + bytes.size() > most)
      return answer(error_reply(
          413, "the body has more than " + std::to_string(most) + " bytes, which is what is allowed"));
    if (!grow_window(bytes.size()))
      return answer(no_room_reply("more than " + std::to_string(received_) + " bytes of this body",
                                  received_ + bytes.size() + window_));
    try {
      request_.body.resize(received_ + bytes.size());
    } catch (const std::bad_alloc&) {
      return answer(
          full_reply("no memory for more than " + std::to_string(received_) + " bytes of this body"));
    }
  } else if (bytes.size() > request_.body.size() - received_) {
    return reset(NGHTTP2_PROTOCOL_ERROR);
  }
  std::memcpy(request_.body.data() + received_, bytes.data(), bytes.size());
  received_ += bytes.size();
  (void)nghttp2_session_consume_stream(link_->frames(), id_, bytes.size());
}

void Http2Stream::on_end() {
  ended_ = true;
  if (stage_ != Http2Stage::body) return;
  if (received_ != request_.body.size()) return reset(NGHTTP2_PROTOCOL_ERROR);
  request_.room.shrink_to(received_);
  go(Http2Stage::open);
  body_done();
}

void Http2Stream::on_waiting() {
  deadline_ = Time::max();
  if (stage_ != Http2Stage::open) go(Http2Stage::open);
}

void Http2Stream::send(std::optional<Coding> packed) {
  // First of all: where there is no memory for what follows, the sweep ends the stream.
  set_deadline(loop_->shared->options.body_timeout);
  go(Http2Stage::sending);
  const std::size_t size = complete_reply();
  left_ = head_only_ ? 0 : size;
  link_->count_unread(static_cast<std::int64_t>(left_));
  set_deadline(transfer_time(loop_->shared->options.body_timeout, size));
  std::vector<std::pair<std::string, std::string>> fields{{":status", std::to_string(reply_.status)},
                                                          {"content-type", reply_.content_type},
                                                          {"content-length", std::to_string(size)}};
  for (const auto& [name, value] : reply_.headers) {
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    fields.emplace_back(std::move(lower), value);
  }
  if (packed) fields.emplace_back("content-encoding", *packed == Coding::gzip ? "gzip" : "deflate");
  std::vector<nghttp2_nv> named;
  named.reserve(fields.size());
  for (const auto& [name, value] : fields) named.push_back(field(name, value));
  const nghttp2_data_provider body{.source = {.ptr = this}, .read_callback = read_answer};
  (void)nghttp2_submit_response(link_->frames(), id_, named.data(), named.size(),
                                left_ > 0 ? &body : nullptr);
  link_->pump();
}

void Http2Stream::take(std::size_t bytes, std::string& out) {
  left_ -= bytes;
  link_->count_unread(-static_cast<std::int64_t>(bytes));
  while (bytes > 0) {
    const std::span<const std::byte> piece =
        piece_ == 0 ? std::as_bytes(std::span(reply_.body)) : reply_.blobs[piece_ - 1];
    const std::size_t n = std::min(bytes, piece.size() - piece_sent_);
    out.append(reinterpret_cast<const char*>(piece.data()) + piece_sent_, n);
    bytes -= n;
    piece_sent_ += n;
    if (piece_sent_ < piece.size()) continue;
    ++piece_;
    piece_sent_ = 0;
  }
}

// Whoever is still sending a body that nobody reads may stop (RFC 9113, section 8.1).
void Http2Stream::on_sent() {
  go(Http2Stage::sent);
  if (!ended_) (void)nghttp2_submit_rst_stream(link_->frames(), NGHTTP2_FLAG_NONE, id_, NGHTTP2_NO_ERROR);
}

void Http2Stream::on_written(bool error) {
  end(error ? 499 : reply_.status);
}

void Http2Stream::on_closed() {
  if (link_ != nullptr) link_->count_unread(-static_cast<std::int64_t>(std::exchange(left_, 0)));
  if (stage_ != Http2Stage::sent) {
    go(Http2Stage::closed);
    abandon();
  }
  link_ = nullptr;
}

void Http2Stream::refuse_open() {
  switch (stage_) {
    case Http2Stage::header:
    case Http2Stage::body:
      return reset(NGHTTP2_REFUSED_STREAM);
    case Http2Stage::open:
      cancel();
      if (is_open()) answer(error_reply(503, "the server is going away"));
      return;
    case Http2Stage::sending:
    case Http2Stage::sent:
    case Http2Stage::closed:
      return;
  }
}

bool Http2Stream::sweep(Time now, bool no_room) {
  if (stage_ == Http2Stage::body && no_room) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - body_began_).count();
    if (age >= 1 && received_ / static_cast<std::size_t>(age) < slow_body) {
      answer(full_reply("the body arrives slowly, and others find no room for theirs"));
      return true;
    }
  }
  if (now < deadline_) return true;
  const auto& options = loop_->shared->options;
  switch (stage_) {
    case Http2Stage::header:
      return false;
    case Http2Stage::body:
      if (received_ - received_at_window_ >= options.body_progress) {
        received_at_window_ = received_;
        set_deadline(options.body_timeout);
      } else {
        answer(error_reply(
            408, "the body arrives too slowly: " + std::to_string(received_) + " bytes of it so far"));
      }
      return true;
    case Http2Stage::sending:
      reset(NGHTTP2_CANCEL);
      return true;
    case Http2Stage::open:
    case Http2Stage::sent:
    case Http2Stage::closed:
      return true;
  }
  return true;
}

}  // namespace carillon::frontend
