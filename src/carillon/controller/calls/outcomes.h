#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/controller/calls/book.h"
#include "carillon/controller/calls/journal.h"
#include "carillon/controller/calls/service.h"
#include "carillon/explain/facts.h"

namespace carillon::controller {

// By when the answer of a call is worth having: its own deadline, or, where it has none, that of its model's
// SLO, else `by_default`, but not for best effort nor where a queue policy delays; max() where there is none.
// `model`: its class.
Class class_of(const InferCall& call, Class model);
TimePoint deadline_of(const InferCall& call, const std::optional<Duration>& slo, Class model,
                      const std::optional<Duration>& by_default);

// As the journal has it.
explain::Outcome fate_of(Outcome outcome);

// What is told of a model's calls.
struct ToldModel {
  NameNumber name;  // in the journal, where there is one
  std::int64_t version = 1;
  std::optional<Duration> slo;
  Class cls = Class::normal;
};

// How a call ends that gets no result.
struct Ending {
  Outcome outcome{};
  explain::Cause cause{};
  Error error;
  std::optional<Duration> would_take = std::nullopt;
  std::optional<Duration> retry_after = std::nullopt;
};

// Answers calls of which no row was offered. A call is counted and noted before its handler is told, so that
// a client who has the answer finds both. Safe from any thread.
struct Outcomes {
  Book& book;
  Journal* journal = nullptr;  // null: there is none
  std::optional<Duration> default_deadline;

  CallRecord record_of(const InferCall& call, std::uint64_t ticket, const ToldModel& model) const;
  // `decided`: when whoever decides heard of it; none: it came to its end before.
  void end(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler handler,
           const ToldModel& model, Ending ending, TimePoint now, std::optional<TimePoint> decided = {}) const;
};

}  // namespace carillon::controller
