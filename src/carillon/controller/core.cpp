#include "carillon/controller/core.h"

#include <utility>

#include "carillon/base/assert.h"

namespace carillon::controller {

Core::Core(std::unique_ptr<schedule::Scheduler> scheduler, const CoreOptions& options)
    : options_(options),
      scheduler_(std::move(scheduler)),
      recorder_(book_, options_.journal, options_.timeline, options_.on_device, options_.on_batch),
      dispatch_(*scheduler_,
                {.max_applications = options_.max_applications,
                 .slow_after = options_.slow_after,
                 .full_queue_pause = options_.full_queue_pause,
                 .revivals = options_.revivals,
                 .on_leisure = options_.on_leisure,
                 .on_decided = options_.audit ? [this] { options_.audit(*this, dispatch_.ledger()); }
                                              : std::function<void()>{}},
                holder_, recorder_),
      holder_(dispatch_,
              {.default_deadline = options_.default_deadline,
               .longest_deadline = options_.longest_deadline,
               .max_open = options_.max_open,
               .by_length = options_.by_length,
               .largest_kept_row = options_.largest_kept_row,
               .on_left = options_.on_left},
              book_, options_.journal.get()) {}

Core::~Core() {
  stop(last_);
}

// Time as our caller tells it; it never goes back.
void Core::enter(TimePoint now) {
  CARILLON_ASSERT(now >= last_);
  last_ = now;
}

void Core::add_device(worker::Worker& worker, std::string name) {
  links_.emplace_back(worker, holder_);
  dispatch_.add_device(links_.back());
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
  dispatch_.add_model(std::move(model.info));
}

void Core::start(TimePoint now) {
  enter(now);
  holder_.start();
  dispatch_.start(now);
  settle(now);
}

void Core::come(ServedModel model, TimePoint now) {
  enter(now);
  hold(model);
  dispatch_.come(std::move(model.info), now);
  settle(now);
}

void Core::go(ModelId id, TimePoint now) {
  enter(now);
  if (dispatch_.stopped() || !holder_.go(id)) return;
  going_.push_back(id);
  dispatch_.go(id, now);
  settle(now);
}

void Core::change_times(ModelId id, std::vector<schedule::BatchProfile> batches, TimePoint now) {
  enter(now);
  CARILLON_ASSERT(id.index() < models_);
  if (dispatch_.stopped() || holder_.model(id).gone) return;
  book_.reseed(id, dispatch_.model(id).batches, batches);
  dispatch_.change_times(id, std::move(batches), now);
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
  return {.calls = holder_.calls_of(id), .on_devices = dispatch_.on_devices(id)};
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
  dispatch_.on_report(result, now);
  settle(now);
}

void Core::on_probe(const worker::ProbeResult& result, TimePoint now) {
  enter(now);
  dispatch_.on_probe(result, now);
  settle(now);
}

void Core::wake(TimePoint now) {
  enter(now);
  dispatch_.wake(now);
  settle(now);
}

void Core::stop(TimePoint now) {
  enter(now);
  if (dispatch_.stopped()) return;
  dispatch_.stop();
  holder_.stop(now);
}

}  // namespace carillon::controller
