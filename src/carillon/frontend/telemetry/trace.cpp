#include "carillon/frontend/telemetry/trace.h"

#include <random>

namespace carillon::frontend {
namespace {

TraceIds& ids() {
  static thread_local TraceIds of_thread(trace_seed());
  return of_thread;
}

}  // namespace

std::uint64_t trace_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

TraceContext join_trace(std::string_view traceparent, double share) {
  if (!traceparent.empty()) {
    if (auto trace = parse_traceparent(traceparent)) {
      ids().give_span(*trace);
      return *trace;
    }
  }
  return share > 0 && ids().chosen(share) ? ids().begin() : TraceContext();
}

TraceContext below(const TraceContext& trace) {
  if (!trace.there()) return trace;
  TraceContext own = trace;
  own.parent_id = trace.span_id;
  ids().give_span(own);
  return own;
}

}  // namespace carillon::frontend
