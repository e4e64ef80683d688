#include "carillon/controller/calls/holder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/queue_rules.h"
#include "carillon/wire/application.h"

namespace carillon::controller {

using ledger::ActionStatus;
using ledger::Reason;
namespace {

// Room for so many rows is taken at the start, for others when they come.
constexpr std::size_t at_once = 65536;
// Nobody is to come back at once.
constexpr Duration least_retry = std::chrono::milliseconds{1};

std::string milliseconds(Duration d) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3f ms", to_ms(d));
  return text;
}

ErrorCode code_of(Reason reason) {
  switch (reason) {
    case Reason::cannot_finish:
    case Reason::deadline_passed:
    case Reason::rejected_late:
      return ErrorCode::deadline_exceeded;
    case Reason::device_failed:
      return ErrorCode::internal;
    case Reason::no_device:
      return ErrorCode::resource_exhausted;
    case Reason::no_model:
      return ErrorCode::not_found;
  }
  CARILLON_ASSERT(false);
}

std::string_view words_of(Reason reason) {
  switch (reason) {
    case Reason::cannot_finish:
      return "cannot finish by its deadline";
    case Reason::deadline_passed:
      return "can no longer finish by its deadline, as other work went first";
    case Reason::device_failed:
      return "its execution failed";
    case Reason::no_device:
      return "no device has room for the model";
    case Reason::rejected_late:
      return "could not start in its window, too often or with no time for another try";
    case Reason::no_model:
      return "the model is not served any more";
  }
  CARILLON_ASSERT(false);
}

}  // namespace

Holder::Holder(wire::Dispatcher& dispatcher, const HolderOptions& options, Book& book, Journal* journal)
    : dispatcher_(dispatcher),
      options_(options),
      book_(book),
      journal_(journal),
      outcomes_{book, journal, options.default_deadline},
      tickets_(std::min(options.max_open, at_once)),
      requests_(std::min(options.max_open, at_once)),
      kept_(options.largest_kept_row) {
  CARILLON_ASSERT(options_.max_open > 0);
  open_.reserve(std::min<std::size_t>(options.max_open, 1024));
  gathered_.reserve(256);
}

void Holder::add_model(HeldModel model) {
  if (journal_ != nullptr) model.told.name = journal_->name(model.name);
  models_.push_back(std::move(model));
}

// --- A call comes

void Holder::gather(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer,
                    TimePoint now) {
  CARILLON_ASSERT(call != nullptr && call->model.index() < models_.size() && call->rows >= 1);
  const HeldModel& model = models_[call->model.index()];
  const auto rows = static_cast<std::size_t>(call->rows);
  // A client's clock edge cannot lie in the future of ours; the scheduler must never see one that does.
  call->arrival = std::min(call->arrival, now);
  const auto end = [&](Ending ending) {
    const ModelId id = call->model;
    outcomes_.end(ticket, std::move(call), std::move(on_answer), model.told, std::move(ending), now, now);
    left(id);
  };
  if (!serving_)
    return end({Outcome::failed,
                explain::Cause::not_serving,
                {ErrorCode::unavailable, "the server is not serving now"}});
  if (model.gone)
    return end({Outcome::failed,
                explain::Cause::no_model,
                {ErrorCode::not_found, "model '" + model.name + "' version " +
                                           std::to_string(model.told.version) + " is not served any more"}});
  if (open_rows_ + rows > options_.max_open)
    return end({Outcome::shed,
                explain::Cause::full,
                {ErrorCode::resource_exhausted, "the server is full: " + std::to_string(open_rows_) +
                                                    " rows are open, of at most " +
                                                    std::to_string(options_.max_open)},
                std::nullopt,
                retry_when_full});
  const TimePoint deadline = deadline_of(*call, model.told.slo, model.told.cls, options_.default_deadline);
  if (call->deadline != TimePoint::max() &&
      deadline > saturating_add(call->arrival, options_.longest_deadline))
    return end(
        {Outcome::invalid,
         explain::Cause::bad_data,
         {ErrorCode::invalid_argument,
          "the deadline lies more than " +
              std::to_string(
                  std::chrono::duration_cast<std::chrono::seconds>(options_.longest_deadline).count()) +
              " s after the request's arrival; give an earlier one, or none"}});

  const std::uint32_t index = open_.take();
  Open& open = open_[index];
  open.ticket = ticket;
  open.handler = std::move(on_answer);
  open.model = call->model;
  open.app = application(*call, now);
  open.cls = class_of(*call, model.told.cls);
  open.arrival = call->arrival;
  open.deadline = deadline;
  open.due = std::min(deadline, call->due);
  open.put_off.assign(open.due < deadline ? rows : 0, 0);
  open.first = next_request_;
  open.rows = call->rows;
  open.done = open.flying = 0;
  open.closing = open.answered = open.waiting = false;
  open.would_take.reset();
  open.retry_after.reset();
  open.worker_error.clear();
  open.state.assign(rows, Row::fresh);
  open.inputs.clear();
  open.outputs.clear();
  CARILLON_ASSERT(call->outputs_wanted.empty() || call->outputs_wanted.size() == call->outputs.size());
  const auto fits = [&](const std::vector<std::byte>& buffer, const RowSize& size) {
    return model.open ? buffer.size() % rows == 0 : buffer.size() == rows * size.at(call->length);
  };
  CARILLON_ASSERT(std::ranges::equal(call->inputs, model.input_row_bytes, fits));
  CARILLON_ASSERT(
      std::ranges::equal(call->outputs, model.output_row_bytes, [&](const auto& buffer, const RowSize& size) {
        return !call->wants(static_cast<std::size_t>(&buffer - call->outputs.data())) || fits(buffer, size);
      }));
  for (std::size_t r = 0; r < rows; ++r) {
    for (const auto& input : call->inputs) open.inputs.push_back(input.data() + input.size() / rows * r);
    for (std::size_t i = 0; i < call->outputs.size(); ++i) {
      std::vector<std::byte>& output = call->outputs[i];
      open.outputs.push_back(call->wants(i) ? output.data() + output.size() / rows * r : nullptr);
    }
  }
  if (journal_ != nullptr) {
    open.record = outcomes_.record_of(*call, ticket, model.told);
    open.record.decided = now;
    open.record.log_request = open.first.value;
  }
  open.call = std::move(call);
  next_request_.value += rows;
  open_rows_ += rows;
  ++models_[open.model.index()].calls;
  tickets_.insert(ticket, index);
  book_.set_open_requests(tickets_.size());
  count_waiting(open, true);
  gathered_.emplace_back(index, request_of(open, open.first));
}

