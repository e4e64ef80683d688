#include "carillon/controller/gates/ensembles.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/controller/gates/directory.h"

namespace carillon::controller {
namespace {

// Tickets of requests to ensembles have this bit; the others are the inner service's.
constexpr std::uint64_t ensemble_ticket = std::uint64_t{1} << 63;

Duration unix_time_minus(const Clock& clock) {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()) -
         clock.now().time_since_epoch();
}

Outcome outcome_of(const Result<>& status, TimePoint finished, TimePoint deadline,
                   const std::optional<Duration>& retry_after) {
  if (status) return finished <= deadline ? Outcome::on_time : Outcome::late;
  switch (status.error().code) {
    case ErrorCode::deadline_exceeded:
      return Outcome::refused;
    case ErrorCode::resource_exhausted:
      return Outcome::shed;
    case ErrorCode::cancelled:
      return Outcome::cancelled;
    case ErrorCode::invalid_argument:
      return Outcome::invalid;
    case ErrorCode::unavailable:
      return retry_after ? Outcome::shed : Outcome::failed;  // a step's queue is full
    case ErrorCode::not_found:
    case ErrorCode::unsupported:
    case ErrorCode::internal:
      return Outcome::failed;
  }
  CARILLON_ASSERT(false);
}

bool same_tensors(const repository::ModelConfig& a, const repository::ModelConfig& b) {
  return a.inputs == b.inputs && a.outputs == b.outputs && a.max_batch_size == b.max_batch_size &&
         a.whole_rows == b.whole_rows && a.lengths == b.lengths && a.padding == b.padding;
}

// The class that an ensemble's own config says.
std::optional<Class> own_class(const repository::ModelConfig& config) {
  if (config.model_class == "real_time") return Class::real_time;
  if (config.model_class == "best_effort") return Class::best_effort;
  return std::nullopt;
}

// Whether the model of `config`, asked at `at` with the deadline of `call`, would not hold it to that but
// delay it (QueueRules::enter()).
bool delays(const repository::ModelConfig& config, const InferCall& call, TimePoint at) {
  if (config.queue == nullptr || config.slo || call.deadline_from != explain::DeadlineFrom::timeout)
    return false;
  const repository::QueuePolicy& policy = config.queue->policy_of(config.queue->level_of(call.priority));
  return policy.delays && policy.takes_timeout &&
         (!policy.due || call.deadline <= saturating_add(at, *policy.due));
}

// Those of `steps` that `call` does not hold to its deadline. An ensemble is one where all its steps are.
std::uint64_t delayed_steps(const Ensemble& ensemble, std::uint64_t steps,
                            const std::vector<bool>& outputs_wanted, const InferCall& call, TimePoint at) {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < ensemble.steps.size(); ++i) {
    if ((steps >> i & 1U) == 0) continue;
    const ModelView& view = *ensemble.steps[i].view;
    bool delayed = false;
    if (view.ensemble == nullptr) {
      delayed = delays(view.config, call, at);
    } else {
      const auto wanted = outputs_of_step(ensemble, i, steps, outputs_wanted);
      const std::uint64_t inner = steps_for(*view.ensemble, wanted);
      delayed = delayed_steps(*view.ensemble, inner, wanted, call, at) == inner;
    }
    if (delayed) out |= std::uint64_t{1} << i;
  }
  return out;
}

// The models of `steps`, and of the steps of ensembles among them.
void add_models(const Ensemble& ensemble, std::uint64_t steps, const std::vector<bool>& outputs_wanted,
                std::vector<ModelId>& out) {
  for (std::size_t i = 0; i < ensemble.steps.size(); ++i) {
    if ((steps >> i & 1U) == 0) continue;
    const ModelView& view = *ensemble.steps[i].view;
    if (view.ensemble == nullptr) {
      out.push_back(view.id);
      continue;
    }
    const auto wanted = outputs_of_step(ensemble, i, steps, outputs_wanted);
    add_models(*view.ensemble, steps_for(*view.ensemble, wanted), wanted, out);
  }
}

}  // namespace

Ensembles::Ensembles(Service& inner, const Clock& clock, EnsembleOptions options)
    : inner_(inner), clock_(clock), options_(options) {
  CARILLON_ASSERT(options_.lanes >= 1);
  book_.set_unix_offset(unix_time_minus(clock));
}

Ensembles::~Ensembles() {
  stop();
}

void Ensembles::start() {
  const std::lock_guard lock(mutex_);
  CARILLON_ASSERT(!running_);
  running_ = true;
  thread_ = std::thread([this] { run(); });
}

void Ensembles::stop() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

Duration Ensembles::expected(ModelId model, int rows) const {
  const auto ensemble = inner_.ensemble(model);
  return ensemble == nullptr ? inner_.expected(model, rows) : times(*ensemble, rows, {}).whole;
}

