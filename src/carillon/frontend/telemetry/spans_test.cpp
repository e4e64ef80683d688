#include "carillon/frontend/telemetry/spans.h"

#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/graph/text.h"

namespace carillon::frontend {
namespace {

using controller::KeptCall;
using explain::ActionFacts;
using schedule::ActionKind;
using schedule::ActionStatus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TimePoint at(Duration d) {
  return TimePoint{d};
}
constexpr Duration since_1970 = std::chrono::hours(24);

AccessRecord inference(AccessOutcome outcome = AccessOutcome::on_time) {
  AccessRecord record;
  record.protocol = AccessRecord::Protocol::http;
  record.peer = "[::1]:4711";
  record.key = "team-a";
  record.method = "POST";
  record.path = "/v2/models/m/infer?token=hush";
  record.status = outcome == AccessOutcome::refused ? 504 : 200;
  record.outcome = outcome;
  record.began = at(1ms);
  record.ended = at(100ms);
  record.inferred = true;
  record.facts.model = "m";
  record.facts.id = "mine\xff";
  record.facts.number = 7;
  record.trace = *parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  record.trace.span_id = {1, 2, 3, 4, 5, 6, 7, 8};
  return record;
}

ActionFacts run(std::uint32_t device, TimePoint start, TimePoint end) {
  ActionFacts action;
  action.entry = 3;
  action.kind = ActionKind::infer;
  action.device = device;
  action.model = "m";
  action.rows = 4;
  action.sent = start - 5ms;
  action.predicted = 9ms;
  action.status = ActionStatus::success;
  action.input_start = start - 4ms;
  action.input_end = start - 1ms;
  action.exec_start = start;
  action.exec_end = end;
  action.output_start = end;
  action.output_end = end + 2ms;
  action.ended = end + 3ms;
  return action;
}

KeptCall call_of(std::vector<ActionFacts> own) {
  KeptCall call;
  call.request.number = 7;
  call.request.id = "mine\xff";
  call.request.model = "m";
  call.request.version = 3;
  call.request.arrival = at(1ms);
  call.request.handed = at(2ms);
  call.request.at_door = at(2ms);
  call.request.decided = at(3ms);
  call.request.ended = at(95ms);
  call.request.deadline = at(201ms);
  call.request.deadline_from = explain::DeadlineFrom::timeout;
  call.request.outcome = explain::Outcome::on_time;
  call.device_name = "cpu";
  call.own = std::move(own);
  return call;
}

std::map<std::string, std::string> attributes(const OtlpSpan& span) {
  std::map<std::string, std::string> out;
  for (const auto& attribute : span.attributes())
    out[attribute.key()] = attribute.value().has_string_value()
                               ? attribute.value().string_value()
                               : std::to_string(attribute.value().int_value());
  return out;
}

std::vector<std::string> names(const std::vector<OtlpSpan>& spans) {
  std::vector<std::string> out;
  for (const OtlpSpan& span : spans) out.push_back(span.name());
  return out;
}

// Milliseconds on the timeline, as "begin-end".
std::string when(const OtlpSpan& span) {
  const auto ms = [](std::uint64_t unix_ns) {
    return std::to_string((static_cast<std::int64_t>(unix_ns) - since_1970.count()) / 1'000'000);
  };
  return ms(span.start_time_unix_nano()) + "-" + ms(span.end_time_unix_nano());
}

TraceIds& ids() {
  static TraceIds made(1);
  return made;
}

TEST(Spans, OfARequestAreItAndItsParts) {
  const auto spans = spans_of(inference(), {.calls = {call_of({run(0, at(50ms), at(90ms))})}, .loads = {}},
                              since_1970, ids());
  EXPECT_THAT(names(spans), ElementsAre("infer m", "read", "queue", "input", "exec", "output", "answer"));
  std::vector<std::string> times;
  for (const OtlpSpan& span : spans) times.push_back(when(span));
  EXPECT_THAT(times, ElementsAre("1-100", "1-2", "2-50", "46-49", "50-90", "90-92", "92-100"));
  std::set<std::string> different;
  for (const OtlpSpan& span : spans) {
    EXPECT_EQ(span.trace_id().size(), 16U);
    EXPECT_EQ(span.span_id().size(), 8U);
    different.insert(span.span_id());
  }
  EXPECT_EQ(different.size(), spans.size());
  EXPECT_EQ(spans[0].span_id(), std::string("\1\2\3\4\5\6\7\10"));
  EXPECT_EQ(spans[0].parent_span_id(), std::string("\x00\xf0\x67\xaa\x0b\xa9\x02\xb7", 8));
  EXPECT_EQ(spans[0].kind(), OtlpSpan::SPAN_KIND_SERVER);
  EXPECT_EQ(spans[0].flags(), 0x301U);
  EXPECT_EQ(spans[4].parent_span_id(), spans[0].span_id());
  EXPECT_EQ(spans[4].flags(), 0x101U);
}

TEST(Spans, TellTheStory) {
  const auto spans = spans_of(inference(), {.calls = {call_of({run(2, at(50ms), at(90ms))})}, .loads = {}},
                              since_1970, ids());
  auto told = attributes(spans[0]);
  const std::map<std::string, std::string> wanted{{"http.request.method", "POST"},
                                                  {"url.path", "/v2/models/m/infer"},
                                                  {"http.response.status_code", "200"},
                                                  {"client.address", "::1"},
                                                  {"client.port", "4711"},
                                                  {"carillon.outcome", "on_time"},
                                                  {"carillon.key", "team-a"},
                                                  {"carillon.number", "7"},
                                                  {"carillon.id", "mine\\xff"},
                                                  {"carillon.version", "3"},
                                                  {"carillon.class", "normal"},
                                                  {"carillon.deadline_us", "200000"},
                                                  {"carillon.deadline_from", "timeout"},
                                                  {"carillon.took_us", "94000"},
                                                  {"carillon.waited_us", "48000"},
                                                  {"carillon.device", "2"},
                                                  {"carillon.device_name", "cpu"},
                                                  {"carillon.batch", "4"},
                                                  {"carillon.predicted_us", "9000"}};
  for (const auto& [name, value] : wanted) EXPECT_EQ(told[name], value) << name;
  EXPECT_FALSE(told.contains("carillon.reason"));
  EXPECT_EQ(attributes(spans[4])["carillon.batch"], "4");
  for (const OtlpSpan& span : spans) EXPECT_THAT(span.DebugString(), ::testing::Not(HasSubstr("hush")));
}

TEST(Spans, OfARefusalSayWhy) {
  AccessRecord record = inference(AccessOutcome::refused);
  record.facts.error = "cannot finish by its deadline";
  KeptCall call = call_of({});
  call.request.outcome = explain::Outcome::refused;
  call.request.cause = explain::Cause::cannot_finish;
  call.request.text = "cannot finish by its deadline";
  call.request.would_take = 300ms;
  const auto spans = spans_of(record, {.calls = {call}, .loads = {}}, since_1970, ids());
  EXPECT_THAT(names(spans), ElementsAre("infer m", "read", "queue"));
  EXPECT_EQ(spans[0].status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(spans[0].status().message(), "cannot finish by its deadline");
  auto told = attributes(spans[0]);
  EXPECT_EQ(told["carillon.reason"], "cannot_finish");
  EXPECT_EQ(told["carillon.would_take_us"], "300000");
}

TEST(Spans, OfOutcomesOtherThanOurFaultsAreNoErrors) {
  for (const auto& [outcome, bad] :
       {std::pair(AccessOutcome::ok, false), std::pair(AccessOutcome::late, false),
        std::pair(AccessOutcome::cancelled, false), std::pair(AccessOutcome::invalid, false),
        std::pair(AccessOutcome::refused, true), std::pair(AccessOutcome::failed, true)}) {
    AccessRecord record = inference(outcome);
    record.inferred = false;
    const auto spans = spans_of(record, {}, since_1970, ids());
    ASSERT_EQ(spans.size(), 1U);
    EXPECT_EQ(spans[0].name(), "POST");
    EXPECT_EQ(spans[0].status().code() == opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR, bad)
        << to_text(outcome);
  }
}

TEST(Spans, HaveLoadsOfTheirModelAndDeviceAsLongAsTheyWereWaitedFor) {
  const auto load = [](std::uint32_t device, const std::string& model, TimePoint start, TimePoint end) {
    ActionFacts action;
    action.kind = ActionKind::load;
    action.device = device;
    action.model = model;
    action.exec_start = start;
    action.exec_end = end;
    return action;
  };
  const auto spans = spans_of(inference(),
                              {.calls = {call_of({run(0, at(50ms), at(90ms))})},
                               .loads = {load(0, "m", at(0ms), at(30ms)), load(1, "m", at(5ms), at(9ms)),
                                         load(0, "n", at(5ms), at(9ms)), load(0, "m", at(60ms), at(70ms)),
                                         load(0, "m", at(5ms), explain::never)}},
                              since_1970, ids());
  int loads = 0;
  for (const OtlpSpan& span : spans)
    if (span.name() == "load") {
      ++loads;
      EXPECT_EQ(when(span), "2-30");
    }
  EXPECT_EQ(loads, 1);
}

TEST(Spans, HaveWhatWasTriedInVain) {
  ActionFacts vain = run(0, at(20ms), at(30ms));
  vain.status = ActionStatus::too_late;
  ActionFacts under_way = run(0, at(40ms), at(90ms));
  under_way.status.reset();
  const auto spans =
      spans_of(inference(), {.calls = {call_of({vain, under_way})}, .loads = {}}, since_1970, ids());
  EXPECT_THAT(names(spans), ElementsAre("infer m", "read", "queue", "tried"));
  EXPECT_EQ(spans[3].status().message(), "too_late");
}

// What clocks and threads make of it: a step may end after the answer.
TEST(Spans, LieWithinTheirParents) {
  const auto spans = spans_of(inference(), {.calls = {call_of({run(0, at(50ms), at(99ms))})}, .loads = {}},
                              since_1970, ids());
  for (const OtlpSpan& span : spans) {
    EXPECT_GE(span.start_time_unix_nano(), spans[0].start_time_unix_nano());
    EXPECT_LE(span.end_time_unix_nano(), spans[0].end_time_unix_nano()) << span.name();
    EXPECT_LE(span.start_time_unix_nano(), span.end_time_unix_nano());
  }
}

TEST(Spans, OfAnEnsembleHaveItsSteps) {
  AccessRecord record = inference();
  record.facts.number = 0;
  KeptCall first = call_of({run(0, at(10ms), at(20ms))});
  first.request.ended = at(25ms);
  KeptCall second = call_of({});
  second.request.model = "n";
  second.request.arrival = second.request.handed = second.request.at_door = at(26ms);
  second.request.outcome = explain::Outcome::refused;
  second.request.text = "no room";
  const auto spans = spans_of(record, {.calls = {first, second}, .loads = {}}, since_1970, ids());
  EXPECT_THAT(names(spans), ElementsAre("infer m", "step m", "read", "queue", "input", "exec", "output",
                                        "answer", "step n", "queue"));
  EXPECT_EQ(spans[1].parent_span_id(), spans[0].span_id());
  EXPECT_EQ(spans[5].parent_span_id(), spans[1].span_id());
  EXPECT_EQ(when(spans[7]), "22-25");
  EXPECT_EQ(spans[8].status().message(), "no room");
}

TEST(Spans, OfAStreamsMessageAreBelowTheStream) {
  AccessRecord record = inference();
  record.of_stream = true;
  record.protocol = AccessRecord::Protocol::grpc;
  record.path = "/inference.GRPCInferenceService/ModelStreamInfer";
  const auto spans = spans_of(record, {}, since_1970, ids());
  EXPECT_EQ(spans[0].kind(), OtlpSpan::SPAN_KIND_INTERNAL);
  EXPECT_EQ(spans[0].flags(), 0x101U);
  auto told = attributes(spans[0]);
  EXPECT_EQ(told["rpc.service"], "inference.GRPCInferenceService");
  EXPECT_EQ(told["rpc.method"], "ModelStreamInfer");
}

// As protobuf on the wire: the public protocol's numbers, written out.
TEST(Spans, HaveThePublicNumbers) {
  opentelemetry::proto::trace::v1::ExportTraceServiceRequest request;
  auto& resource = *request.add_resource_spans();
  auto& scope = *resource.add_scope_spans();
  scope.mutable_scope()->set_name("c");
  OtlpSpan& span = *scope.add_spans();
  span.set_name("n");
  span.set_kind(OtlpSpan::SPAN_KIND_SERVER);
  span.set_start_time_unix_nano(1);
  span.mutable_status()->set_code(opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
  auto& attribute = *span.add_attributes();
  attribute.set_key("k");
  attribute.mutable_value()->set_int_value(5);
  const std::string wanted(
      "\x0a\x24"  // resource_spans
      "\x12\x22"  // scope_spans
      "\x0a\x03\x0a\x01"
      "c"                                     // scope, its name
      "\x12\x1b"                              // spans
      "\x2a\x01n"                             // name
      "\x30\x02"                              // kind
      "\x39\x01\x00\x00\x00\x00\x00\x00\x00"  // start_time_unix_nano
      "\x4a\x07\x0a\x01k\x12\x02\x18\x05"     // attributes
      "\x7a\x02\x18\x02",                     // status
      38);
  EXPECT_EQ(::testing::PrintToString(request.SerializeAsString()), ::testing::PrintToString(wanted));
}

// In a cluster: the journal of a frontend has no actions.
TEST(Spans, OfACallThatRanElsewhereHaveNoQueue) {
  KeptCall call = call_of({});
  call.request.tries = 1;
  const auto spans = spans_of(inference(), {.calls = {call}, .loads = {}}, since_1970, ids());
  EXPECT_THAT(names(spans), ElementsAre("infer m", "read", "answer"));
  EXPECT_EQ(when(spans[2]), "95-100");
  EXPECT_FALSE(attributes(spans[0]).contains("carillon.waited_us"));
}

TEST(Spans, OfARowAreBelowItsRequestByTheFrontendsClock) {
  explain::RowSpans row;
  row.of.trace = inference().trace;
  row.of.unix_zero = at(0ms) - since_1970 + 1s;  // this host's clock is a second ahead
  row.of.clock_bound = 40us;
  row.name = "work";
  row.remote = true;
  row.model = "m";
  row.begin = at(1010ms);
  row.begin_part("pull", at(1010ms));
  row.begin_part("window", at(1012ms));
  row.end_part(at(1015ms), "too_late");
  row.add_part("exec", at(1015ms), at(2000ms));
  row.add_part("none", at(1015ms), at(1015ms));
  row.say("carillon.batch", std::int64_t{3});
  row.say("carillon.batch", std::int64_t{4});
  row.finish(at(1020ms));
  const auto spans = spans_of(row, ids());
  EXPECT_THAT(names(spans), ElementsAre("work", "pull", "window", "exec"));
  std::vector<std::string> times;
  for (const OtlpSpan& span : spans) times.push_back(when(span));
  EXPECT_THAT(times, ElementsAre("10-20", "10-12", "12-15", "15-20"));
  EXPECT_EQ(spans[0].parent_span_id(), std::string("\1\2\3\4\5\6\7\10"));
  EXPECT_EQ(spans[0].flags(), 0x301U);
  EXPECT_EQ(spans[0].kind(), OtlpSpan::SPAN_KIND_CONSUMER);
  EXPECT_EQ(spans[3].parent_span_id(), spans[0].span_id());
  EXPECT_EQ(spans[3].trace_id(), spans[0].trace_id());
  EXPECT_EQ(spans[2].status().message(), "too_late");
  auto told = attributes(spans[0]);
  EXPECT_EQ(told["carillon.batch"], "4");
  EXPECT_EQ(told["carillon.model"], "m");
  EXPECT_EQ(told["carillon.clock_bound_us"], "40");
}

}  // namespace
}  // namespace carillon::frontend