// Of a call that is refused while its rows are told, the scheduler does not hear of the rest.
void Holder::offer(TimePoint now) {
  const bool several =
      gathered_.size() > 1 || (!gathered_.empty() && open_[gathered_.front().first].rows > 1);
  for (auto& [index, request] : gathered_) {
    for (std::size_t r = 0; r < open_[index].state.size() && !open_[index].closing; ++r) {
      Open& open = open_[index];
      request.id = {open.first.value + r};
      open.state[r] = Row::waiting;
      requests_.insert(request.id.value, index);
      dispatcher_.offer(request, several, now);
    }
  }
  if (several) dispatcher_.all_arrived(now);
  // Of a call that is over there is a record.
  if (journal_ != nullptr)
    for (const auto& [index, request] : gathered_)
      if (!open_[index].closing) journal_->put(open_[index].record);
  gathered_.clear();
  settle(now);
}

void Holder::cancel(std::uint64_t ticket, TimePoint now) {
  const auto index = tickets_.find(ticket);
  if (!index) return;
  close(*index, Outcome::cancelled, explain::Cause::client_gone,
        {ErrorCode::cancelled, "the client has gone"});
  dispatcher_.hear(now);
  settle(now);
}

Request Holder::request_of(const Open& open, RequestId id) const {
  const bool late = !open.put_off.empty() && open.put_off[place_of(open, id)] != 0;
  return {.id = id,
          .model = open.model,
          .app = open.app,
          .cls = open.cls,
          .priority = open.call->priority,
          .arrival = open.arrival,
          .deadline = late ? open.deadline : open.due,
          .effort = models_[open.model.index()].tells_sizes ? open.call->size->effort : Effort{}};
}

namespace {

// Of a row of an open model: there are few, four for each doubling of the row's bytes, and what takes about
// as long has the same.
std::size_t magnitude(const InferCall& call) {
  std::size_t bytes = 1;
  for (const auto& input : call.inputs) bytes += input.size() / static_cast<std::size_t>(call.rows);
  return static_cast<std::size_t>(std::lround(4 * std::log2(static_cast<double>(bytes))));
}

}  // namespace

AppId Holder::application(const InferCall& call, TimePoint now) {
  const HeldModel& model = models_[call.model.index()];
  std::optional<wire::Dispatcher::Alike> alike;
  if (options_.by_length && (!model.lengths.empty() || model.open)) {
    const auto length = std::ranges::lower_bound(model.lengths, call.length);
    alike = {call.model,
             model.open ? magnitude(call) : static_cast<std::size_t>(length - model.lengths.begin())};
  }
  if (call.key.empty()) return dispatcher_.application(call.application, alike, now);
  return dispatcher_.application(wire::application_of(call.key, call.application), alike, now);
}