EnsembleTimes Ensembles::times(const Ensemble& ensemble, int rows,
                               const std::vector<bool>& outputs_wanted) const {
  return times_of(ensemble, takes(ensemble, rows, outputs_wanted), options_.lanes);
}

std::vector<Duration> Ensembles::takes(const Ensemble& ensemble, int rows,
                                       const std::vector<bool>& outputs_wanted) const {
  const std::uint64_t needed = steps_for(ensemble, outputs_wanted);
  std::vector<Duration> takes;
  for (std::size_t i = 0; i < ensemble.steps.size(); ++i) {
    if ((needed >> i & 1U) == 0) {
      takes.emplace_back(0);
      continue;
    }
    const Ensemble::Step& step = ensemble.steps[i];
    const bool batches = step.view->config.max_batch_size > 0 && ensemble.config.max_batch_size > 0;
    const int of_step = batches ? rows : 1;
    const Duration run =
        step.view->ensemble == nullptr
            ? inner_.expected(step.view->id, of_step)
            : times(*step.view->ensemble, of_step, outputs_of_step(ensemble, i, needed, outputs_wanted))
                  .whole;
    const auto beyond =
        Duration{static_cast<std::int64_t>(options_.safety * static_cast<double>(run.count()))};
    takes.push_back(run + beyond + options_.hop);
  }
  return takes;
}

// The times of what must be done by the deadline: without delayed steps that only delayed ones follow.
EnsembleTimes Ensembles::bounding(const Ensemble& ensemble, std::vector<Duration> takes, std::uint64_t needed,
                                  std::uint64_t delayed) const {
  for (std::size_t i = 0; i < takes.size(); ++i)
    if ((delayed >> i & 1U) != 0 && (ensemble.steps[i].behind & needed & ~delayed) == 0)
      takes[i] = Duration{0};
  return times_of(ensemble, takes, options_.lanes);
}

TimePoint Ensembles::deadline_of(const InferCall& call, const Ensemble& ensemble) const {
  if (call.deadline != TimePoint::max()) return call.deadline;
  if (ensemble.config.slo) return saturating_add(call.arrival, *ensemble.config.slo);
  const bool best_effort =
      (call.class_given ? call.cls : own_class(ensemble.config).value_or(Class::normal)) ==
      Class::best_effort;
  return options_.default_deadline && !best_effort ? saturating_add(call.arrival, *options_.default_deadline)
                                                   : TimePoint::max();
}

ModelId Ensembles::page_of(const std::string& name, std::int64_t version,
                           const std::optional<Duration>& slo) const {
  const std::lock_guard lock(book_mutex_);
  const auto [at, fresh] =
      pages_.emplace(std::pair(name, version), ModelId{static_cast<std::uint32_t>(pages_.size())});
  if (fresh) book_.add_model(name, version, slo);
  return at->second;
}

std::uint64_t Ensembles::submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) {
  CARILLON_ASSERT(call != nullptr);
  const ModelId id = call->model;
  if ((id.value & Directory::ensemble_bit) == 0) return inner_.submit(std::move(call), std::move(on_answer));
  const TimePoint at = clock_.now();
  auto ensemble = inner_.ensemble(id);
  if (ensemble == nullptr) {
    on_answer(
        {fail(ErrorCode::unavailable, "the ensemble has changed since the request was read; send it again"),
         std::move(call), at, std::nullopt});
    return ensemble_ticket;
  }
  const TimePoint deadline = deadline_of(*call, *ensemble);
  const std::uint64_t needed = steps_for(*ensemble, call->outputs_wanted);
  const std::uint64_t delayed = delayed_steps(*ensemble, needed, call->outputs_wanted, *call, at);
  std::vector<Duration> each = takes(*ensemble, call->rows, call->outputs_wanted);
  EnsembleTimes times = times_of(*ensemble, each, options_.lanes);
  if (delayed != 0 && saturating_add(at, times.whole) > deadline)
    times = bounding(*ensemble, std::move(each), needed, delayed);
  EnsembleRun run(ensemble, *call);
  auto open = std::make_unique<Open>(Open{.ensemble = std::move(ensemble),
                                          .call = std::move(call),
                                          .handler = std::move(on_answer),
                                          .run = std::move(run),
                                          .times = std::move(times),
                                          .delayed = delayed,
                                          .deadline = deadline,
                                          .started = at});
  open->room = std::make_shared<StepsRoom>(open->call->room_for_outputs, open->run.bytes());
  add_models(*open->ensemble, open->run.needed(), open->call->outputs_wanted, open->models);
  Result<> refused;
  std::optional<Duration> would_take, retry_after;
  std::uint64_t ticket = ensemble_ticket;
  if (const TimePoint end = saturating_add(at, open->times.whole); end > deadline && delayed != needed) {
    would_take = end - open->call->arrival;
    refused =
        fail(ErrorCode::deadline_exceeded,
             fmt::format("cannot finish by its deadline: the ensemble's steps take about {:.3g} ms, and "
                         "{:.3g} ms are left",
                         to_ms(open->times.whole), std::max(0.0, to_ms(deadline - at))));
  } else {
    const std::lock_guard lock(mutex_);
    ticket |= next_ticket_++;
    if (!running_) {
      refused = fail(ErrorCode::unavailable, "the server is not serving now");
    } else if (open_count_ >= options_.most_open) {
      refused = fail(ErrorCode::resource_exhausted,
                     fmt::format("{} requests to ensembles are open; try again later", open_count_));
      retry_after = retry_when_full;
    } else {
      ++open_count_;
      for (const ModelId model : open->models) ++used_[model];
      events_.emplace_back(Begin{ticket, std::move(open)});
      wake_.notify_one();
      return ticket;
    }
  }
  give(*open, std::move(refused), would_take, retry_after);
  return ticket;
}

