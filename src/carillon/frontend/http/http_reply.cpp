#include "carillon/frontend/http/http_reply.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>

#include "carillon/frontend/codec/answers.h"
#include "carillon/frontend/codec/infer_codec_json.h"
#include "carillon/frontend/codec/status.h"
#include "carillon/graph/text.h"

namespace carillon::frontend {
namespace {

constexpr std::size_t longest_message = 4096;

}  // namespace

HttpReply error_reply(int status, std::string_view message) {
  return {.status = status, .body = error_json(graph::printable(message, longest_message))};
}

HttpReply error_reply(const Error& error) {
  if (error.code == ErrorCode::resource_exhausted) return full_reply(error.message);
  return error_reply(http_status(error.code), error.message);
}

HttpReply full_reply(std::string_view message) {
  const std::int64_t ms = retry_ms(controller::retry_when_full);
  HttpReply reply{.status = 503,
                  .body = error_json(graph::printable(message, longest_message), {.retry_after_ms = ms})};
  reply.headers.emplace_back("Retry-After", std::to_string((ms + 999) / 1000));
  reply.headers.emplace_back(retry_key, std::to_string(ms));
  return reply;
}

HttpReply denial_reply(const Denial& denial) {
  switch (denial.kind) {
    case Denial::Kind::unknown: {
      auto reply = error_reply(401, denial.message);
      reply.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"carillon\"");
      return reply;
    }
    case Denial::Kind::forbidden:
      return error_reply(403, denial.message);
    case Denial::Kind::too_many: {
      auto reply = error_reply(429, denial.message);
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(denial.wait).count();
      reply.headers.emplace_back("Retry-After", std::to_string(std::max<std::int64_t>(1, seconds)));
      reply.headers.emplace_back(retry_key, std::to_string(retry_ms(denial.wait)));
      return reply;
    }
  }
  return error_reply(403, denial.message);
}

std::string reply_head(const HttpReply& reply, std::size_t size, unsigned version,
                       std::optional<Coding> packed, bool closes) {
  std::string head = version == 10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  head += std::to_string(reply.status);
  head += ' ';
  head += reason_phrase(reply.status);
  head += "\r\nContent-Type: " + reply.content_type + "\r\nContent-Length: " + std::to_string(size) + "\r\n";
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  if (packed)
    head += *packed == Coding::gzip ? "Content-Encoding: gzip\r\n" : "Content-Encoding: deflate\r\n";
  if (closes)
    head += "Connection: close\r\n";
  else if (version == 10)
    head += "Connection: keep-alive\r\n";
  head += "\r\n";
  return head;
}

HttpReply thrown_reply(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr)
    return full_reply("out of memory for this request");
  return error_reply(500, thrown.what());
}

HttpReply unpack_reply(const UnpackError& error) {
  switch (error.fault) {
    case UnpackFault::damaged:
      return error_reply(400, error.message);
    case UnpackFault::too_large:
      return error_reply(413, error.message);
    case UnpackFault::no_room:
      return full_reply(error.message);
  }
  return error_reply(500, error.message);
}

void pack_reply(HttpReply& reply, Coding coding) {
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(reply.body))};
  pieces.insert(pieces.end(), reply.blobs.begin(), reply.blobs.end());
  reply.body = pack(coding, pieces);
  reply.blobs.clear();
}

}  // namespace carillon::frontend