// --- What the dispatcher says

std::uint64_t Holder::sent(RequestId row, ModelId model, std::uint64_t entry) {
  const auto index = requests_.find(row.value);
  CARILLON_ASSERT(index.has_value());  // the scheduler names only requests that it holds
  Open& open = open_[*index];
  Row& state = state_of(open, row);
  CARILLON_ASSERT(open.model == model && !open.answered);
  // `gone`: cancelled, but the scheduler has not heard of it yet.
  CARILLON_ASSERT(state == Row::waiting || state == Row::gone);
  state = Row::flying;
  ++open.flying;
  count_waiting(open, false);
  if (journal_ == nullptr) return 0;
  CallRecord& record = open.record;
  constexpr std::size_t most = CallRecord::most_actions;
  // Rows of one call follow each other.
  const auto tries = static_cast<std::size_t>(record.tries);
  if (tries > 0 && record.actions[(tries - 1) % most] == entry) return 0;
  record.actions[tries % most] = entry;
  ++record.tries;
  return record.number;
}

void Holder::came_back(RequestId row) {
  Open& open = open_[*requests_.find(row.value)];
  --open.flying;
  state_of(open, row) = open.closing ? Row::gone : Row::waiting;
  count_waiting(open, open.flying == 0);
}

Holder::HeldRow Holder::held(RequestId row) const {
  const auto index = requests_.find(row.value);
  CARILLON_ASSERT(index.has_value());
  const Open& open = open_[*index];
  const HeldModel& model = models_[open.model.index()];
  const std::size_t inputs = model.input_row_bytes.size();
  const std::size_t outputs = model.output_row_bytes.size();
  const std::size_t r = place_of(open, row);
  return {
      .buffers = {std::span(open.inputs).subspan(r * inputs, inputs),
                  std::span(open.outputs).subspan(r * outputs, outputs), open.call->length, open.deadline},
      .trace = open.call->trace.sampled() && r < most_traced ? &open.call->trace : nullptr};
}

// The call of a row whose INFER is over; none where it was answered before.
std::optional<std::uint32_t> Holder::landed(RequestId row) {
  const auto index = requests_.find(row.value);
  CARILLON_ASSERT(index.has_value());
  Open& open = open_[*index];
  CARILLON_ASSERT(state_of(open, row) == Row::flying);
  --open.flying;
  if (!open.answered) return *index;
  state_of(open, row) = Row::gone;
  requests_.erase(row.value);
  if (open.flying > 0) return std::nullopt;
  const ModelId model = open.model;
  release(*index);
  left(model);
  return std::nullopt;
}

void Holder::ended(RequestId row, const wire::Report& report, TimePoint now) {
  const auto index = landed(row);
  if (!index) return;
  Open& open = open_[*index];
  const wire::ActionTimes& times = report.times;
  if (report.status == ActionStatus::success) {
    state_of(open, row) = Row::done;
    if (kept_.any()) kept_.answered(row, *open.call, place_of(open, row));
    requests_.erase(row.value);
    open.steps.input = times.input_end - times.input_start;
    open.steps.infer = times.ran();
    open.steps.output = times.output_end - times.output_start;
    open.steps.queue = std::max(Duration{0}, times.exec_start - open.arrival - open.steps.input);
    if (++open.done == open.rows)
      answer_success(*index, now);
    else
      count_waiting(open, open.flying == 0);
    return;
  }
  state_of(open, row) = Row::waiting;  // the scheduler tries again, or refuses it
  count_waiting(open, open.flying == 0);
  if (report.status == ActionStatus::failed) open.worker_error = report.error;
}

void Holder::turned_down(RequestId row, const Error& error) {
  const auto index = landed(row);
  if (!index) return;
  Open& open = open_[*index];
  state_of(open, row) = Row::gone;
  std::string where = "model '" + models_[open.model.index()].name + "'";
  if (open.rows > 1) where += ": row " + std::to_string(place_of(open, row));
  const bool full = error.code == ErrorCode::resource_exhausted;
  const Outcome outcome = error.code == ErrorCode::invalid_argument    ? Outcome::invalid
                          : error.code == ErrorCode::deadline_exceeded ? Outcome::refused
                          : full                                       ? Outcome::shed
                                                                       : Outcome::failed;
  const explain::Cause cause = error.code == ErrorCode::invalid_argument    ? explain::Cause::bad_data
                               : error.code == ErrorCode::deadline_exceeded ? explain::Cause::deadline_passed
                               : full                                       ? explain::Cause::shed
                                                                            : explain::Cause::error;
  if (full) open.retry_after = retry_when_full;
  close(*index, outcome, cause, in_context(where, error).error());
}

