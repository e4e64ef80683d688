#include "carillon/engine/turn_thread.h"

#include <chrono>
#include <system_error>
#include <utility>

#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "carillon/base/assert.h"

namespace carillon::engine {
TurnThread::TurnThread(const Clock& clock, std::function<TimePoint()> turn, Duration spin)
    : clock_(clock), turn_(std::move(turn)), spin_(spin) {}

Result<> TurnThread::start(const std::string& name) {
  CARILLON_ASSERT(!thread_.joinable());
  try {
    thread_ = std::thread([this] {
      number_ = ::gettid();
      // Timers of an ordinary thread may be 50 us late by default, to save power.
      prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
      loop();
    });
  } catch (const std::system_error& error) {
    return fail(ErrorCode::resource_exhausted,
                "the system gives no thread for the executor " + name + ": " + error.what());
  }
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  return {};
}

void TurnThread::wake() {
  {
    const std::lock_guard lock(mutex_);
    news_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
}

void TurnThread::wake_here() {
  {
    const std::lock_guard lock(mutex_);
    news_.fetch_add(1, std::memory_order_relaxed);
    const auto core = static_cast<std::size_t>(sched_getcpu());
    if (waits_ && !narrowed_ &&
        pthread_getaffinity_np(thread_.native_handle(), sizeof cores_, &cores_) == 0 && core < CPU_SETSIZE &&
        CPU_ISSET(core, &cores_)) {
      cpu_set_t here;
      CPU_ZERO(&here);
      CPU_SET(core, &here);
      narrowed_ = pthread_setaffinity_np(thread_.native_handle(), sizeof here, &here) == 0;
    }
  }
  wake_.notify_one();
}

// Under the lock.
void TurnThread::widen() {
  waits_ = false;
  if (std::exchange(narrowed_, false)) pthread_setaffinity_np(pthread_self(), sizeof cores_, &cores_);
}

bool TurnThread::call(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  task_done_.wait(lock, [&] { return task_ == nullptr || stopping_; });
  if (stopping_ || !thread_.joinable()) return false;
  task_ = &task;
  news_.fetch_add(1, std::memory_order_relaxed);
  wake_.notify_one();
  task_done_.wait(lock, [&] { return task_ != &task; });
  return true;
}

bool TurnThread::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || posted_) return false;
    posted_ = std::move(task);
    news_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
  return true;
}

void TurnThread::stop(bool finish) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) finishes_ = finish;
    stopping_ = true;
    news_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
  task_done_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TurnThread::wait(std::unique_lock<std::mutex>& lock, TimePoint until) {
  const TimePoint now = clock_.now();
  // The cap keeps sums far from the end of the timeline; waking early is harmless.
  const Duration left = now < until - std::chrono::hours(1) ? Duration(std::chrono::hours(1)) : until - now;
  if (left <= Duration{0}) return;
  if (left > spin_) {
    wake_.wait_for(lock, left - spin_);
    return;
  }
  const std::uint64_t seen = news_.load(std::memory_order_relaxed);
  lock.unlock();
  while (news_.load(std::memory_order_relaxed) == seen && clock_.now() < until) relax();
  lock.lock();
}

void TurnThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (task_ != nullptr) {
      lock.unlock();
      (*task_)();  // set and cleared by turns: call() leaves it alone until it is cleared here
      lock.lock();
      task_ = nullptr;
      task_done_.notify_all();
      continue;
    }
    if (stopping_ && !finishes_) break;
    if (posted_) {
      const std::function<void()> task = std::exchange(posted_, nullptr);
      lock.unlock();
      task();
      lock.lock();
      continue;
    }
    const std::uint64_t seen = news_.load(std::memory_order_relaxed);
    lock.unlock();
    const TimePoint next = turn_();
    lock.lock();
    if (next == TimePoint::min() || news_.load(std::memory_order_relaxed) != seen) continue;
    if (stopping_) break;
    waits_ = next == TimePoint::max();
    if (next == TimePoint::max())
      wake_.wait(lock);
    else
      wait(lock, next);
    widen();
  }
}

}  // namespace carillon::engine
