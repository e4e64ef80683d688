#include "carillon/engine/host_stream.h"

#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::engine {

std::unique_ptr<Stream> Engine::make_stream(const StreamOptions&) {
  return nullptr;
}

HostStream::HostStream(const Clock& clock, HostStreamOptions options)
    : options_(std::move(options)),
      thread_(
          clock, [this] { return own_turn(); }, options_.spin) {
  if (options_.on_runner)
    runner_ = std::make_unique<TurnThread>(clock, [this] {
      if (std::exchange(was_evicted_, false)) options_.evicted();
      return TimePoint::max();
    });
}

Result<> HostStream::start(Client& client) {
  client_ = &client;
  if (runner_) {
    if (auto started = runner_->start(options_.name + "-run"); !started) return started;
    runner_->call(options_.on_runner);
  }
  return thread_.start(options_.name);
}

void HostStream::launch(const Launch& launch) {
  CARILLON_ASSERT(!launched_ && launch.run != 0 && launch.share > 0 && launch.share <= 1);
  launched_ = launch;
  running_.store(launch.run);
}

void HostStream::evict(std::uint64_t run) {
  wanted_.store(run);
  if (running_.load() != run) return;
  if (options_.inside)
    signal_.request(run);
  else
    signal_.wanted.store(run);
}

void HostStream::give_up(std::uint64_t run) {
  evict(run);
  if (running_.load() == run) signal_.give_up(run);
}

void HostStream::run(const Launch& launch, Completion& completion) {
  try {
    completion.result = launch.plan->run(launch.kernels, launch.binding, {}, &signal_, &pacer_);
  } catch (const std::exception& error) {
    completion.result = fail(ErrorCode::unavailable, error.what());
  } catch (...) {
    completion.result = fail(ErrorCode::unavailable, "the engine threw what is no std::exception");
  }
}

TimePoint HostStream::own_turn() {
  if (taken_.exchange(true)) return TimePoint::max();  // who helps wakes this thread when that is over
  const TimePoint next = turn();
  taken_.store(false);
  return next;
}

void HostStream::help() {
  if (taken_.exchange(true)) return;
  while (turn() == TimePoint::min()) {
  }
  taken_.store(false);
  thread_.wake();
}

// Between two turns, whoever takes them.
void HostStream::alone(const std::function<void()>& task) {
  while (taken_.exchange(true)) std::this_thread::sleep_for(std::chrono::microseconds{50});
  task();
  taken_.store(false);
}

TimePoint HostStream::turn() {
  if (!launched_) {
    const TimePoint next = client_->idle();
    return launched_ ? TimePoint::min() : next;
  }
  const Launch launch = *std::exchange(launched_, std::nullopt);
  Completion completion{.run = launch.run, .next = launch.kernels.last, .result = {}};
  signal_.run = launch.run;
  signal_.next = launch.kernels.last;
  signal_.lost = Duration{0};
  if (wanted_.load() == launch.run) signal_.wanted.store(launch.run);
  pacer_.set_share(launch.share);
  busy_ = true;
  const auto work = [&] {
    run(launch, completion);
    return signal_.next < launch.kernels.last && options_.evicted && raised();
  };
  bool evicted = false;
  if (runner_) {
    const auto task = [&] { was_evicted_ = work(); };
    runner_->call(std::cref(task));
  } else {
    evicted = work();
  }
  busy_ = false;
  running_.store(0);
  completion.next = signal_.next;
  completion.lost = signal_.lost;
  client_->completed(completion);
  if (evicted) options_.evicted();
  return TimePoint::min();
}

}  // namespace carillon::engine
