#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "carillon/base/time.h"
#include "carillon/base/trace_context.h"
#include "carillon/frontend/access/guard.h"
#include "carillon/frontend/codec/padded_bytes.h"
#include "carillon/frontend/http/http_reply.h"
#include "carillon/frontend/memory/byte_budget.h"
#include "carillon/frontend/memory/parse_room.h"

namespace carillon::frontend {

// What of a request is known before its body is read; as long as the call.
struct HttpHead {
  std::string_view method;  // "GET", also for HEAD
  std::string_view target;
  Credentials credentials;
  std::string_view fetch_site =
      {};  // header Sec-Fetch-Site: whose page a browser asks for; empty: no browser
};

struct HttpRequest {
  std::string method;  // "GET", also for HEAD: the answer's body is left out behind the handler
  std::string target;  // as sent: "/v2/models/a%20b?x=1"
  std::optional<std::string> inference_header_length;
  std::string accept;  // the header, as it was sent
  PaddedBytes body;    // unpacked
  // The body's share of what may be in flight; to be kept as long as what was made of the body.
  Reservation room;
  // Of large JSON: its place in the room where it is read; null: it has none.
  std::unique_ptr<ParseRoom::Admission> admitted;
  std::shared_ptr<Caller> caller;  // what admit() gave
  Duration waited{0};              // since it was here as a whole
  bool waited_for_model = false;   // while that was loaded (ModelWaits)
  TraceContext trace;
};

// Makes a reply on the connection's thread, so that whoever delivers it need not.
using ReplyMaker = std::move_only_function<HttpReply()>;

// Brings the reply that was not there when handle() returned. Any thread, at most once, also after the server
// has stopped (then nothing happens). Never blocks for long.
using Deliver = std::move_only_function<void(ReplyMaker)>;

// The reply comes later. `cancel` is called, at most once and on the connection's thread, when the client
// goes first; the reply may still be delivered then.
struct Deferred {
  std::move_only_function<void()> cancel;
};

// What a server does with requests. Called from several threads at once: the server's, and for large bodies
// the commons' heavy ones.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Whose the request is (may be null), or the answer with which it is refused before its body is read. On
  // the connection's thread.
  virtual std::expected<std::shared_ptr<Caller>, HttpReply> admit(const HttpHead&) { return nullptr; }
  virtual std::variant<HttpReply, Deferred> handle(HttpRequest request, Deliver deliver) = 0;
};

}  // namespace carillon::frontend
