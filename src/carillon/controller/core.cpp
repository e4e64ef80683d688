#include "carillon/controller/core.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

wire::Model told(ServedModel model) {
  return {.info = std::move(model.info),
          .version = model.version,
          .hash = model.hash,
          .config = std::move(model.config),
          .inputs = std::move(model.inputs),
          .outputs = std::move(model.outputs),
          .lengths = std::move(model.lengths),
          .apart = std::move(model.apart)};
}

}  // namespace

Core::Core(std::unique_ptr<schedule::Scheduler> scheduler, const CoreOptions& options)
    : Core(options, std::move(scheduler), dispatch(), nullptr) {}

Core::Core(const MakeDecider& decider, RowLookup* rows, const CoreOptions& options)
    : Core(options, nullptr, decider, rows) {}

Core::Core(const CoreOptions& options, std::unique_ptr<schedule::Scheduler> scheduler,
           const MakeDecider& decider, RowLookup* rows)
    : options_(options),
      scheduler_(std::move(scheduler)),
      recorder_(book_, options_.journal, options_.timeline, options_.on_device, options_.on_batch),
      decider_(decider(holder_, recorder_)),
      holder_(*decider_,
              {.default_deadline = options_.default_deadline,
               .longest_deadline = options_.longest_deadline,
               .max_open = options_.max_open,
               .by_length = options_.by_length,
               .largest_kept_row = options_.largest_kept_row,
               .on_left = options_.on_left},
              book_, options_.journal.get()),
      rows_(rows != nullptr ? *rows : holder_) {}

MakeDecider Core::dispatch() {
  return [this](Holder& calls, dispatch::Notes& notes) {
    auto made = std::make_unique<dispatch::Dispatch>(
        *scheduler_,
        dispatch::Options{.max_applications = options_.max_applications,
                          .slow_after = options_.slow_after,
                          .full_queue_pause = options_.full_queue_pause,
                          .revivals = options_.revivals,
                          .on_leisure = options_.on_leisure,
                          .on_decided = options_.audit ? [this] { options_.audit(*this, local_->ledger()); }
                                                       : std::function<void()>{}},
        calls, notes);
    local_ = made.get();
    return made;
  };
}

Core::~Core() {
  stop(last_);
}

// Time as our caller tells it; it never goes back.
void Core::enter(TimePoint now) {
  CARILLON_ASSERT(now >= last_);
  last_ = now;
}

void Core::add_device(worker::Worker& worker, std::string name) {
  links_.emplace_back(worker, rows_);
  decider_->add_device(links_.back());
  holder_.add_device(recorder_.add_device(std::move(name)));
}

void Core::hold(const ServedModel& model) {
  CARILLON_ASSERT(model.info.id.index() == models_);
  ++models_;
  recorder_.add_model(model.info.name);
  holder_.add_model({.name = model.info.name,
                     .told = {.name = {}, .version = model.version, .slo = model.slo, .cls = model.cls},
                     .input_row_bytes = model.input_row_bytes,
                     .output_row_bytes = model.output_row_bytes,
                     .lengths = model.lengths,
                     .open = model.open,
                     .tells_sizes = !model.info.sizes.empty()});
}

void Core::add_model(ServedModel model) {
  book_.add_model(model.info.name, model.version, model.slo);
  hold(model);
  decider_->add_model(told(std::move(model)));
}

void Core::start(TimePoint now) {
  enter(now);
  holder_.start();
  decider_->start(now);
  settle(now);
}

void Core::come(ServedModel model, TimePoint now) {
  enter(now);
  hold(model);
  decider_->come(told(std::move(model)), now);
  settle(now);
}

void Core::go(ModelId id, TimePoint now) {
  enter(now);
  if (decider_->stopped() || !holder_.go(id)) return;
  going_.push_back(id);
  decider_->go(id, now);
  settle(now);
}

void Core::change_times(ModelId id, std::vector<schedule::BatchProfile> batches, TimePoint now) {
  enter(now);
  CARILLON_ASSERT(id.index() < models_);
  if (decider_->stopped() || holder_.model(id).gone) return;
  book_.reseed(id, decider_->model(id).batches, batches);
  decider_->change_times(id, std::move(batches), now);
  settle(now);
}

// Answers what is decided, and tells of models that have gone by that.
void Core::settle(TimePoint now) {
  holder_.settle(now);
  tell_gone();
}

// A device that went may still do something with a model that it had. One that comes back has nothing.
void Core::tell_gone() {
  if (going_.empty() || devices_alive() < devices()) return;
  std::erase_if(going_, [this](ModelId id) {
    const auto [calls, on_devices] = uses(id);
    const bool gone = calls == 0 && !on_devices;
    if (gone && options_.on_gone) options_.on_gone(id);
    return gone;
  });
}

Core::Uses Core::uses(ModelId id) const {
  return {.calls = holder_.calls_of(id), .on_devices = decider_->on_devices(id)};
}

void Core::gather(std::uint64_t ticket, std::unique_ptr<InferCall> call, AnswerHandler on_answer,
                  TimePoint now) {
  enter(now);
  holder_.gather(ticket, std::move(call), std::move(on_answer), now);
}

void Core::decide(TimePoint now) {
  enter(now);
  holder_.offer(now);
  tell_gone();
}

void Core::cancel(std::uint64_t ticket, TimePoint now) {
  enter(now);
  holder_.cancel(ticket, now);
  tell_gone();
}

void Core::on_result(const worker::ActionResult& result, TimePoint now) {
  enter(now);
  decider_->on_report(result, now);
  settle(now);
}

void Core::on_probe(const worker::ProbeResult& result, TimePoint now) {
  enter(now);
  decider_->on_probe(result, now);
  settle(now);
}

void Core::wake(TimePoint now) {
  enter(now);
  decider_->wake(now);
  settle(now);
}

void Core::react(const std::function<void(TimePoint)>& what, TimePoint now) {
  enter(now);
  if (decider_->stopped()) return;
  what(now);
  settle(now);
}

void Core::nudge(TimePoint now) {
  enter(now);
  CARILLON_ASSERT(local_ != nullptr);
  local_->nudge(now);
  settle(now);
}

void Core::stop(TimePoint now) {
  enter(now);
  if (decider_->stopped()) return;
  decider_->stop();
  holder_.stop(now);
}

}  // namespace carillon::controller
