#include "carillon/frontend/telemetry/access_record.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <nlohmann/json.hpp>

#include "carillon/frontend/telemetry/whole_us.h"

namespace carillon::frontend {
namespace {

// RFC 3339, in UTC.
std::string time_text(Duration since_epoch) {
  const std::int64_t us = whole_us(since_epoch);
  const std::time_t seconds = us / 1'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.", &utc);
  const std::string fraction = std::to_string(1'000'000 + us % 1'000'000);
  return std::string(text, size) + fraction.substr(1) + "Z";
}

}  // namespace

std::string_view to_text(AccessOutcome outcome) {
  switch (outcome) {
    case AccessOutcome::ok:
      return "ok";
    case AccessOutcome::on_time:
      return "on_time";
    case AccessOutcome::late:
      return "late";
    case AccessOutcome::refused:
      return "refused";
    case AccessOutcome::cancelled:
      return "cancelled";
    case AccessOutcome::invalid:
      return "invalid";
    case AccessOutcome::failed:
      return "failed";
  }
  return "failed";
}

AccessOutcome outcome_of_http(int status) {
  if (status < 400) return AccessOutcome::ok;
  if (status == 499) return AccessOutcome::cancelled;
  if (status == 429 || status == 503 || status == 504) return AccessOutcome::refused;
  return status < 500 || status == 501 ? AccessOutcome::invalid : AccessOutcome::failed;
}

AccessOutcome outcome_of_grpc(int code) {
  switch (code) {
    case 0:
      return AccessOutcome::ok;
    case 1:  // CANCELLED
      return AccessOutcome::cancelled;
    case 4:   // DEADLINE_EXCEEDED
    case 8:   // RESOURCE_EXHAUSTED
    case 14:  // UNAVAILABLE
      return AccessOutcome::refused;
    case 2:   // UNKNOWN
    case 10:  // ABORTED
    case 13:  // INTERNAL
    case 15:  // DATA_LOSS
      return AccessOutcome::failed;
    default:
      return AccessOutcome::invalid;
  }
}

InferFacts facts_of(const controller::ModelView& model, std::string_view id, TimePoint arrival,
                    TimePoint deadline) {
  InferFacts facts;
  facts.model = model.name;
  facts.id = id;
  facts.version = model.version;
  facts.arrival = arrival;
  facts.deadline = deadline;
  if (deadline == TimePoint::max() && model.config.slo)
    facts.deadline = saturating_add(arrival, *model.config.slo);
  return facts;
}

void add_answer(InferFacts& facts, const controller::InferAnswer& answer) {
  facts.answered = answer.finished;
  facts.would_take = answer.would_take;
  facts.number = answer.number;
  facts.step_count = std::min(answer.steps.size(), facts.steps.size());
  std::copy_n(answer.steps.begin(), facts.step_count, facts.steps.begin());
  if (!answer.status) facts.error = answer.status.error().message;
  if (answer.status)
    facts.outcome = answer.finished <= facts.deadline ? AccessOutcome::on_time : AccessOutcome::late;
}

std::string access_line(const AccessRecord& record, Duration unix_offset) {
  nlohmann::ordered_json line;
  const auto text = [&](const char* name, std::string_view value) {
    if (!value.empty()) line[name] = value;
  };
  line["time"] = time_text(record.began.time_since_epoch() + unix_offset);
  line["protocol"] = record.protocol == AccessRecord::Protocol::http ? "http" : "grpc";
  text("peer", record.peer.view());
  text("key", record.key.view());
  text("method", record.method.view());
  text("path", record.path.view());
  line["status"] = record.status;
  line["outcome"] = to_text(record.outcome);
  line["bytes_in"] = record.bytes_in;
  line["bytes_out"] = record.bytes_out;
  line["duration_us"] = whole_us(record.ended - record.began);
  if (record.inferred) {
    const InferFacts& facts = record.facts;
    text("model", facts.model.view());
    line["version"] = facts.version;
    text("id", facts.id.view());
    if (facts.answered != TimePoint{}) line["service_us"] = whole_us(facts.answered - facts.arrival);
    if (facts.deadline != TimePoint::max()) line["deadline_us"] = whole_us(facts.deadline - facts.arrival);
    if (facts.would_take) line["would_take_us"] = whole_us(*facts.would_take);
  }
  if (record.trace.there()) {
    const std::string trace = traceparent_text(record.trace);
    line["trace_id"] = trace.substr(3, 32);
    line["span_id"] = trace.substr(36, 16);
    line["sampled"] = record.trace.sampled();
  }
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace carillon::frontend
