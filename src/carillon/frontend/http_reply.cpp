#include "carillon/frontend/http_reply.h"

#include <new>

#include "carillon/frontend/infer_codec_json.h"
#include "carillon/frontend/status.h"

namespace carillon::frontend {

HttpReply error_reply(int status, std::string_view message) {
  return {.status = status, .body = error_json(message)};
}

HttpReply error_reply(const Error& error) {
  return error_reply(http_status(error.code), error.message);
}

HttpReply full_reply(std::string_view message) {
  auto reply = error_reply(503, message);
  reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

HttpReply thrown_reply(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr)
    return error_reply(503, "out of memory for this request");
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
