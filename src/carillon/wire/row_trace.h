#pragma once

#include "carillon/base/time.h"
#include "carillon/base/trace_context.h"

namespace carillon::wire {

// The place of a row in its request's trace, as hosts tell each other. Only rows of sampled requests have it.
//
// `unix_zero` lets all hosts tell times by the frontend's Unix clock: the Unix time of a TimePoint is its
// distance from `unix_zero`. Each host that passes the trace on has converted `unix_zero` to its own clock.
struct RowTrace {
  TraceContext trace;       // its span is the request's, at the frontend: the parent of other hosts' spans
  TimePoint unix_zero;      // when the frontend's Unix time was 0
  Duration clock_bound{0};  // by how much `unix_zero` may be wrong on this host
  friend bool operator==(const RowTrace&, const RowTrace&) = default;
};

}  // namespace carillon::wire
