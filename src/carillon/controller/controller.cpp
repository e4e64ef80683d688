#include "carillon/controller/controller.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <pthread.h>

#include "carillon/base/assert.h"

namespace carillon::controller {
namespace {

std::vector<RowSize> row_bytes(const std::vector<graph::TensorSpec>& specs) {
  std::vector<RowSize> out;
  for (const graph::TensorSpec& spec : specs)
    out.push_back({graph::TensorType{spec.type, spec.shape_at(1, 1)}.bytes().count, spec.varies()});
  return out;
}

Class class_of(const std::string& name) {
  if (name == "real_time") return Class::real_time;
  if (name == "best_effort") return Class::best_effort;
  CARILLON_ASSERT(name == "normal");  // the repository reader has checked it
  return Class::normal;
}

Duration unix_minus(const Clock& clock) {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()) -
         clock.now().time_since_epoch();
}

}  // namespace

void Controller::Inbox::clear() {
  calls.clear();
  cancels.clear();
  results.clear();
  probes.clear();
}

Controller::Controller(std::unique_ptr<schedule::Scheduler> scheduler, const Options& options,
                       const Clock& clock)
    : clock_(clock),
      inbox_limit_(options.inbox),
      patience_(options.patience),
      core_(std::move(scheduler), options.core) {
  core_.book().set_unix_offset(unix_minus(clock));
}

Controller::~Controller() {
  stop();
  end_workers();  // the last actions end here, into buffers that core_ still holds
}

worker::ResultSink& Controller::results(DeviceId device) {
  CARILLON_ASSERT(state_ == State::preparing);
  while (ports_.size() <= device.index())
    ports_.emplace_back(*this, DeviceId{static_cast<std::uint32_t>(ports_.size())});
  return ports_[device.index()];
}

void Controller::add_worker(std::unique_ptr<worker::Worker> worker, std::string name) {
  CARILLON_ASSERT(state_ == State::preparing && worker != nullptr);
  core_.add_device(*worker, std::move(name));
  workers_.push_back(std::move(worker));
  devices_alive_ = workers_.size();
}

std::vector<DeviceId> Controller::end_workers() {
  // Nothing is read or written for them from here on, and they say nothing more.
  for (const auto& worker : workers_) worker->retire();
  const auto give_up = std::chrono::steady_clock::now() + patience_;
  std::vector<DeviceId> left;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const DeviceId device{static_cast<std::uint32_t>(i)};
    while (workers_[i]->busy() && core_.device_alive(device) && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    if (!workers_[i]->busy()) continue;
    left.push_back(device);
    // On purpose: its threads are inside it. Reachable, so that leak checkers know of it.
    static auto& left_behind = *new std::vector<worker::Worker*>;
    left_behind.push_back(workers_[i].release());
  }
  workers_.clear();
  return left;
}

void Controller::add_model(ModelView view, const engine::CompiledModel& compiled,
                           const schedule::ModelInfo& info) {
  CARILLON_ASSERT(state_ == State::preparing);
  ServedModel served{.info = info,
                     .version = view.version,
                     .input_row_bytes = row_bytes(compiled.inputs()),
                     .output_row_bytes = row_bytes(compiled.outputs()),
                     .time_varies = compiled.time_varies(),
                     .lengths = {compiled.lengths().begin(), compiled.lengths().end()},
                     .slo = view.config.slo,
                     .cls = class_of(view.config.model_class)};
  output_row_bytes_.push_back(served.output_row_bytes);
  core_.add_model(std::move(served));
  view.ready = true;
  view.reason.clear();
  view.id = info.id;
  directory_.put(std::move(view));
}

void Controller::add_unready(ModelView view) {
  CARILLON_ASSERT(state_ == State::preparing);
  view.ready = false;
  directory_.put(std::move(view));
}

void Controller::start() {
  const std::lock_guard lock(mutex_);
  CARILLON_ASSERT(state_ == State::preparing && !workers_.empty());
  state_ = State::running;
  thread_ = std::thread([this] { run(); });
}

void Controller::stop() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::stopping;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

bool Controller::ready() const {
  return serving() && devices_alive_ > 0;
}

bool Controller::serving() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::running;
}

