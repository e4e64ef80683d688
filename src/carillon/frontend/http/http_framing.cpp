#include "carillon/frontend/http/http_framing.h"

#include <algorithm>
#include <cctype>

namespace carillon::frontend {
namespace {

bool is_chunked(std::string_view coding) {
  return std::ranges::equal(coding, std::string_view("chunked"), {},
                            [](unsigned char c) { return std::tolower(c); });
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<FramingError> check_framing(const HttpFraming& framing) {
  if (framing.version >= 11 && framing.hosts != 1)
    return FramingError{
        400, "an HTTP/1.1 request needs exactly one Host header, not " + std::to_string(framing.hosts)};
  if (framing.transfer_encodings.empty()) return std::nullopt;
  if (framing.version < 11) return FramingError{400, "HTTP/1.0 has no Transfer-Encoding"};
  std::size_t codings = 0;
  for (const std::string_view value : framing.transfer_encodings) {
    for (std::string_view left = value; !left.empty();) {
      const auto comma = std::min(left.find(','), left.size());
      const auto coding = trimmed(left.substr(0, comma));
      left.remove_prefix(std::min(comma + 1, left.size()));
      if (coding.empty()) continue;
      if (!is_chunked(coding))
        return FramingError{501, "transfer coding '" + std::string(coding.substr(0, 64)) +
                                     "' is not understood, only chunked is; bodies are packed with "
                                     "Content-Encoding: gzip or deflate"};
      ++codings;
    }
  }
  if (codings != 1)
    return FramingError{
        400, "Transfer-Encoding has chunked " + std::to_string(codings) + " times; it must have it once"};
  return std::nullopt;
}

std::string_view origin_form(std::string_view target) {
  const auto begins = [target](std::string_view scheme) {
    return target.size() >= scheme.size() &&
           std::ranges::equal(target.substr(0, scheme.size()), scheme, {},
                              [](unsigned char c) { return std::tolower(c); });
  };
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!begins(scheme)) continue;
    const std::size_t path = target.find_first_of("/?#", scheme.size());
    return path != std::string_view::npos && target[path] == '/' ? target.substr(path) : "/";
  }
  return target;
}

Http2Opening http2_opening(std::string_view bytes) {
  static constexpr std::string_view preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  if (bytes.starts_with(preface)) return Http2Opening::whole;
  return preface.starts_with(bytes) ? Http2Opening::part : Http2Opening::none;
}

}  // namespace carillon::frontend
