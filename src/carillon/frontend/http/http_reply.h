#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/memory/byte_budget.h"
#include "carillon/frontend/memory/side_room.h"
#include "carillon/frontend/telemetry/access_record.h"

namespace carillon::frontend {

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::vector<std::span<const std::byte>> blobs;  // sent behind the body, not copied
  std::shared_ptr<void> keeps;                    // what the blobs point into
  bool may_pack = false;  // packed where the client takes that; some clients cannot read all packed answers
  // Of an inference: refused (503) where the bytes in flight have no room for it. Others are where SideBudget
  // has none.
  bool may_refuse = false;
  Reservation room;                   // held until it is sent
  SideRoom side;                      // likewise, in its place, of what is no inference
  std::unique_ptr<InferFacts> facts;  // of an inference, for its record; null: none, or nobody wants it
};

// {"error":"..."} with the status of `error`; as full_reply() where it is for want of room.
HttpReply error_reply(const Error& error);
HttpReply error_reply(int status, std::string_view message);
// 503, and that the client may come back in a second.
HttpReply full_reply(std::string_view message);
// 401, 403 or 429, and what goes with it.
HttpReply denial_reply(const Denial& denial);
// Libraries and the allocator throw; a connection must not take the server with it.
HttpReply thrown_reply(const std::exception& thrown);
// Of a body that could not be unpacked.
HttpReply unpack_reply(const UnpackError& error);

// The status line and the fields of `reply`, whose body has `size` bytes. `packed`: how the body is packed
// already.
std::string reply_head(const HttpReply& reply, std::size_t size, unsigned version,
                       std::optional<Coding> packed, bool closes);

// Body and blobs become one packed body.
void pack_reply(HttpReply& reply, Coding coding);

}  // namespace carillon::frontend
