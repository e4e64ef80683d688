#include "carillon/controller/core.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "carillon/base/assert.h"
#include "carillon/controller/queue_rules.h"

namespace carillon::controller {

using ledger::Ledger;
using schedule::ActionKind;
namespace {

int rows_of(const Ledger::Action& action) {
  return action.profiled ? 1 : static_cast<int>(action.requests.size());
}

// Nobody is to come back at once.
constexpr Duration least_retry = std::chrono::milliseconds{1};

std::string milliseconds(Duration d) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3f ms", to_ms(d));
  return text;
}

ErrorCode code_of(schedule::Reason reason) {
  switch (reason) {
    case schedule::Reason::cannot_finish:
    case schedule::Reason::deadline_passed:
    case schedule::Reason::rejected_late:
      return ErrorCode::deadline_exceeded;
    case schedule::Reason::device_failed:
      return ErrorCode::internal;
    case schedule::Reason::no_device:
      return ErrorCode::resource_exhausted;
    case schedule::Reason::no_model:
      return ErrorCode::not_found;
  }
  CARILLON_ASSERT(false);
}

std::string_view words_of(schedule::Reason reason) {
  switch (reason) {
    case schedule::Reason::cannot_finish:
      return "cannot finish by its deadline";
    case schedule::Reason::deadline_passed:
      return "can no longer finish by its deadline, as other work went first";
    case schedule::Reason::device_failed:
      return "its execution failed";
    case schedule::Reason::no_device:
      return "no device has room for the model";
    case schedule::Reason::rejected_late:
      return "could not start in its window, too often or with no time for another try";
    case schedule::Reason::no_model:
      return "the model is not served any more";
  }
  CARILLON_ASSERT(false);
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

}  // namespace

Class class_of(const InferCall& call, Class model) {
  return call.class_given ? call.cls : model;
}

TimePoint deadline_of(const InferCall& call, const std::optional<Duration>& slo, Class model,
                      const CoreOptions& options) {
  if (call.deadline != TimePoint::max() || call.due != TimePoint::max()) return call.deadline;
  if (!slo && class_of(call, model) == Class::best_effort) return TimePoint::max();
  const std::optional<Duration>& lasts = slo ? slo : options.default_deadline;
  return lasts ? saturating_add(call.arrival, *lasts) : TimePoint::max();
}

Core::Core(std::unique_ptr<schedule::Scheduler> scheduler, const CoreOptions& options)
    : scheduler_(std::move(scheduler)),
      options_(options),
      timeline_(options.timeline),
      tickets_(std::min<std::size_t>(options.max_open, 1 << 16)),
      requests_(std::min<std::size_t>(options.max_open, 1 << 16)),
      revivals_(options.revivals),
      kept_(options.largest_kept_row) {
  CARILLON_ASSERT(scheduler_ != nullptr && options_.max_open > 0 && options_.full_queue_pause > Duration{0});
  open_.reserve(std::min<std::size_t>(options.max_open, 1024));
  actions_out_.reserve(256);
  pending_.reserve(64);
  gathered_.reserve(256);
  scheduler_->reads(ledger_);
}

Core::~Core() {
  stop(last_);
}

void Core::add_device(worker::Worker& worker, std::string name) {
  CARILLON_ASSERT(!started_);
  devices_.push_back({.worker = &worker});
  if (options_.journal != nullptr) devices_.back().in_journal = options_.journal->add_device(name);
  ++alive_;
  revivals_.add_device();
  book_.add_device(std::move(name));
}

void Core::add_model(ServedModel model) {
  CARILLON_ASSERT(!started_ && model.info.id.index() == models_.size() && !model.info.batches.empty());
  book_.add_model(model.info.name, model.version, model.slo);
  outlooks_.push_back(outlook_of(model.info));
  models_.push_back(std::move(model));
}

void Core::start(TimePoint now) {
  enter(now);
  CARILLON_ASSERT(!started_ && !stopped_);
  started_ = true;
  for (const ServedModel& model : models_) feed(schedule::model_comes(model.info), now);
  for (std::size_t i = 0; i < devices_.size(); ++i)
    feed(schedule::DeviceChanged{DeviceId{static_cast<std::uint32_t>(i)}, true,
                                 devices_[i].worker->total_pages(), devices_[i].worker->best_effort()},
         now);
  settle(now);
}

void Core::come(ServedModel model, TimePoint now) {
  enter(now);
  CARILLON_ASSERT(started_ && model.info.id.index() == models_.size() && !model.info.batches.empty());
  outlooks_.push_back(outlook_of(model.info));
  models_.push_back(std::move(model));
  if (stopped_) return;
  feed(schedule::model_comes(models_.back().info), now);
  settle(now);
}

void Core::go(ModelId id, TimePoint now) {
  enter(now);
  ServedModel& model = models_[id.index()];
  if (stopped_ || std::exchange(model.gone, true)) return;
  feed(schedule::ModelChanged{id, nullptr}, now);
  settle(now);
}

void Core::change_times(ModelId id, std::vector<schedule::BatchProfile> batches, TimePoint now) {
  enter(now);
  CARILLON_ASSERT(started_ && id.index() < models_.size());
  ServedModel& model = models_[id.index()];
  if (stopped_ || model.gone) return;
  CARILLON_ASSERT(schedule::same_sizes(model.info.batches, batches));
  book_.reseed(id, model.info.batches, batches);
  Outlook& outlook = outlooks_[id.index()];
  for (std::size_t i = 0; i < batches.size(); ++i)
    if (batches[i].batch == outlook.batch && batches[i] != model.info.batches[i])
      outlook.exec = batches[i].exec;
  model.info.batches = batches;
  feed(schedule::TimesChanged{id, std::move(batches)}, now);
  settle(now);
}

Core::Uses Core::uses(ModelId id) const {
  Uses out;
  for (std::uint32_t i = 0; i < open_.size(); ++i)
    if (open_[i].call != nullptr && open_[i].model == id) ++out.calls;
  out.on_devices = id.index() < ledger_.models() && ledger_.model(id).under_way > 0;
  for (std::uint32_t i = 0; i < ledger_.devices(); ++i) out.on_devices |= ledger_.holds({i}, id);
  return out;
}

Core::Outlook Core::outlook_of(const schedule::ModelInfo& info) {
  const auto& least = info.batches.front();
  Outlook out{.exec = least.exec, .batch = least.batch};
  if (options_.journal != nullptr) out.name = options_.journal->name(info.name);
  return out;
}

void Core::answer_at_once(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler handler,
                          explain::Cause cause, Error error, TimePoint now,
                          std::optional<Duration> retry_after) {
  const Outcome outcome = error.code == ErrorCode::invalid_argument     ? Outcome::invalid
                          : error.code == ErrorCode::resource_exhausted ? Outcome::shed
                                                                        : Outcome::failed;
  book_.answered(call->model, outcome, call->rows, call->arrival, now, {});
  if (options_.journal != nullptr) {
    const ServedModel& model = models_[call->model.index()];
    CallRecord record =
        record_of(*call, ticket, outlooks_[call->model.index()].name, model.version,
                  class_of(*call, model.cls), deadline_of(*call, model.slo, model.cls, options_));
    record.decided = record.ended = now;
    record.outcome = fate_of(outcome);
    record.cause = cause;
    if (retry_after) record.retry_after = *retry_after;
    say_message(record, error.message);
    options_.journal->put(record);
  }
  handler({.status = std::unexpected(std::move(error)),
           .call = std::move(call),
           .finished = now,
           .would_take = {},
           .retry_after = retry_after,
           .number = options_.journal != nullptr ? ticket : 0});
}

void Core::gather(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer,
                  TimePoint now) {
  enter(now);
  CARILLON_ASSERT(call != nullptr && call->model.index() < models_.size() && call->rows >= 1);
  const ServedModel& model = models_[call->model.index()];
  const auto rows = static_cast<std::size_t>(call->rows);
  // A client's clock edge cannot lie in the future of ours; the scheduler must never see one that does.
  call->arrival = std::min(call->arrival, now);
  if (!started_ || stopped_)
    return answer_at_once(ticket, std::move(call), std::move(on_answer), explain::Cause::not_serving,
                          {ErrorCode::unavailable, "the server is not serving now"}, now);
  if (model.gone)
    return answer_at_once(
        ticket, std::move(call), std::move(on_answer), explain::Cause::no_model,
        {ErrorCode::not_found, "model '" + model.info.name + "' version " + std::to_string(model.version) +
                                   " is not served any more"},
        now);
  if (open_rows_ + rows > options_.max_open)
    return answer_at_once(ticket, std::move(call), std::move(on_answer), explain::Cause::full,
                          {ErrorCode::resource_exhausted,
                           "the server is full: " + std::to_string(open_rows_) +
                               " rows are open, of at most " + std::to_string(options_.max_open)},
                          now, retry_when_full);
  const TimePoint deadline = deadline_of(*call, model.slo, model.cls, options_);
  if (call->deadline != TimePoint::max() &&
      deadline > saturating_add(call->arrival, options_.longest_deadline)) {
    return answer_at_once(
        ticket, std::move(call), std::move(on_answer), explain::Cause::bad_data,
        {ErrorCode::invalid_argument,
         "the deadline lies more than " +
             std::to_string(
                 std::chrono::duration_cast<std::chrono::seconds>(options_.longest_deadline).count()) +
             " s after the request's arrival; give an earlier one, or none"},
        now);
  }

  const std::uint32_t index = open_.take();
  Open& open = open_[index];
  open.ticket = ticket;
  open.handler = std::move(on_answer);
  open.model = call->model;
  open.app = application(*call, now);
  open.cls = class_of(*call, model.cls);
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
  open.steps = {};
  open.worker_error.clear();
  open.state.assign(rows, Row::fresh);
  open.inputs.clear();
  open.outputs.clear();
  CARILLON_ASSERT(call->inputs.size() == model.input_row_bytes.size());
  CARILLON_ASSERT(call->outputs.size() == model.output_row_bytes.size());
  CARILLON_ASSERT(call->outputs_wanted.empty() || call->outputs_wanted.size() == call->outputs.size());
  const auto check = [&](const std::vector<std::byte>& buffer, const RowSize& size) {
    CARILLON_ASSERT(model.open ? buffer.size() % rows == 0 : buffer.size() == rows * size.at(call->length));
  };
  for (std::size_t i = 0; i < call->inputs.size(); ++i) check(call->inputs[i], model.input_row_bytes[i]);
  for (std::size_t i = 0; i < call->outputs.size(); ++i)
    if (call->wants(i)) check(call->outputs[i], model.output_row_bytes[i]);
  for (std::size_t r = 0; r < rows; ++r) {
    for (const auto& input : call->inputs) open.inputs.push_back(input.data() + input.size() / rows * r);
    for (std::size_t i = 0; i < call->outputs.size(); ++i) {
      std::vector<std::byte>& output = call->outputs[i];
      open.outputs.push_back(call->wants(i) ? output.data() + output.size() / rows * r : nullptr);
    }
  }
  if (options_.journal != nullptr) {
    open.record =
        record_of(*call, ticket, outlooks_[open.model.index()].name, model.version, open.cls, deadline);
    if (open.record.deadline_from == explain::DeadlineFrom::none && deadline != TimePoint::max())
      open.record.deadline_from = model.slo ? explain::DeadlineFrom::slo : explain::DeadlineFrom::server;
    open.record.decided = now;
    open.record.log_request = open.first.value;
  }
  open.call = std::move(call);
  next_request_.value += rows;
  open_rows_ += rows;
  tickets_.insert(ticket, index);
  book_.set_open_requests(tickets_.size());
  count_waiting(open, true);
  gathered_.emplace_back(index, request_of(open, open.first));
}

// Of a call that is refused while its rows are told, the scheduler does not hear of the rest.
void Core::decide(TimePoint now) {
  enter(now);
  const bool several =
      gathered_.size() > 1 || (!gathered_.empty() && open_[gathered_.front().first].rows > 1);
  for (auto& [index, request] : gathered_) {
    for (std::size_t r = 0; r < open_[index].state.size() && !open_[index].closing; ++r) {
      Open& open = open_[index];
      request.id = {open.first.value + r};
      open.state[r] = Row::waiting;
      requests_.insert(request.id.value, index);
      feed(schedule::RequestArrived{request, several}, now);
    }
  }
  if (several) feed(schedule::AllArrived{}, now);
  // Of a call that is over there is a record.
  if (options_.journal != nullptr)
    for (const auto& [index, request] : gathered_)
      if (!open_[index].closing) options_.journal->put(open_[index].record);
  gathered_.clear();
  settle(now);
}

void Core::cancel(std::uint64_t ticket, TimePoint now) {
  enter(now);
  const auto index = tickets_.find(ticket);
  if (!index || stopped_) return;
  close(*index, Outcome::cancelled, explain::Cause::client_gone,
        {ErrorCode::cancelled, "the client has gone"});
  drain(now);
  settle(now);
}

void Core::on_result(const worker::ActionResult& result, TimePoint now) {
  enter(now);
  Device& device = devices_[result.device.index()];
  if (result.life != device.life) return;  // that was over before this came
  if (result.device_lost && !stopped_) {
    take_out(result.device, result.error, now);
    feed(schedule::DeviceChanged{result.device, false, 0}, now);
    return settle(now);
  }
  const auto place = ledger_.place_of(result.id);
  // A worker answers an action once; what it says beyond that is counted, and changes nothing.
  if (!place || !ledger_.at(*place).taken || ledger_.at(*place).device != result.device)
    return book_.odd_report(result.device);
  const Ledger::Action& action = ledger_.at(*place);
  show_end(*place, result);
  const bool success = result.status == schedule::ActionStatus::success;
  const Duration ran = result.times.ran();
  note_end(*place, result, now);
  // The scheduler hears of it before it hears what comes of it, and could give up the device. Nobody is to
  // learn from bad data how long such batches take: they could teach whatever they like.
  const schedule::ActionDone done{.id = result.id,
                                  .status = result.status,
                                  .start = result.times.exec_start,
                                  .end = result.times.exec_end,
                                  .duration = success && result.odd_time ? action.expected : ran,
                                  .threads = success && !result.odd_time ? result.times.threads : 0};
  if (!stopped_) pending_.push_back(done);
  switch (action.kind) {
    case ActionKind::load:
      if (success) book_.loaded(result.device, action.model, ran, ledger_.holds(result.device, action.model));
      break;
    case ActionKind::unload:
      if (success && ledger_.holds(result.device, action.model)) book_.unloaded(result.device, action.model);
      break;
    case ActionKind::infer:
      if (action.profiled) {
        if (success) book_.profiled(action.model);
        if (asides_[*place].forget || !schedule::made_way(result.status)) forget(*action.profiled, *place);
      } else if (success) {
        book_.executed(result.device, action.model, static_cast<int>(action.requests.size()), result.times,
                       action.expected);
      } else if (result.times.exec_end > result.times.exec_start) {
        book_.wasted(result.device, result.times.ran());
      }
      for (std::size_t i = 0; i < action.requests.size(); ++i) {
        const auto bad = std::ranges::find(result.bad_rows, static_cast<int>(i), &worker::BadRow::row);
        if (bad == result.bad_rows.end())
          land(action.requests[i], result, now);
        else
          turn_down(action.requests[i], bad->error);
      }
      break;
  }
  if (stopped_)
    ledger_.apply(done, now);
  else
    drain(now);
  settle(now);
}

TimePoint Core::wake_at() const {
  if (stopped_) return TimePoint::max();
  const TimePoint at = std::min(scheduler_wake_, revivals_.wake_at());
  return deferred_.empty() ? at : std::min(at, told_at(deferred_.front()));
}

void Core::wake(TimePoint now) {
  enter(now);
  if (stopped_) return;
  for (const DeviceId id : revivals_.due(now)) devices_[id.index()].worker->probe();
  // What feed() adds is due later than now: this ends.
  while (!deferred_.empty() && told_at(deferred_.front()) <= now) {
    const schedule::ActionDone done = deferred_.front();
    deferred_.erase(deferred_.begin());
    feed(done, now);
  }
  if (scheduler_wake_ <= now) {
    scheduler_wake_ = TimePoint::max();
    feed(schedule::Wake{.excuses = excuses(now)}, now);
  }
  settle(now);
}

// Of devices that have had an action for long, and may look as if they hang.
std::vector<schedule::Excuse> Core::excuses(TimePoint now) {
  std::vector<schedule::Excuse> out;
  // The scheduler may be woken thousands of times a second.
  if (saturating_add(sought_slow_, options_.slow_after / 8) > now) return out;
  sought_slow_ = now;
  const auto look = [&](DeviceId id, schedule::Lane lane) {
    Device& device = devices_[id.index()];
    TimePoint& looked = device.looked[static_cast<std::size_t>(lane)];
    if (saturating_add(looked, options_.slow_after) > now) return;
    looked = now;
    schedule::Excuse excuse = device.worker->slowness(lane);
    excuse.device = id;
    if (excuse.starved > Duration{0} || excuse.moved) out.push_back(excuse);
  };
  visit_taken([&](std::uint32_t place) {
    const Ledger::Action& action = ledger_.at(place);
    if (now - action.sent < options_.slow_after) return;
    look(action.device, action.lane);
    // It waits for runs, of whatever class.
    if (action.kind == ActionKind::unload)
      for (const auto lane : {schedule::Lane::exec, schedule::Lane::real_time, schedule::Lane::best_effort})
        look(action.device, lane);
  });
  return out;
}

void Core::stop(TimePoint now) {
  enter(now);
  if (stopped_) return;
  stopped_ = true;
  pending_.clear();
  for (std::uint32_t i = 0; i < open_.size(); ++i)
    if (tickets_.find(open_[i].ticket) == i && !open_[i].answered)
      close(i, Outcome::failed, explain::Cause::not_serving,
            {ErrorCode::unavailable, "the server is stopping"});
  pending_.clear();
  settle(now);
}

void Core::feed(schedule::Event event, TimePoint now) {
  pending_.push_back(std::move(event));
  drain(now);
}

// Gives the scheduler the pending events, and those that come of them, until it has nothing more to say. Only
// then may settle() give buffers away: until the scheduler has heard of a cancellation, it may still use the
// request.
void Core::drain(TimePoint now) {
  CARILLON_ASSERT(!deciding_);
  deciding_ = true;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    actions_out_.clear();
    const schedule::Event next = pending_[i];
    ledger_.apply(next, now);
    scheduler_wake_ = scheduler_->decide(next, now, actions_out_);
    apply(now);
  }
  pending_.clear();
  deciding_ = false;
  if (options_.audit) options_.audit(*this, ledger_);
  if (options_.on_leisure) tell_leisure(false);
}

