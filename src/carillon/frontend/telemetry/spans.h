#pragma once

#include <vector>

#include "otlp.pb.h"

#include "carillon/base/time.h"
#include "carillon/base/trace_context.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/explain/row_spans.h"
#include "carillon/frontend/telemetry/access_record.h"

namespace carillon::frontend {

using OtlpSpan = opentelemetry::proto::trace::v1::Span;

// What the journal keeps of a request: of one that a model answered, one call; of one to an ensemble, its
// steps. Empty: the request never came to the scheduler, or is not kept any more.
struct SpanSources {
  std::vector<controller::KeptCall> calls;
  // LOADs that may have been what a call waited for, in any order; the others are passed over.
  std::vector<explain::ActionFacts> loads;
};

// The spans of one request: first the server's, which has the id that the client was told, then its children
// (docs/operations.md, "Traces"), each within its parent. `unix_offset`: what to add to a TimePoint to get
// Unix time. `ids` makes the children's.
std::vector<OtlpSpan> spans_of(const AccessRecord& record, const SpanSources& sources, Duration unix_offset,
                               TraceIds& ids);

// Those of a row in a cluster: first the process's own, below the request's, then its parts, each within it.
// Times are by the Unix clock of the request's frontend.
std::vector<OtlpSpan> spans_of(const explain::RowSpans& row, TraceIds& ids);

}  // namespace carillon::frontend