void Holder::lost(RequestId row, std::string_view why) {
  const auto index = landed(row);
  if (!index) return;
  Open& open = open_[*index];
  state_of(open, row) = open.closing ? Row::gone : Row::waiting;
  count_waiting(open, open.flying == 0);
  open.worker_error = "its device went: " + std::string(why);
}

// Whether the row waits on instead: once, where it was refused for a time that only its place in the queue
// follows from.
bool Holder::put_off(Open& open, const ledger::Refuse& refusal, TimePoint now) {
  if (open.put_off.empty() || code_of(refusal.reason) != ErrorCode::deadline_exceeded ||
      state_of(open, refusal.request) != Row::waiting)
    return false;
  std::uint8_t& put_off = open.put_off[place_of(open, refusal.request)];
  if (put_off != 0) return false;
  put_off = 1;
  dispatcher_.offer(request_of(open, refusal.request), false, now);
  return true;
}

void Holder::refused(const wire::Verdict& verdict, TimePoint now) {
  const ledger::Refuse& refusal = verdict.refusal;
  CARILLON_ASSERT(refusal.request < next_request_);
  const auto index = requests_.find(refusal.request.value);
  if (!index) return;  // cancelled meanwhile
  Open& open = open_[*index];
  Row& state = state_of(open, refusal.request);
  if (!open.closing && !open.answered && put_off(open, refusal, now)) return;
  if (state == Row::waiting) state = Row::gone;
  if (open.closing || open.answered) return;
  std::string text = "model '" + models_[open.model.index()].name + "': ";
  const bool nowhere = refusal.reason == Reason::no_device && verdict.prospect.devices == 0;
  // Real-time work without a deadline waits no longer than the scheduler lets it.
  const bool full = refusal.reason == Reason::cannot_finish && open.deadline == TimePoint::max() &&
                    open.cls == Class::real_time;
  const bool after_failure =
      !open.worker_error.empty() &&
      (nowhere || refusal.reason == Reason::device_failed || refusal.reason == Reason::deadline_passed);
  text += nowhere ? "no device answers"
          : full  ? "more real-time work waits than may wait for requests without a deadline"
          : after_failure && refusal.reason == Reason::deadline_passed
              ? "can no longer finish by its deadline"
              : words_of(refusal.reason);
  if (after_failure) text += ": " + open.worker_error;
  if (refusal.would_finish != TimePoint::max()) {
    open.would_take = std::max(Duration{0}, refusal.would_finish - open.arrival);
    if (refusal.reason != Reason::device_failed) {
      text += "; it would have finished " + milliseconds(*open.would_take) + " after its arrival";
      if (open.deadline != TimePoint::max() && refusal.would_finish > open.deadline)
        text += ", " + milliseconds(refusal.would_finish - open.deadline) + " after its deadline";
    }
  }
  book_.refused(open.model, refusal.reason);
  const ErrorCode code = nowhere ? ErrorCode::unavailable
                         : full  ? ErrorCode::resource_exhausted
                                 : code_of(refusal.reason);
  weigh(open, verdict, now);
  if (full || nowhere) open.retry_after = retry_when_full;
  close(*index, code == ErrorCode::deadline_exceeded || full ? Outcome::refused : Outcome::failed,
        full ? explain::Cause::full : explain::cause_of(refusal.reason), {code, std::move(text)});
}

// What was expected when it was refused, and whether the same call would fit later: not where its deadline is
// shorter than its model's own run, nor where a device that has the model has nothing to do.
void Holder::weigh(Open& open, const wire::Verdict& verdict, TimePoint now) {
  const auto& [refusal, prospect] = verdict;
  const Duration has = open.deadline == TimePoint::max() ? Duration{0} : open.deadline - open.arrival;
  const bool something_first = prospect.device && (prospect.runs > 0 || !prospect.holds);
  if (refusal.would_finish != TimePoint::max() && has >= prospect.exec && something_first &&
      code_of(refusal.reason) == ErrorCode::deadline_exceeded)
    open.retry_after = std::max<Duration>(least_retry, refusal.would_finish - has - now);
  if (journal_ == nullptr) return;
  CallRecord& record = open.record;
  record.has_expected = true;
  record.exec = prospect.exec;
  record.exec_batch = static_cast<std::uint16_t>(prospect.batch);
  record.loading = prospect.loading;
  record.devices = static_cast<std::uint16_t>(prospect.devices);
  record.holding = static_cast<std::uint16_t>(prospect.holding);
  if (!prospect.device || prospect.device->index() >= devices_.size()) return;  // none of this host
  record.device = devices_[prospect.device->index()];
  record.device_actions = static_cast<std::int32_t>(prospect.runs);
  record.busy = prospect.busy;
}