// What a device is wanted for is not sent before whoever has it was told; that it is free, not before all
// that was heard of is decided.
void Core::tell_leisure(bool wanted_alone) {
  told_leisure_.resize(std::max(told_leisure_.size(), ledger_.devices()));
  for (std::size_t i = 0; i < told_leisure_.size(); ++i) {
    const DeviceId device{static_cast<DeviceId::rep>(i)};
    const auto until = ledger_.idle(device) ? std::optional(scheduler_wake_) : std::nullopt;
    if (until == told_leisure_[i] || (wanted_alone && until)) continue;
    told_leisure_[i] = until;
    options_.on_leisure(device, until);
  }
}

// Time as our caller tells it; it never goes back.
void Core::enter(TimePoint now) {
  CARILLON_ASSERT(now >= last_);
  last_ = now;
}

void Core::apply(TimePoint now) {
  // Work first, as it is urgent; refusals after it, so that a refused call's rows in this same list are seen
  // as under way.
  for (schedule::Action& action : actions_out_) {
    const bool gives_up = std::holds_alternative<schedule::GiveUp>(action);
    if (!gives_up) ledger_.book(action, now);
    if (options_.on_leisure) tell_leisure(true);
    std::visit(
        [&](auto& what) {
          using T = std::decay_t<decltype(what)>;
          if constexpr (!std::is_same_v<T, schedule::Refuse>) dispatch(what, now);
        },
        action);
    if (gives_up) ledger_.book(action, now);  // what it has is looked up first
  }
  for (const schedule::Action& action : actions_out_)
    if (const auto* refusal = std::get_if<schedule::Refuse>(&action)) refuse(*refusal, now);
}

