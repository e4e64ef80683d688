#include "carillon/controller/calls/outcomes.h"

#include <algorithm>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {

Class class_of(const InferCall& call, Class model) {
  return call.class_given ? call.cls : model;
}

TimePoint deadline_of(const InferCall& call, const std::optional<Duration>& slo, Class model,
                      const std::optional<Duration>& by_default) {
  if (call.deadline != TimePoint::max() || call.due != TimePoint::max()) return call.deadline;
  if (!slo && class_of(call, model) == Class::best_effort) return TimePoint::max();
  const std::optional<Duration>& lasts = slo ? slo : by_default;
  return lasts ? saturating_add(call.arrival, *lasts) : TimePoint::max();
}

explain::Outcome fate_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::on_time:
      return explain::Outcome::on_time;
    case Outcome::late:
      return explain::Outcome::late;
    case Outcome::refused:
    case Outcome::shed:
      return explain::Outcome::refused;
    case Outcome::cancelled:
      return explain::Outcome::cancelled;
    case Outcome::invalid:
    case Outcome::failed:
      return explain::Outcome::failed;
  }
  CARILLON_ASSERT(false);
}

CallRecord Outcomes::record_of(const InferCall& call, std::uint64_t ticket, const ToldModel& model) const {
  CallRecord record =
      controller::record_of(call, ticket, model.name, model.version, class_of(call, model.cls),
                            deadline_of(call, model.slo, model.cls, default_deadline));
  if (record.deadline_from == explain::DeadlineFrom::none && record.deadline != TimePoint::max())
    record.deadline_from = model.slo ? explain::DeadlineFrom::slo : explain::DeadlineFrom::server;
  return record;
}

void Outcomes::end(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler handler,
                   const ToldModel& model, Ending ending, TimePoint now,
                   std::optional<TimePoint> decided) const {
  call->arrival = std::min(call->arrival, now);
  book.answered(call->model, ending.outcome, call->rows, call->arrival, now, {});
  if (journal != nullptr) {
    CallRecord record = record_of(*call, ticket, model);
    if (decided) record.decided = *decided;
    record.ended = now;
    record.outcome = fate_of(ending.outcome);
    record.cause = ending.cause;
    if (ending.would_take) record.would_take = *ending.would_take;
    if (ending.retry_after) record.retry_after = *ending.retry_after;
    say_message(record, ending.error.message);
    journal->put(record);
  }
  handler({.status = std::unexpected(std::move(ending.error)),
           .call = std::move(call),
           .finished = now,
           .would_take = ending.would_take,
           .retry_after = ending.retry_after,
           .number = journal != nullptr ? ticket : 0});
}

}  // namespace carillon::controller
