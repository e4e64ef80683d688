#pragma once

#include <cstdint>
#include <string_view>

#include "carillon/base/trace_context.h"

namespace carillon::frontend {

inline constexpr const char* traceparent_key = "traceparent";  // a header, and metadata
inline constexpr const char* tracestate_key = "tracestate";

// For ids that must differ between servers: another each time, so no run can be repeated by it.
std::uint64_t trace_seed();

// The trace of a request whose caller sent this traceparent (empty: none, or several), with a span of ours.
// One that sent none that is good begins a trace of its own where it is among `share` of those. Any thread;
// neither locks nor asks the system for anything.
TraceContext join_trace(std::string_view traceparent, double share);

// A span of its own, below that of `trace`; where that is none, none.
TraceContext below(const TraceContext& trace);

}  // namespace carillon::frontend