// What the timeline tells of an action.
TimelineAction Core::shown(const Ledger::Action& action) const {
  return {.id = action.id,
          .device = action.device.value,
          .model = book_.place_of(action.model),
          .batch = static_cast<std::uint32_t>(rows_of(action)),
          .kind = action.kind,
          .status = {},
          .cls = action.cls,
          .predicted = action.expected};
}

void Core::show(std::uint32_t place) {
  if (!timeline_.keeps()) return;
  TimelineAction action = shown(ledger_.at(place));
  action.exec_begin = ledger_.at(place).window.earliest;
  action.exec_end = ledger_.at(place).window.latest;
  timeline_.begin(place, action);
}

void Core::show_end(std::uint32_t place, const worker::ActionResult& result) {
  if (!timeline_.keeps() || ledger_.at(place).kind == ActionKind::unload) return;
  TimelineAction action = shown(ledger_.at(place));
  action.status = result.status;
  action.input_begin = result.times.input_start;
  action.input_end = result.times.input_end;
  action.exec_begin = result.times.exec_start;
  action.exec_end = result.times.exec_end;
  action.output_begin = result.times.output_start;
  action.output_end = result.times.output_end;
  timeline_.end(place, action);
}

// A worker's queue is full, or there is nothing to run. The scheduler hears of it a little later: told at
// once, it could try again at once, for ever.
void Core::not_taken(ActionId id, TimePoint now, schedule::ActionStatus status) {
  if (options_.journal != nullptr) {
    ActionRecord& record = asides_[*ledger_.place_of(id)].record;
    record.status = static_cast<std::uint8_t>(status);
    record.ended = now;
    options_.journal->put(record);
  }
  ledger_.apply(ledger::NotTaken{id}, now);
  deferred_.push_back({.id = id, .status = status, .start = now, .end = now, .duration = Duration{0}});
}