void Ensembles::cancel(std::uint64_t ticket) {
  if ((ticket & ensemble_ticket) == 0) return inner_.cancel(ticket);
  post(Cancel{ticket});
}

void Ensembles::post(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  wake_.notify_one();
}

void Ensembles::run() {
  pthread_setname_np(pthread_self(), "carillon-steps");
  std::vector<Event> events;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return !events_.empty() || !running_; });
    if (events_.empty()) break;
    std::swap(events, events_);
    lock.unlock();
    for (Event& event : events) {
      const std::uint64_t ticket = std::visit([](const auto& each) { return each.ticket; }, event);
      try {
        std::visit([this](auto& each) { handle(each); }, event);
      } catch (const std::bad_alloc&) {
        if (open_.contains(ticket))
          end(ticket, fail(ErrorCode::resource_exhausted, "no memory is left for what its steps pass on"), {},
              retry_when_full);
      }
    }
    events.clear();
    lock.lock();
  }
  lock.unlock();
  // What the inner service never answered, where it was not told to stop before.
  while (!open_.empty()) end(open_.begin()->first, fail(ErrorCode::unavailable, "the server is stopping"));
}

void Ensembles::handle(Begin& event) {
  const auto at = open_.emplace(event.ticket, std::move(event.open)).first;
  go_on(at->first, *at->second);
}

// Starts what may start; ends it where there is nothing more, or a step cannot.
void Ensembles::go_on(std::uint64_t ticket, Open& open) {
  if (open.run.finished()) {
    auto done = open.run.finish(*open.call);
    return end(ticket, std::move(done));
  }
  for (const std::size_t step : open.run.take_ready())
    if (auto started = start_step(ticket, open, step); !started) {
      const bool full = started.error().code == ErrorCode::resource_exhausted;
      return end(ticket, in_context("step '" + open.ensemble->steps[step].model + "'", started.error()), {},
                 full ? std::optional(retry_when_full) : std::nullopt);
    }
}

std::size_t Ensembles::Open::tensors() const {
  std::size_t sum = run.bytes();
  for (const auto& [step, under] : under_way) sum += under.inputs;
  return sum;
}

bool Ensembles::Open::ends_delayed() const {
  for (std::size_t i = 0; i < ensemble->steps.size(); ++i)
    if ((delayed >> i & 1U) != 0 && (ensemble->steps[i].behind & run.needed()) == 0) return true;
  return false;
}

Result<> Ensembles::start_step(std::uint64_t ticket, Open& open, std::size_t step) {
  const Ensemble::Step& of = open.ensemble->steps[step];
  std::shared_ptr<const ModelView> view = of.view;
  // Another version that takes the same may have come in its place. Else the request goes on with what it was
  // held against, which stays until it is answered (uses()).
  if (auto now = inner_.find(of.model, of.version);
      now && (*now)->ready && same_tensors((*now)->config, of.view->config))
    view = std::move(*now);
  else if (const auto usable = view->usable ? view->usable() : Result<>{}; !usable)
    return fail(ErrorCode::unavailable, "the model is not ready: " + usable.error().message);
  if (auto room = open.room->hold_tensors(open.tensors() + open.run.copied_for(step)); !room) return room;
  auto made = open.run.call_of(step, view->config);
  if (!made) return std::unexpected(made.error());
  InferCall& call = **made;
  const InferCall& whole = *open.call;
  call.model = view->id;
  call.arrival = clock_.now();
  call.deadline =
      open.deadline == TimePoint::max() ? TimePoint::max() : open.deadline - open.times.after[step];
  const auto own = own_class(open.ensemble->config);
  call.class_given = whole.class_given || own.has_value();
  call.cls = whole.class_given ? whole.cls : own.value_or(Class::normal);
  call.priority = whole.priority;
  call.application = whole.application;
  call.id = whole.id;
  call.key = whole.key;
  call.trace = whole.trace;
  call.deadline_from = whole.deadline_from;
  call.sequence = whole.sequence;
  call.room_for_outputs = [room = open.room, step](std::size_t bytes) {
    return room->hold_outputs(step, bytes);
  };
  Open::Under& under = open.under_way[step];
  for (const auto& input : call.inputs) under.inputs += input.size();
  under.sent = call.arrival;
  under.view = std::move(view);
  under.ticket = submit(std::move(*made), [this, ticket, step](InferAnswer answer) {
    post(Answered{ticket, step, std::move(answer)});
  });
  return {};
}

