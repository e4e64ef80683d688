#include "carillon/frontend/grpc/answer_times.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <grpc/grpc.h>
#include <pthread.h>

#include "carillon/base/assert.h"
#include "carillon/frontend/net/transfer_time.h"

namespace carillon::frontend {
namespace {

TimePoint now() {
  return TimePoint{std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

// How often is looked. Times are as long as this is short.
constexpr Duration times_looked_every = std::chrono::seconds(1);

}  // namespace

AnswerTimes::AnswerTimes(Duration base) : base_(base), thread_([this] { run(); }) {}

AnswerTimes::~AnswerTimes() {
  {
    const std::lock_guard lock(mutex_);
    CARILLON_ASSERT(answers_.empty());
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

AnswerTimes::Ticket AnswerTimes::begin(grpc_call* call, std::size_t bytes) {
  const Duration given = transfer_time(base_, bytes);
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++next_;
  grpc_call_ref(call);
  answers_.emplace(number, Answer{.call = call, .given = given, .until = now() + given, .bytes = bytes});
  return {*this, number};
}

void AnswerTimes::end(std::uint64_t number) {
  grpc_call* call = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto it = answers_.find(number);
    if (it == answers_.end()) return;
    call = it->second.call;
    answers_.erase(it);
  }
  grpc_call_unref(call);
}

void AnswerTimes::run() {
  pthread_setname_np(pthread_self(), "carillon-taking");
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::min(times_looked_every, base_), [this] { return ending_; })) {
    const TimePoint at = now();
    std::vector<Answer> late;
    for (auto it = answers_.begin(); it != answers_.end();) {
      if (it->second.until > at) {
        ++it;
        continue;
      }
      late.push_back(it->second);
      it = answers_.erase(it);
    }
    if (late.empty()) continue;
    // Without the lock: what ends may end its ticket on this thread.
    lock.unlock();
    for (const Answer& answer : late) {
      const std::string why =
          "the client did not take its answer of " + std::to_string(answer.bytes) + " bytes within " +
          std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(answer.given).count()) + " ms";
      grpc_call_cancel_with_status(answer.call, GRPC_STATUS_ABORTED, why.c_str(), nullptr);
      grpc_call_unref(answer.call);
    }
    lock.lock();
  }
}

}  // namespace carillon::frontend
