#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carillon::frontend {

// Without the blanks and tabs around it.
std::string_view trimmed(std::string_view text);

// Fields that say one thing: a request that has one of them twice is refused, since whoever stands before the
// server may have heeded the other. (Those of keys are in Credentials.)
inline constexpr std::array<std::string_view, 5> fields_once = {
    "Content-Length", "Content-Encoding", "Inference-Header-Content-Length", "Content-Type", "Expect"};

// The fields of a request's header that say to whom it goes and where its body ends.
struct HttpFraming {
  unsigned version = 11;                             // 10 or 11
  std::size_t hosts = 0;                             // fields named Host
  std::vector<std::string_view> transfer_encodings;  // the values of these fields, in order
};

// An HTTP failure after which nobody knows where the next request begins.
struct FramingError {
  int status = 400;
  std::string message;
};

// Whether the body's end is beyond doubt (RFC 9112, sections 3.2 and 6). "chunked" is the only transfer
// coding that is understood: content is packed with Content-Encoding.
std::optional<FramingError> check_framing(const HttpFraming& framing);

// The path and query of a request's target, which may have the absolute form that is meant for proxies
// ("http://host/v2?x"; RFC 9112, section 3.2.2: servers accept it). A target without a path is "/".
std::string_view origin_form(std::string_view target);

// Whether a connection's first bytes are those of HTTP/2 (RFC 9113, section 3.4: no request of HTTP/1.1
// begins like that); part: as far as they go.
enum class Http2Opening { none, part, whole };
Http2Opening http2_opening(std::string_view bytes);

}  // namespace carillon::frontend
