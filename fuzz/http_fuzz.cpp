#include "fuzz.h"

#include "carillon/base/trace_context.h"
#include "carillon/frontend/codec/json_check.h"
#include "carillon/frontend/http/compression.h"
#include "carillon/frontend/http/http_framing.h"
#include "carillon/frontend/http/http_routes.h"

// Texts of a request's header, packed bodies, and the second look at JSON.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  constexpr std::size_t limit = std::size_t{1} << 20;
  const auto text = fuzz::text_of(data, size);
  for (const char* const method : {"GET", "POST"})
    if (const auto route = frontend::find_route(method, text); !route)
      fuzz::must(!route.error().message.empty(), "an error says what is wrong");
  if (const auto wrong = frontend::check_framing({.hosts = 1, .transfer_encodings = {text}}))
    fuzz::must(!wrong->message.empty(), "an error says what is wrong");
  (void)frontend::accepted_coding(text);
  if (const auto trace = parse_traceparent(text)) {
    auto again = *trace;
    again.span_id = again.parent_id;
    fuzz::must(parse_traceparent(traceparent_text(again)).has_value(), "what is passed on is right");
  }
  if (is_tracestate(text)) fuzz::must(size <= tracestate_most, "no more is passed on than allowed");
  if (const auto unpacked = frontend::unpack(text, limit))
    fuzz::must(unpacked->size() <= limit, "no more is unpacked than allowed");
  const auto check = frontend::check_json(text);
  if (check.fault) fuzz::must(check.fault->at <= size, "a fault is within the text");
  return 0;
}