// The device that an action is for: one that the scheduler knows to be there.
Core::Device& Core::live(DeviceId id) {
  CARILLON_ASSERT(id.index() < devices_.size() && devices_[id.index()].alive);
  return devices_[id.index()];
}

void Core::dispatch(const schedule::Stop& action, TimePoint) {
  live(action.device).worker->stop(action.id);
}

void Core::dispatch(const schedule::Preempt& action, TimePoint) {
  live(action.device).worker->preempt(action.id, action.order);
}

void Core::dispatch(const schedule::Load& action, TimePoint now) {
  worker::Worker& worker = *live(action.device).worker;
  const std::uint32_t place = begin(action.id);
  if (options_.journal != nullptr) options_.journal->put(asides_[place].record);
  if (!worker.submit(worker::LoadCommand{action.id, action.model, action.window}))
    return not_taken(action.id, now);
  show(place);
}

void Core::dispatch(const schedule::Unload& action, TimePoint now) {
  worker::Worker& worker = *live(action.device).worker;
  begin(action.id);
  if (!worker.submit(worker::UnloadCommand{action.id, action.model})) not_taken(action.id, now);
}

void Core::dispatch(const schedule::Keep& action, TimePoint) {
  if (action.keep)
    kept_.want(action.request);
  else
    forget(action.request);
}

