#include "carillon/frontend/telemetry/spans.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "carillon/explain/story.h"
#include "carillon/frontend/telemetry/whole_us.h"
#include "carillon/graph/text.h"

namespace carillon::frontend {
namespace {

namespace otlp = opentelemetry::proto::trace::v1;
using controller::KeptCall;
using explain::ActionFacts;
using explain::never;
using schedule::ActionStatus;

constexpr std::size_t longest_text = 512;
// Shorter ones are not worth a span; what a request is read and looked up in takes some microseconds.
constexpr Duration least_size = std::chrono::microseconds{20};
// OTLP's `flags`: whether the parent is of another process is known, and that it is.
constexpr std::uint32_t parent_known = 0x100, parent_remote = 0x200;

std::string bytes_of(std::span<const std::uint8_t> id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

// Protobuf's strings are UTF-8, what clients send may be anything.
void say(OtlpSpan& span, const char* key, std::string_view value) {
  if (value.empty()) return;
  otlp::KeyValue& attribute = *span.add_attributes();
  attribute.set_key(key);
  attribute.mutable_value()->set_string_value(graph::printable(value, longest_text));
}
void say(OtlpSpan& span, const char* key, std::int64_t value) {
  otlp::KeyValue& attribute = *span.add_attributes();
  attribute.set_key(key);
  attribute.mutable_value()->set_int_value(value);
}

void fail_with(OtlpSpan& span, std::string_view message) {
  span.mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
  span.mutable_status()->set_message(graph::printable(message, longest_text));
}

struct Interval {
  TimePoint begin, end;
};

// The spans of one request: each is added with its parent's place.
class Tree {
 public:
  Tree(const AccessRecord& record, const SpanSources& sources, Duration unix_offset, TraceIds& ids)
      : record_(record), sources_(sources), unix_offset_(unix_offset), ids_(ids) {}

  std::vector<OtlpSpan> make() {
    const Interval whole{record_.began, std::max(record_.began, record_.ended)};
    const std::size_t root = add_root(whole);
    if (!record_.inferred) return std::move(spans_);
    if (record_.facts.number != 0 && !sources_.calls.empty()) {
      tell(spans_[root], sources_.calls.front());
      add_parts(root, whole, sources_.calls.front());
      return std::move(spans_);
    }
    tell_without_journal(spans_[root]);
    for (const KeptCall& step : sources_.calls) add_step(root, whole, step);
    return std::move(spans_);
  }

 private:
  std::uint64_t unix_ns(TimePoint t) const {
    return static_cast<std::uint64_t>((t.time_since_epoch() + unix_offset_).count());
  }

  void set_times(OtlpSpan& span, const Interval& when) const {
    span.set_start_time_unix_nano(unix_ns(when.begin));
    span.set_end_time_unix_nano(unix_ns(when.end));
  }

  std::size_t add_root(const Interval& when) {
    const TraceContext& trace = record_.trace;
    OtlpSpan& span = spans_.emplace_back();
    span.set_trace_id(bytes_of(trace.trace_id));
    span.set_span_id(bytes_of(trace.span_id));
    const bool begins = trace.parent_id == decltype(trace.parent_id){};
    if (!begins) span.set_parent_span_id(bytes_of(trace.parent_id));
    span.set_flags(trace.flags | parent_known | (begins || record_.of_stream ? 0 : parent_remote));
    span.set_kind(record_.of_stream ? OtlpSpan::SPAN_KIND_INTERNAL : OtlpSpan::SPAN_KIND_SERVER);
    span.set_name(root_name());
    set_times(span, when);
    tell_transport(span);
    const bool bad = record_.outcome == AccessOutcome::refused || record_.outcome == AccessOutcome::failed;
    if (bad) fail_with(span, root_message());
    return 0;
  }

  // Few of them: no path, which anybody may make up.
  std::string root_name() const {
    if (record_.inferred) return graph::printable("infer " + std::string(record_.facts.model.view()));
    if (record_.protocol == AccessRecord::Protocol::http)
      return record_.method.view().empty() ? "HTTP" : graph::printable(record_.method.view());
    const std::string_view path = record_.path.view();
    return graph::printable(path.substr(path.starts_with('/') ? 1 : 0));
  }

  std::string root_message() const {
    if (!record_.facts.error.view().empty() && record_.inferred)
      return std::string(record_.facts.error.view());
    return (record_.protocol == AccessRecord::Protocol::http ? "HTTP " : "gRPC ") +
           std::to_string(record_.status);
  }

  // Named as OpenTelemetry's semantic conventions name them.
  void tell_transport(OtlpSpan& span) const {
    if (record_.protocol == AccessRecord::Protocol::http) {
      say(span, "http.request.method", record_.method.view());
      // A query may hold what is nobody else's.
      const std::string_view path = record_.path.view();
      say(span, "url.path", path.substr(0, path.find('?')));
      say(span, "http.response.status_code", record_.status);
    } else {
      const std::string_view path = record_.path.view();
      const std::size_t slash = path.rfind('/');
      say(span, "rpc.system", "grpc");
      if (slash != std::string_view::npos && slash > 0) {
        say(span, "rpc.service", path.substr(1, slash - 1));
        say(span, "rpc.method", path.substr(slash + 1));
      }
      say(span, "rpc.grpc.status_code", record_.status);
    }
    const std::string_view peer = record_.peer.view();
    const std::size_t colon = peer.rfind(':');
    std::string_view host = peer.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    say(span, "client.address", host);
    std::int64_t port = 0;
    if (colon != std::string_view::npos)
      std::from_chars(peer.data() + colon + 1, peer.data() + peer.size(), port);
    if (port > 0) say(span, "client.port", port);
    say(span, "carillon.bytes_in", static_cast<std::int64_t>(record_.bytes_in));
    say(span, "carillon.bytes_out", static_cast<std::int64_t>(record_.bytes_out));
    say(span, "carillon.outcome", to_text(record_.outcome));
    say(span, "carillon.key", record_.key.view());
  }

  // What the answer told, of a request that is not in the journal itself.
  void tell_without_journal(OtlpSpan& span) const {
    const InferFacts& facts = record_.facts;
    say(span, "carillon.model", facts.model.view());
    say(span, "carillon.version", facts.version);
    say(span, "carillon.id", facts.id.view());
    if (facts.deadline != TimePoint::max())
      say(span, "carillon.deadline_us", whole_us(facts.deadline - facts.arrival));
    say(span, "carillon.text", facts.error.view());
    if (facts.would_take) say(span, "carillon.would_take_us", whole_us(*facts.would_take));
    if (facts.answered != TimePoint{})
      say(span, "carillon.took_us", whole_us(facts.answered - facts.arrival));
  }

  // As GET /v2/carillon/requests/ID names it (docs/explain.md).
  static void tell(OtlpSpan& span, const KeptCall& call) {
    const explain::RequestFacts& request = call.request;
    say(span, "carillon.number", static_cast<std::int64_t>(request.number));
    say(span, "carillon.model", request.model);
    say(span, "carillon.version", request.version);
    say(span, "carillon.id", request.id);
    say(span, "carillon.class", explain::name_of(request.cls));
    say(span, "carillon.priority", static_cast<std::int64_t>(request.priority));
    say(span, "carillon.application", request.application);
    say(span, "carillon.rows", request.rows);
    if (request.deadline != TimePoint::max()) {
      say(span, "carillon.deadline_us", whole_us(request.deadline - request.arrival));
      say(span, "carillon.deadline_from", explain::name_of(request.deadline_from));
    }
    say(span, "carillon.reason", explain::name_of(request.cause));
    say(span, "carillon.text", request.text);
    if (request.would_take) say(span, "carillon.would_take_us", whole_us(*request.would_take));
    if (const auto margin = explain::margin(request)) say(span, "carillon.margin_us", whole_us(*margin));
    if (request.retry_after) say(span, "carillon.retry_after_us", whole_us(*request.retry_after));
    if (request.ended != never) say(span, "carillon.took_us", whole_us(request.ended - request.arrival));
    const Interval waited = wait_of(call);
    if (!ran_elsewhere(call) && waited.end > waited.begin)
      say(span, "carillon.waited_us", whole_us(waited.end - waited.begin));
    say(span, "carillon.tries", std::max<std::int64_t>(request.tries, std::ssize(call.own)));
    if (call.own.empty()) return;
    const ActionFacts& last = call.own.back();
    say(span, "carillon.device", static_cast<std::int64_t>(last.device));
    say(span, "carillon.device_name", call.device_name);
    say(span, "carillon.batch", last.rows);
    say(span, "carillon.predicted_us", whole_us(last.predicted));
    if (last.preemptions > 0) {
      say(span, "carillon.preemptions", last.preemptions);
      say(span, "carillon.paused_us", whole_us(last.paused));
    }
  }

  static bool ran(const ActionFacts& action) {
    return action.status == ActionStatus::success && action.exec_start != never;
  }

  // It has outputs of an action that the journal does not have: of another host, in a cluster.
  static bool ran_elsewhere(const KeptCall& call) {
    const explain::Outcome outcome = call.request.outcome;
    return call.own.empty() && call.request.tries > 0 &&
           (outcome == explain::Outcome::on_time || outcome == explain::Outcome::late);
  }

  // From when its size was known until it ran, or was over.
  static Interval wait_of(const KeptCall& call) {
    const explain::RequestFacts& request = call.request;
    const TimePoint from = request.at_door != never  ? request.at_door
                           : request.handed != never ? request.handed
                                                     : request.arrival;
    TimePoint until = request.ended != never ? request.ended : from;
    if (!call.own.empty() && ran(call.own.back())) until = std::min(until, call.own.back().exec_start);
    return {from, until};
  }

  // Its place; none where nothing of it lies within its parent.
  std::optional<std::size_t> add(std::size_t parent, const Interval& within, std::string name,
                                 const Interval& when, Duration least = Duration{1}) {
    if (when.begin == never || when.end == never) return std::nullopt;
    const Interval cut{std::max(when.begin, within.begin), std::min(when.end, within.end)};
    if (cut.end - cut.begin < least) return std::nullopt;
    TraceContext own = record_.trace;
    ids_.give_span(own);
    OtlpSpan& span = spans_.emplace_back();
    span.set_trace_id(bytes_of(own.trace_id));
    span.set_span_id(bytes_of(own.span_id));
    span.set_parent_span_id(spans_[parent].span_id());
    span.set_flags(own.flags | parent_known);
    span.set_kind(OtlpSpan::SPAN_KIND_INTERNAL);
    span.set_name(std::move(name));
    set_times(span, cut);
    return spans_.size() - 1;
  }

  void add_step(std::size_t root, const Interval& whole, const KeptCall& call) {
    const explain::RequestFacts& request = call.request;
    const Interval when{request.arrival, request.ended != never ? request.ended : whole.end};
    const auto at = add(root, whole, "step " + graph::printable(request.model), when);
    if (!at) return;
    OtlpSpan& span = spans_[*at];
    tell(span, call);
    say(span, "carillon.outcome", explain::name_of(request.outcome));
    if (request.outcome == explain::Outcome::refused || request.outcome == explain::Outcome::failed)
      fail_with(span, request.text);
    add_parts(*at, {std::max(when.begin, whole.begin), std::min(when.end, whole.end)}, call);
  }

  // What a call went through.
  void add_parts(std::size_t parent, const Interval& within, const KeptCall& call) {
    const explain::RequestFacts& request = call.request;
    add(parent, within, "read", {request.arrival, request.handed});
    const Interval waited = wait_of(call);
    if (request.handed != never) add(parent, within, "size", {request.handed, waited.begin}, least_size);
    if (ran_elsewhere(call)) {
      add(parent, within, "answer", {request.ended, within.end});
      return;
    }
    add(parent, within, "queue", waited);
    add_loads(parent, within, call, waited);
    for (const ActionFacts& action : call.own)
      if (action.lost || (action.status && *action.status != ActionStatus::success))
        if (const auto at = add(parent, within, "tried", {action.sent, action.ended})) {
          tell_action(spans_[*at], action);
          fail_with(spans_[*at], action.lost ? "device lost" : schedule::name_of(*action.status));
        }
    if (call.own.empty() || !ran(call.own.back())) return;
    const ActionFacts& last = call.own.back();
    for (const auto& [name, when] : {std::pair("input", Interval{last.input_start, last.input_end}),
                                     std::pair("exec", Interval{last.exec_start, last.exec_end}),
                                     std::pair("output", Interval{last.output_start, last.output_end})})
      if (const auto at = add(parent, within, name, when)) tell_action(spans_[*at], last);
    const TimePoint done = last.output_end != never ? last.output_end : last.exec_end;
    add(parent, within, "answer", {done, within.end});
  }

  // LOADs of the call's model, onto the device where the call ran, as far as the call waited meanwhile.
  void add_loads(std::size_t parent, const Interval& within, const KeptCall& call, const Interval& waited) {
    for (const ActionFacts& load : sources_.loads) {
      if (load.model != call.request.model) continue;
      if (!call.own.empty() && load.device != call.own.back().device) continue;
      if (load.exec_start == never || load.exec_end == never) continue;
      const Interval both{std::max(load.exec_start, waited.begin), std::min(load.exec_end, waited.end)};
      if (both.end <= both.begin) continue;
      if (const auto at = add(parent, within, "load", both)) tell_action(spans_[*at], load);
    }
  }

  static void tell_action(OtlpSpan& span, const ActionFacts& action) {
    say(span, "carillon.device", static_cast<std::int64_t>(action.device));
    if (action.kind == schedule::ActionKind::infer) say(span, "carillon.batch", action.rows);
    say(span, "carillon.predicted_us", whole_us(action.predicted));
  }

  const AccessRecord& record_;
  const SpanSources& sources_;
  const Duration unix_offset_;
  TraceIds& ids_;
  std::vector<OtlpSpan> spans_;
};

}  // namespace

std::vector<OtlpSpan> spans_of(const AccessRecord& record, const SpanSources& sources, Duration unix_offset,
                               TraceIds& ids) {
  return Tree(record, sources, unix_offset, ids).make();
}

std::vector<OtlpSpan> spans_of(const explain::RowSpans& row, TraceIds& ids) {
  const auto unix_ns = [&](TimePoint t) {
    return static_cast<std::uint64_t>((t - row.of.unix_zero).count());
  };
  std::vector<OtlpSpan> out;
  TraceContext own = row.of.trace;
  const auto add = [&](std::string_view name, const std::string& parent, const Interval& when,
                       const std::string& failed) -> OtlpSpan& {
    ids.give_span(own);
    OtlpSpan& span = out.emplace_back();
    span.set_trace_id(bytes_of(own.trace_id));
    span.set_span_id(bytes_of(own.span_id));
    span.set_parent_span_id(parent);
    span.set_flags(own.flags | parent_known);
    span.set_kind(OtlpSpan::SPAN_KIND_INTERNAL);
    span.set_name(std::string(name));
    span.set_start_time_unix_nano(unix_ns(when.begin));
    span.set_end_time_unix_nano(unix_ns(when.end));
    if (!failed.empty()) fail_with(span, failed);
    return span;
  };
  const Interval whole{row.begin, std::max(row.begin, row.end)};
  OtlpSpan& root = add(row.name, bytes_of(row.of.trace.span_id), whole, row.failed);
  if (row.remote) {
    root.set_kind(OtlpSpan::SPAN_KIND_CONSUMER);
    root.set_flags(own.flags | parent_known | parent_remote);
  }
  say(root, "carillon.model", row.model);
  for (const auto& [name, value] : row.texts) say(root, std::string(name).c_str(), value);
  for (const auto& [name, value] : row.numbers) say(root, std::string(name).c_str(), value);
  if (row.remote) say(root, "carillon.clock_bound_us", whole_us(row.of.clock_bound));
  const std::string parent = root.span_id();
  for (const explain::RowSpans::Part& part : row.parts) {
    const Interval cut{std::max(part.begin, whole.begin), std::min(part.end, whole.end)};
    if (cut.end >= cut.begin) add(part.name, parent, cut, part.failed);  // some take no time: one decision
  }
  return out;
}

}  // namespace carillon::frontend