// --- The answer

// Decides that a call fails, and queues the news of its other rows for the scheduler. The answer is
// settle()'s.
void Holder::close(std::uint32_t index, Outcome outcome, explain::Cause cause, Error error) {
  Open& open = open_[index];
  if (open.closing || open.answered) return;
  open.closing = true;
  open.outcome = outcome;
  if (journal_ != nullptr) {
    open.record.cause = cause;
    say_message(open.record, error.message);
  }
  open.error = std::move(error);
  for (std::size_t r = 0; r < open.state.size(); ++r) {
    if (open.state[r] != Row::waiting && open.state[r] != Row::flying) continue;
    if (open.state[r] == Row::waiting) open.state[r] = Row::gone;
    dispatcher_.withdraw(RequestId{open.first.value + r}, open.model);
  }
  closing_.push_back(index);
}

// Answers the calls that were closed; the scheduler has heard of all of them.
void Holder::settle(TimePoint now) {
  for (const std::uint32_t index : closing_) {
    Open& open = open_[index];
    open.closing = false;
    open.answered = true;
    count_waiting(open, false);
    tickets_.erase(open.ticket);
    book_.set_open_requests(tickets_.size());  // before the handler: whoever is answered sees it
    for (std::size_t r = 0; r < open.state.size(); ++r) {
      if (open.state[r] != Row::flying) requests_.erase(open.first.value + r);
      if (kept_.any()) kept_.gone({open.first.value + r});
    }
    book_.answered(open.model, open.outcome, open.rows, open.arrival, now, {});
    note_answer(open, open.outcome, now);
    AnswerHandler handler = std::move(open.handler);
    InferAnswer answer{.status = std::unexpected(std::move(open.error)),
                       .call = nullptr,
                       .finished = now,
                       .would_take = open.would_take,
                       .retry_after = open.retry_after,
                       .number = number_of(open)};
    const ModelId model = open.model;
    const bool free = open.flying == 0;
    if (free) {
      answer.call = std::move(open.call);
      release(index);
    }
    handler(std::move(answer));
    if (free) left(model);
  }
  closing_.clear();
}

void Holder::answer_success(std::uint32_t index, TimePoint now) {
  Open& open = open_[index];
  tickets_.erase(open.ticket);
  book_.set_open_requests(tickets_.size());
  open.answered = true;
  count_waiting(open, false);
  const Outcome outcome = now <= open.deadline ? Outcome::on_time : Outcome::late;
  book_.answered(open.model, outcome, open.rows, open.arrival, now, open.steps);
  note_answer(open, outcome, now);
  AnswerHandler handler = std::move(open.handler);
  InferAnswer answer{.status = {},
                     .call = std::move(open.call),
                     .finished = now,
                     .would_take = {},
                     .number = number_of(open)};
  const ModelId model = open.model;
  release(index);
  handler(std::move(answer));
  left(model);
}

void Holder::count_waiting(Open& open, bool waiting) {
  if (std::exchange(open.waiting, waiting) == waiting) return;
  book_.waits(open.model, waiting);
  if (open.call->place) open.call->place->waits(waiting);
}

void Holder::release(std::uint32_t index) {
  Open& open = open_[index];
  open_rows_ -= static_cast<std::size_t>(open.rows);
  --models_[open.model.index()].calls;
  open.call.reset();
  open_.give_back(index);
}

// Before its handler hears of it: who has the answer finds the record.
void Holder::note_answer(Open& open, Outcome outcome, TimePoint now) {
  if (journal_ == nullptr) return;
  CallRecord& record = open.record;
  record.outcome = fate_of(outcome);
  record.ended = now;
  if (open.would_take) record.would_take = *open.would_take;
  if (open.retry_after) record.retry_after = *open.retry_after;
  journal_->put(record);
}

void Holder::stop(TimePoint now) {
  serving_ = false;
  for (std::uint32_t i = 0; i < open_.size(); ++i)
    if (tickets_.find(open_[i].ticket) == i)
      close(i, Outcome::failed, explain::Cause::not_serving,
            {ErrorCode::unavailable, "the server is stopping"});
  settle(now);
}

}  // namespace carillon::controller
