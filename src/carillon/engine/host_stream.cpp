#include "carillon/engine/host_stream.h"

#include <exception>
#include <utility>

#include "carillon/base/assert.h"

namespace carillon::engine {

HostStream::HostStream(const Clock& clock, std::string name, Duration spin)
    : name_(std::move(name)),
      thread_(
          clock, [this] { return turn(); }, spin) {}

Result<> HostStream::start(Client& client) {
  client_ = &client;
  return thread_.start(name_);
}

void HostStream::launch(const Launch& launch) {
  CARILLON_ASSERT(!launched_ && launch.run != 0 && launch.share > 0 && launch.share <= 1);
  launched_ = launch;
  running_.store(launch.run);
}

void HostStream::evict(std::uint64_t run) {
  wanted_.store(run);
  if (running_.load() == run) signal_.request(run);
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
  if (wanted_.load() == launch.run) signal_.wanted.store(launch.run);
  pacer_.set_share(launch.share);
  busy_ = true;
  try {
    completion.result = launch.plan->run(launch.kernels, launch.binding, {}, &signal_, &pacer_);
  } catch (const std::exception& error) {
    completion.result = fail(ErrorCode::unavailable, error.what());
  } catch (...) {
    completion.result = fail(ErrorCode::unavailable, "the engine threw what is no std::exception");
  }
  busy_ = false;
  running_.store(0);
  completion.next = signal_.next;
  client_->completed(completion);
  return TimePoint::min();
}

}  // namespace carillon::engine
