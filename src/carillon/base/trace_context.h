#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/random.h"

namespace carillon {

// Where a request stands in a distributed trace (W3C Trace Context): the trace, the caller's span in it, and
// the span that is the request's here. Small, and without anything to allocate: it travels with a request.
struct TraceContext {
  std::array<std::uint8_t, 16> trace_id{};  // all zero: the request is in no trace
  std::array<std::uint8_t, 8> parent_id{};  // all zero: the trace begins here
  std::array<std::uint8_t, 8> span_id{};    // ours
  std::uint8_t flags = 0;                   // of version 00: bit 0, sampled

  bool there() const { return trace_id != decltype(trace_id){}; }
  bool sampled() const { return (flags & 1U) != 0; }
  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// What a caller's `traceparent` says; our span is still to be given. Nothing for one that is not well-formed
// (section 3.2: then the caller is as one that sent none), which a zero id, an upper-case digit, version ff
// and an unknown part behind a version 00 are. Of later versions what version 00 has is read.
std::optional<TraceContext> parse_traceparent(std::string_view text);

// A `traceparent` of version 00 for whoever is to know of our span.
inline constexpr std::size_t traceparent_size = 55;
std::array<char, traceparent_size> traceparent_of(const TraceContext& trace);
inline std::string traceparent_text(const TraceContext& trace) {
  const auto text = traceparent_of(trace);
  return {text.data(), text.size()};
}

// Whether `text` is a list of tracestate members that may be passed on (section 3.3): 32 at most, each key
// once. Longer ones than tracestate_most are not passed on.
inline constexpr std::size_t tracestate_most = 512;
bool is_tracestate(std::string_view text);

// Makes ids that others hardly make, too: of random numbers, without asking the system for any. Not safe from
// several threads.
class TraceIds {
 public:
  explicit TraceIds(std::uint64_t seed) : random_(seed) {}

  void give_span(TraceContext& trace);
  // A trace that begins here, and is sampled.
  TraceContext begin();
  // Whether a request that is in no trace is to begin one, where so many of them are.
  bool chosen(double share) { return share > 0 && (share >= 1 || random_.uniform() < share); }

 private:
  Random random_;
};

}  // namespace carillon