// What is kept of a request that runs stays until it has ended, but for the action that ended just now.
void Core::forget(RequestId request, std::uint32_t ended) {
  bool runs = false;
  visit_taken([&](std::uint32_t place) {
    const Ledger::Action& action = ledger_.at(place);
    if (action.profiled != request || place == ended || !devices_[action.device.index()].alive) return;
    runs = asides_[place].forget = true;
  });
  if (!runs) kept_.forget(request);
}

void Core::dispatch(const schedule::Profile& action, TimePoint now) {
  worker::Worker& worker = *live(action.device).worker;
  const std::uint32_t place = begin(action.id);
  if (options_.journal != nullptr) options_.journal->put(asides_[place].record);
  if (!kept_.run(action.request, action.id, action.window, command_)) {
    return not_taken(action.id, now, schedule::ActionStatus::failed);
  }
  CARILLON_ASSERT(command_.model == action.model);
  if (!worker.submit(command_)) return not_taken(action.id, now);
  show(place);
}

void Core::dispatch(const schedule::GiveUp& action, TimePoint now) {
  take_out(action.device, "it hangs: it reports nothing any more", now);
}

void Core::dispatch(const schedule::Infer& action, TimePoint now) {
  const std::size_t batch = action.requests.size();
  worker::Worker& worker = *live(action.device).worker;
  CARILLON_ASSERT(batch >= 1 && batch <= static_cast<std::size_t>(worker::max_batch));
  const std::uint32_t place = begin(action.id);
  Outlook& outlook = outlooks_[action.model.index()];
  if (static_cast<int>(batch) <= outlook.batch) {
    outlook.batch = static_cast<int>(batch);
    outlook.exec = action.expected;
  }

  const ServedModel& model = models_[action.model.index()];
  const std::size_t inputs = model.input_row_bytes.size();
  const std::size_t outputs = model.output_row_bytes.size();
  command_.id = action.id;
  command_.model = action.model;
  command_.window = action.window;
  command_.batch = static_cast<int>(batch);
  command_.cls = action.cls;
  for (std::size_t b = 0; b < batch; ++b) {
    const RequestId request = action.requests[b];
    const auto index = requests_.find(request.value);
    CARILLON_ASSERT(index.has_value());  // the scheduler names only requests that it holds
    Open& open = open_[*index];
    Row& state = row(open, request);
    CARILLON_ASSERT(open.model == action.model && !open.answered);
    // `gone`: cancelled, but the scheduler has not heard of it yet.
    CARILLON_ASSERT(state == Row::waiting || state == Row::gone);
    state = Row::flying;
    ++open.flying;
    count_waiting(open, false);
    const std::size_t r = request.value - open.first.value;
    command_.rows[b] = {std::span(open.inputs).subspan(r * inputs, inputs),
                        std::span(open.outputs).subspan(r * outputs, outputs), open.call->length,
                        open.deadline};
    if (options_.journal != nullptr) note_part(open, asides_[place].record);
  }
  if (options_.journal != nullptr) options_.journal->put(asides_[place].record);
  if (worker.submit(command_)) {
    if (batch > 1 && options_.on_batch) options_.on_batch(action.model, static_cast<int>(batch));
    return show(place);
  }
  for (const RequestId request : action.requests) {
    Open& open = open_[*requests_.find(request.value)];
    --open.flying;
    row(open, request) = open.closing ? Row::gone : Row::waiting;
    count_waiting(open, open.flying == 0);
  }
  not_taken(action.id, now);
}