void Ensembles::handle(Answered& event) {
  const auto at = open_.find(event.ticket);
  if (at == open_.end()) return;  // it ended, and this was cancelled
  Open& open = *at->second;
  const auto under = open.under_way.extract(event.step);
  const std::string label = "step '" + open.ensemble->steps[event.step].model + "'";
  if (open.call->trace.sampled()) {
    if (event.answer.number != 0) open.numbers.push_back(event.answer.number);
    open.numbers.insert(open.numbers.end(), event.answer.steps.begin(), event.answer.steps.end());
  }
  if (!event.answer.status) {
    std::optional<Duration> would_take;
    if (event.answer.would_take)
      would_take =
          under.mapped().sent + *event.answer.would_take + open.times.after[event.step] - open.call->arrival;
    Error error = std::move(event.answer.status.error());
    // It went although this was open, as it was waited for too long.
    if (error.code == ErrorCode::not_found) error.code = ErrorCode::unavailable;
    return end(event.ticket, in_context(label, error), would_take, event.answer.retry_after);
  }
  if (auto done = open.run.done(event.step, under.mapped().view->config, *event.answer.call); !done)
    return end(event.ticket, in_context(label, done.error()));
  event.answer.call.reset();  // and the step's inputs
  open.room->answered(event.step);
  if (auto room = open.room->hold_tensors(open.tensors()); !room)
    return end(event.ticket, in_context(label, room.error()), {}, retry_when_full);
  go_on(event.ticket, open);
}

void Ensembles::handle(Cancel& event) {
  if (open_.contains(event.ticket)) end(event.ticket, fail(ErrorCode::cancelled, "the client has gone"));
}

void Ensembles::end(std::uint64_t ticket, Result<> status, std::optional<Duration> would_take,
                    std::optional<Duration> retry_after) {
  auto ended = open_.extract(ticket);
  Open& open = *ended.mapped();
  open.room->close();
  for (const auto& [step, under] : open.under_way) cancel(under.ticket);
  bool let_go = false;
  {
    const std::lock_guard lock(mutex_);
    --open_count_;
    for (const ModelId model : open.models)
      if (const auto at = used_.find(model); --at->second == 0) {
        used_.erase(at);
        let_go = true;
      }
  }
  if (let_go && options_.on_let_go) options_.on_let_go();
  give(open, std::move(status), would_take, retry_after);
}

bool Ensembles::uses(ModelId model) const {
  const std::lock_guard lock(mutex_);
  return used_.contains(model);
}

void Ensembles::give(Open& open, Result<> status, std::optional<Duration> would_take,
                     std::optional<Duration> retry_after) {
  const TimePoint finished = clock_.now();
  const repository::ModelConfig& config = open.ensemble->config;
  const ModelId page = page_of(config.name, open.ensemble->version, config.slo);
  const CallSteps steps{.infer = finished - open.started};
  if (status) book_.executed_whole(page, open.call->rows, steps);
  // As of a model that delays: what comes after the client's timeout is not late.
  const TimePoint deadline = open.ends_delayed() ? TimePoint::max() : open.deadline;
  book_.answered(page, outcome_of(status, finished, deadline, retry_after), open.call->rows,
                 std::min(open.call->arrival, finished), finished, steps);
  open.handler({.status = std::move(status),
                .call = std::move(open.call),
                .finished = finished,
                .would_take = would_take,
                .retry_after = retry_after,
                .steps = std::move(open.numbers)});
}

ServerStatistics Ensembles::statistics() const {
  ServerStatistics out = inner_.statistics();
  for (const ModelView& view : inner_.models())
    if (view.ensemble != nullptr) page_of(view.name, view.version, view.config.slo);
  for (ModelStatistics& model : book_.snapshot().models) {
    model.ensemble = true;
    out.models.push_back(std::move(model));
  }
  return out;
}

}  // namespace carillon::controller