std::uint64_t Controller::submit(std::unique_ptr<InferCall> call, AnswerHandler on_answer) {
  CARILLON_ASSERT(call != nullptr && call->rows >= 1);
  const std::uint64_t ticket = next_ticket_.fetch_add(1, std::memory_order_relaxed);
  const TimePoint at = clock_.now();
  if (!serving()) {
    on_answer(
        {fail(ErrorCode::unavailable, "the server is not serving now"), std::move(call), at, std::nullopt});
    return ticket;
  }
  CARILLON_ASSERT(call->model.index() < output_row_bytes_.size());
  const std::vector<RowSize>& row = output_row_bytes_[call->model.index()];
  call->outputs.resize(row.size());
  for (std::size_t i = 0; i < row.size(); ++i)
    call->outputs[i].resize(row[i].at(call->length) * static_cast<std::size_t>(call->rows));
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::running) {
      why = "the server is not serving now";
    } else if (inbox_.calls.size() >= inbox_limit_) {
      why = "the server is full: " + std::to_string(inbox_.calls.size()) + " requests wait to be looked at";
    } else {
      inbox_.calls.push_back({ticket, std::move(call), std::move(on_answer)});
      if (asleep_) wake_.notify_one();
      return ticket;
    }
  }
  core_.book().answered(call->model, Outcome::failed, call->rows, std::min(call->arrival, at), at, {});
  on_answer({fail(ErrorCode::unavailable, std::move(why)), std::move(call), at, std::nullopt});
  return ticket;
}

void Controller::cancel(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::running) return;
  inbox_.cancels.push_back(ticket);
  if (asleep_) wake_.notify_one();
}

void Controller::Port::on_result(const worker::ActionResult& result) {
  const std::lock_guard lock(owner.mutex_);
  if (owner.state_ != State::running)
    return;  // all calls are answered then, and their buffers stay to the end
  owner.inbox_.results.push_back(result);
  owner.inbox_.results.back().device = device;
  if (owner.asleep_) owner.wake_.notify_one();
}

void Controller::Port::on_probe(const worker::ProbeResult& result) {
  const std::lock_guard lock(owner.mutex_);
  if (owner.state_ != State::running) return;
  owner.inbox_.probes.push_back(result);
  owner.inbox_.probes.back().device = device;
  if (owner.asleep_) owner.wake_.notify_one();
}

void Controller::run() {
  pthread_setname_np(pthread_self(), "carillon-ctl");
  core_.start(clock_.now());
  Inbox work;
  std::unique_lock lock(mutex_);
  while (state_ == State::running) {
    if (inbox_.empty()) {
      const TimePoint at = core_.wake_at();
      const TimePoint now = clock_.now();
      if (at > now) {
        asleep_ = true;
        // At most a minute, so that no sum of times overflows.
        if (at == TimePoint::max())
          wake_.wait(lock);
        else
          wake_.wait_for(lock, std::min<Duration>(at - now, std::chrono::minutes{1}));
        asleep_ = false;
      }
    }
    std::swap(work, inbox_);
    lock.unlock();
    handle(work);
    work.clear();
    lock.lock();
  }
  std::swap(work, inbox_);
  lock.unlock();
  core_.stop(clock_.now());
  handle(work);  // calls that came before the stop are answered like those that were open
}

void Controller::handle(Inbox& inbox) {
  // Results first: they free what the calls may need. Cancellations last: they may be of calls beside them.
  for (const worker::ActionResult& result : inbox.results) core_.on_result(result, clock_.now());
  for (const worker::ProbeResult& result : inbox.probes) core_.on_probe(result, clock_.now());
  for (Submission& submission : inbox.calls)
    core_.submit(submission.ticket, std::move(submission.call), std::move(submission.handler), clock_.now());
  for (const std::uint64_t ticket : inbox.cancels) core_.cancel(ticket, clock_.now());
  if (const TimePoint now = clock_.now(); core_.wake_at() <= now) core_.wake(now);
  devices_alive_ = core_.devices_alive();
}

ServerStatistics Controller::statistics() const {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::preparing) return {};  // models and workers are still being added
  }
  const std::lock_guard advising(advice_mutex_);  // counters that are older than the last look's would not do
  ServerStatistics out = core_.book().snapshot();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    out.devices[i].pages_total = workers_[i]->total_pages();
    out.devices[i].pages_free = workers_[i]->free_pages();
    out.pages_total += out.devices[i].pages_total;
    out.pages_free += out.devices[i].pages_free;
  }
  provision::AutoscaleWindow::Counters counters{.requests = 0, .bad = 0, .busy = out.exec_busy};
  for (const ModelStatistics& m : out.models) {
    const std::uint64_t bad = m.late + m.refused + m.failed;
    counters.requests += m.on_time + bad;
    counters.bad += bad;
  }
  out.advice = advice_.observe(clock_.now(), static_cast<int>(devices_alive_), counters);
  return out;
}

}  // namespace carillon::controller