Request Core::request_of(const Open& open, RequestId id) const {
  const bool late = !open.put_off.empty() && open.put_off[id.value - open.first.value] != 0;
  return {.id = id,
          .model = open.model,
          .app = open.app,
          .cls = open.cls,
          .priority = open.call->priority,
          .arrival = open.arrival,
          .deadline = late ? open.deadline : open.due,
          .effort = models_[open.model.index()].info.sizes.empty() ? Effort{} : open.call->size->effort};
}

// Whether the row waits on instead: once, where it was refused for a time that only its place in the queue
// follows from.
bool Core::put_off(Open& open, const schedule::Refuse& refusal) {
  if (open.put_off.empty() || code_of(refusal.reason) != ErrorCode::deadline_exceeded ||
      row(open, refusal.request) != Row::waiting)
    return false;
  std::uint8_t& put_off = open.put_off[refusal.request.value - open.first.value];
  if (put_off != 0) return false;
  put_off = 1;
  pending_.push_back(schedule::RequestArrived{request_of(open, refusal.request)});
  return true;
}

void Core::refuse(const schedule::Refuse& refusal, TimePoint now) {
  CARILLON_ASSERT(refusal.request < next_request_);
  const auto index = requests_.find(refusal.request.value);
  if (!index) return;  // cancelled meanwhile
  Open& open = open_[*index];
  Row& state = row(open, refusal.request);
  if (!open.closing && !open.answered && put_off(open, refusal)) return;
  if (state == Row::waiting) state = Row::gone;
  if (open.closing || open.answered) return;
  std::string text = "model '" + models_[open.model.index()].info.name + "': ";
  const bool nowhere = refusal.reason == schedule::Reason::no_device && alive_ == 0;
  // Real-time work without a deadline waits no longer than the scheduler lets it.
  const bool full = refusal.reason == schedule::Reason::cannot_finish && open.deadline == TimePoint::max() &&
                    open.cls == Class::real_time;
  text += nowhere ? "no device answers"
          : full  ? "more real-time work waits than may wait for requests without a deadline"
                  : words_of(refusal.reason);
  if (refusal.reason == schedule::Reason::device_failed && !open.worker_error.empty())
    text += ": " + open.worker_error;
  if (refusal.would_finish != TimePoint::max()) {
    open.would_take = std::max(Duration{0}, refusal.would_finish - open.arrival);
    if (refusal.reason != schedule::Reason::device_failed) {
      text += "; it would have finished " + milliseconds(*open.would_take) + " after its arrival";
      if (open.deadline != TimePoint::max() && refusal.would_finish > open.deadline)
        text += ", " + milliseconds(refusal.would_finish - open.deadline) + " after its deadline";
    }
  }
  book_.refused(open.model, refusal.reason);
  const ErrorCode code = nowhere ? ErrorCode::unavailable
                         : full  ? ErrorCode::resource_exhausted
                                 : code_of(refusal.reason);
  weigh(open, refusal, now);
  if (full) open.retry_after = retry_when_full;
  close(*index, code == ErrorCode::deadline_exceeded || full ? Outcome::refused : Outcome::failed,
        full ? explain::Cause::full : explain::cause_of(refusal.reason), {code, std::move(text)});
}

// What was expected when it was refused, and whether the same call would fit later: not where its deadline is
// shorter than its model's own run, nor where a device that has the model has nothing to do.
void Core::weigh(Open& open, const schedule::Refuse& refusal, TimePoint now) {
  const Outlook& outlook = outlooks_[open.model.index()];
  const bool takes_pages = models_[open.model.index()].info.pages > 0;
  std::optional<DeviceId> best;
  bool best_holds = false;
  int holding = 0;
  const auto of = [&](DeviceId id) -> const Ledger::Device& { return ledger_.device(id); };
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    const DeviceId id{i};
    if (!devices_[i].alive) continue;
    const bool holds = !takes_pages || ledger_.holds(id, open.model);
    holding += holds ? 1 : 0;
    if (best && (holds == best_holds ? of(id).busy >= of(*best).busy : best_holds)) continue;
    best = id;
    best_holds = holds;
  }
  const Duration has = open.deadline == TimePoint::max() ? Duration{0} : open.deadline - open.arrival;
  const bool something_first = best && (of(*best).runs > 0 || !best_holds);
  if (refusal.would_finish != TimePoint::max() && has >= outlook.exec && something_first &&
      code_of(refusal.reason) == ErrorCode::deadline_exceeded)
    open.retry_after = std::max<Duration>(least_retry, refusal.would_finish - has - now);
  if (options_.journal == nullptr) return;
  CallRecord& record = open.record;
  record.has_expected = true;
  record.exec = outlook.exec;
  record.exec_batch = static_cast<std::uint16_t>(outlook.batch);
  record.loading = ledger_.model(open.model).loading > 0;
  record.devices = static_cast<std::uint16_t>(alive_);
  record.holding = static_cast<std::uint16_t>(holding);
  if (!best) return;
  record.device = devices_[best->index()].in_journal;
  record.device_actions = static_cast<std::int32_t>(of(*best).runs);
  record.busy = of(*best).busy;
}

// --- What the journal is told

