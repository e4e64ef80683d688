#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/time.h"
#include "carillon/explain/terms.h"
#include "carillon/schedule/action.h"
#include "carillon/workload/request.h"

// What is known of single requests and of the actions that they were part of: from a server's journal or from
// a log of decisions. Times are points of one timeline; min() where something did not happen.
namespace carillon::explain {

constexpr TimePoint never = TimePoint::min();

// One action of a device.
struct ActionFacts {
  std::uint64_t entry = 0;  // names it here
  schedule::ActionKind kind{};
  bool again = false;  // an INFER that runs an answered request again, to learn what it takes
  std::uint32_t device = 0;
  std::string model;
  int rows = 0;  // the batch
  TimePoint sent;
  Window window{TimePoint::min(), TimePoint::max()};
  Duration predicted{0};  // of EXEC, or of LOAD's copy
  // None: it has not ended, or its device went.
  std::optional<schedule::ActionStatus> status;
  bool lost = false;        // its device went
  TimePoint ended = never;  // when the controller heard of it
  TimePoint input_start = never, input_end = never;
  TimePoint exec_start = never, exec_end = never;  // or LOAD's copy
  TimePoint output_start = never, output_end = never;
  Duration paused{0};
  int preemptions = 0;
  std::vector<std::uint64_t> requests;  // their numbers, each once; the first of them where they are many

  bool ran() const { return exec_start != never && exec_end > exec_start; }
};

// What was expected when a request was refused.
struct Expectation {
  Duration exec{0};  // of the model's smallest batch
  int batch = 0;
  int devices = 0;           // alive
  int holding = 0;           // of these: have the model, or need not
  std::uint32_t device = 0;  // of those that hold it, else of all: the one with least to do
  Duration busy{0};          // what it has to do
  int actions = 0;           // in so many actions
  bool loading = false;      // the model, anywhere
};

struct RequestFacts {
  std::uint64_t number = 0;
  std::string id, application, key, trace;
  std::string model;
  std::int64_t version = 0;  // 0: not known
  Class cls = Class::normal;
  std::uint32_t priority = 0;
  int rows = 1;
  std::uint64_t log_request = 0;     // the first of them, as a log names it
  std::int64_t arrived_unix_us = 0;  // 0: not known
  TimePoint arrival;
  TimePoint deadline = TimePoint::max();
  DeadlineFrom deadline_from = DeadlineFrom::none;
  TimePoint handed = never;   // to the controller: its body was read
  TimePoint at_door = never;  // its size was there
  TimePoint decided = never;  // the scheduler heard of it
  TimePoint ended = never;    // answered
  Outcome outcome = Outcome::open;
  Cause cause = Cause::none;
  std::string text;  // what the client was told
  std::optional<Duration> would_take, retry_after;
  std::optional<Expectation> expected;
  int tries = 0;  // actions that it was part of
};

}  // namespace carillon::explain