// An order was booked, and is about to be handed to its device; its requests are noted later. Its place.
std::uint32_t Core::begin(ActionId id) {
  const std::uint32_t place = *ledger_.place_of(id);
  CARILLON_ASSERT(ledger_.at(place).model.index() < models_.size());
  if (place >= asides_.size()) asides_.resize(place + 1);
  asides_[place].forget = false;
  if (options_.journal == nullptr) return place;
  const Ledger::Action& action = ledger_.at(place);
  ActionRecord& record = asides_[place].record;
  record.entry = options_.journal->next_entry();
  record.kind = action.kind;
  record.again = action.profiled.has_value();
  record.lost = false;
  record.status = ActionRecord::under_way;
  record.device = devices_[action.device.index()].in_journal;
  record.model = outlooks_[action.model.index()].name;
  record.rows = rows_of(action);
  record.sent = action.sent;
  record.window =
      action.kind == ActionKind::unload ? Window{TimePoint::min(), TimePoint::max()} : action.window;
  record.predicted = action.expected;
  record.ended = explain::never;
  record.paused = Duration{0};
  record.preemptions = 0;
  record.count = 0;
  return place;
}

// A row of the call is in it.
void Core::note_part(Open& open, ActionRecord& action) {
  CallRecord& call = open.record;
  constexpr std::size_t most = CallRecord::most_actions;
  // Rows of one call follow each other.
  const auto tries = static_cast<std::size_t>(call.tries);
  if (tries > 0 && call.actions[(tries - 1) % most] == action.entry) return;
  call.actions[tries % most] = action.entry;
  ++call.tries;
  if (action.count < ActionRecord::most_requests) action.requests[action.count++] = call.number;
}

void Core::note_end(std::uint32_t place, const worker::ActionResult& result, TimePoint now) {
  if (options_.journal == nullptr) return;
  ActionRecord& record = asides_[place].record;
  const worker::ActionTimes& times = result.times;
  record.status = static_cast<std::uint8_t>(result.status);
  record.ended = now;
  record.input_start = times.input_start;
  record.input_end = times.input_end;
  record.exec_start = times.exec_start;
  record.exec_end = times.exec_end;
  record.output_start = times.output_start;
  record.output_end = times.output_end;
  record.paused = times.paused;
  record.preemptions = times.preemptions;
  options_.journal->put(record);
}

void Core::note_lost(std::uint32_t place, TimePoint now) {
  if (options_.journal == nullptr) return;
  ActionRecord& record = asides_[place].record;
  record.lost = true;
  record.ended = now;
  options_.journal->put(record);
}

// Before its handler hears of it: who has the answer finds the record.
void Core::note_answer(Open& open, Outcome outcome, TimePoint now) {
  if (options_.journal == nullptr) return;
  CallRecord& record = open.record;
  record.outcome = fate_of(outcome);
  record.ended = now;
  if (open.would_take) record.would_take = *open.would_take;
  if (open.retry_after) record.retry_after = *open.retry_after;
  options_.journal->put(record);
}

// Decides that a call fails, and queues the news of its other rows for the scheduler. The answer is
// settle()'s.
void Core::close(std::uint32_t index, Outcome outcome, explain::Cause cause, Error error) {
  Open& open = open_[index];
  if (open.closing || open.answered) return;
  open.closing = true;
  open.outcome = outcome;
  if (options_.journal != nullptr) {
    open.record.cause = cause;
    say_message(open.record, error.message);
  }
  open.error = std::move(error);
  for (std::size_t r = 0; r < open.state.size(); ++r) {
    if (open.state[r] != Row::waiting && open.state[r] != Row::flying) continue;
    if (open.state[r] == Row::waiting) open.state[r] = Row::gone;
    pending_.push_back(schedule::RequestCancelled{RequestId{open.first.value + r}, open.model});
  }
  closing_.push_back(index);
}

// Answers the calls that were closed; the scheduler has heard of all of them.
void Core::settle(TimePoint now) {
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
    if (open.flying == 0) {
      answer.call = std::move(open.call);
      release(index);
    }
    handler(std::move(answer));
  }
  closing_.clear();
}

// --- Devices that go and come back

// What its device had is the scheduler's to try elsewhere, once it has heard that it went.
void Core::take_out(DeviceId id, std::string why, TimePoint now) {
  Device& device = live(id);
  device.alive = false;
  --alive_;
  device.life = device.worker->retire();  // nothing of it touches a row any more
  book_.device_lost(id);
  std::erase_if(deferred_, [&](const auto& done) { return ledger_.action(done.id)->device == id; });
  visit_taken([&](std::uint32_t place) {
    const Ledger::Action& action = ledger_.at(place);
    if (action.device != id) return;
    note_lost(place, now);
    for (const RequestId request : action.requests) lose(request, why);
    if (action.profiled && asides_[place].forget) forget(*action.profiled);
    timeline_.forget(place);
  });
  revivals_.down(id, now);
  if (options_.on_device) options_.on_device({id, false, std::move(why)});
}

// One row's INFER has gone with its device.
void Core::lose(RequestId request, const std::string& why) {
  const auto found = requests_.find(request.value);
  CARILLON_ASSERT(found.has_value());
  Open& open = open_[*found];
  CARILLON_ASSERT(row(open, request) == Row::flying);
  --open.flying;
  if (open.answered) {
    row(open, request) = Row::gone;
    requests_.erase(request.value);
    if (open.flying == 0) release(*found);
    return;
  }
  row(open, request) = open.closing ? Row::gone : Row::waiting;
  count_waiting(open, open.flying == 0);
  open.worker_error = "its device went: " + why;
}

void Core::on_probe(const worker::ProbeResult& result, TimePoint now) {
  enter(now);
  Device& device = devices_[result.device.index()];
  if (stopped_ || device.alive || result.life != device.life) return;
  revivals_.probed(result.device, result.found.has_value(), now);
  if (!result.found) return;
  device.alive = true;
  ++alive_;
  book_.device_back(result.device);
  if (options_.on_device) options_.on_device({result.device, true, {}});
  feed(schedule::DeviceChanged{result.device, true, device.worker->total_pages(),
                               device.worker->best_effort()},
       now);
  settle(now);
}

// One row's INFER has succeeded for the others, and not for it: it is over for the scheduler, too.
void Core::turn_down(RequestId request, const Error& error) {
  const auto found = requests_.find(request.value);
  CARILLON_ASSERT(found.has_value());
  Open& open = open_[*found];
  CARILLON_ASSERT(row(open, request) == Row::flying);
  --open.flying;
  row(open, request) = Row::gone;
  if (open.answered) {
    requests_.erase(request.value);
    if (open.flying == 0) release(*found);
    return;
  }
  std::string where = "model '" + models_[open.model.index()].info.name + "'";
  if (open.rows > 1) where += ": row " + std::to_string(request.value - open.first.value);
  const Outcome outcome = error.code == ErrorCode::invalid_argument    ? Outcome::invalid
                          : error.code == ErrorCode::deadline_exceeded ? Outcome::refused
                                                                       : Outcome::failed;
  const explain::Cause cause = error.code == ErrorCode::invalid_argument    ? explain::Cause::bad_data
                               : error.code == ErrorCode::deadline_exceeded ? explain::Cause::deadline_passed
                                                                            : explain::Cause::error;
  close(*found, outcome, cause, in_context(where, error).error());
}

// One row's INFER has ended, however.
void Core::land(RequestId request, const worker::ActionResult& result, TimePoint now) {
  const auto found = requests_.find(request.value);
  CARILLON_ASSERT(found.has_value());
  Open& open = open_[*found];
  CARILLON_ASSERT(row(open, request) == Row::flying);
  --open.flying;
  if (open.answered) {
    row(open, request) = Row::gone;
    requests_.erase(request.value);
    if (open.flying == 0) release(*found);
    return;
  }
  const worker::ActionTimes& times = result.times;
  if (result.status == schedule::ActionStatus::success) {
    row(open, request) = Row::done;
    if (kept_.any()) kept_.answered(request, *open.call, request.value - open.first.value);
    requests_.erase(request.value);
    open.steps.input = times.input_end - times.input_start;
    open.steps.infer = times.ran();
    open.steps.output = times.output_end - times.output_start;
    open.steps.queue = std::max(Duration{0}, times.exec_start - open.arrival - open.steps.input);
    if (++open.done == open.rows)
      answer_success(*found, now);
    else
      count_waiting(open, open.flying == 0);
    return;
  }
  row(open, request) = Row::waiting;  // the scheduler tries again, or refuses it
  count_waiting(open, open.flying == 0);
  if (result.status == schedule::ActionStatus::failed) open.worker_error = result.error;
}

void Core::answer_success(std::uint32_t index, TimePoint now) {
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
  release(index);
  handler(std::move(answer));
}

void Core::count_waiting(Open& open, bool waiting) {
  if (std::exchange(open.waiting, waiting) == waiting) return;
  book_.waits(open.model, waiting);
  if (open.call->place) open.call->place->waits(waiting);
}

void Core::release(std::uint32_t index) {
  Open& open = open_[index];
  open_rows_ -= static_cast<std::size_t>(open.rows);
  open.call.reset();
  open.handler = nullptr;
  open_.give_back(index);
}

// Of a row of an open model: there are few, and what takes about as long has the same.
std::size_t magnitude(const InferCall& call) {
  std::size_t bytes = 1;
  for (const auto& input : call.inputs) bytes += input.size() / static_cast<std::size_t>(call.rows);
  return static_cast<std::size_t>(std::lround(4 * std::log2(static_cast<double>(bytes))));
}

AppId Core::application(const InferCall& call, TimePoint now) {
  const ServedModel& model = models_[call.model.index()];
  const bool by_length = options_.by_length && (!model.lengths.empty() || model.open);
  if (call.application.empty() && !by_length) return AppId{0};
  Application key{call.application, 0xffffffffU, 0};
  if (by_length) {
    const auto length = std::ranges::lower_bound(model.lengths, call.length);
    key = {call.application, call.model.value,
           model.open ? magnitude(call) : static_cast<std::size_t>(length - model.lengths.begin())};
  }
  if (const auto found = applications_.find(key); found != applications_.end()) return found->second;
  // Names come from outside: beyond the cap they are not told apart, but lengths are.
  const bool named = !call.application.empty();
  if (named && named_ >= options_.max_applications) {
    if (!by_length) return AppId{0};
    std::get<0>(key).clear();
    if (const auto found = applications_.find(key); found != applications_.end()) return found->second;
  } else if (named) {
    ++named_;
  }
  const AppId id{static_cast<std::uint32_t>(applications_.size()) + 1};
  const std::size_t place = std::get<2>(key);
  applications_.emplace(std::move(key), id);
  // What is known of a length is known from the first request on.
  // It was measured when the server started: as good as so many samples.
  constexpr int measured_as = 8;
  if (by_length && place < model.info.solos.size())
    for (int i = 0; i < measured_as; ++i)
      feed(schedule::RequestProfiled{call.model, id, model.info.solos[place]}, now);
  return id;
}

}  // namespace carillon::controller
