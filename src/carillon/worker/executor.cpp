#include "carillon/worker/executor.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <pthread.h>
#include <sys/prctl.h>

#include "carillon/base/assert.h"

namespace carillon::worker {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Executor::Executor(std::size_t capacity, const Clock& clock, Handler& handler, Duration spin)
    : clock_(clock), handler_(handler), spin_(spin), queue_(capacity) {}

Result<> Executor::start(const std::string& name) {
  CARILLON_ASSERT(!thread_.joinable());
  try {
    thread_ = std::thread([this] {
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

bool Executor::push(const Entry& entry) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || !queue_.push(entry)) return false;
    if (queue_.front().id != entry.id) return true;  // the thread waits for an earlier one, or is busy
    news_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
  return true;
}

bool Executor::call(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  task_done_.wait(lock, [&] { return task_ == nullptr || stopping_; });
  if (stopping_ || !thread_.joinable()) return false;
  task_ = &task;
  news_.fetch_add(1, std::memory_order_relaxed);
  wake_.notify_one();
  task_done_.wait(lock, [&] { return task_ != &task; });
  return true;
}

bool Executor::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || posted_) return false;
    posted_ = std::move(task);
    news_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
  return true;
}

void Executor::clear() {
  Entry entry;
  std::unique_lock lock(mutex_);
  while (queue_.pop(entry)) {
    lock.unlock();
    handler_.abandon(entry);
    lock.lock();
  }
}

void Executor::stop(Pending pending) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) pending_ = pending;
    stopping_ = true;
    news_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_one();
  task_done_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Executor::wait(std::unique_lock<std::mutex>& lock, TimePoint until, TimePoint now) {
  // The cap keeps sums far from the end of the timeline; waking early is harmless.
  const Duration left = now < until - std::chrono::hours(1) ? Duration(std::chrono::hours(1)) : until - now;
  if (left > spin_) {
    wake_.wait_for(lock, left - spin_);
    return;
  }
  const std::uint64_t seen = news_.load(std::memory_order_relaxed);
  lock.unlock();
  while (news_.load(std::memory_order_relaxed) == seen && clock_.now() < until) relax();
  lock.lock();
}

void Executor::loop() {
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
    if (stopping_) break;
    if (posted_) {
      const std::function<void()> task = std::exchange(posted_, nullptr);
      lock.unlock();
      task();
      lock.lock();
      continue;
    }
    const TimePoint now = clock_.now();
    const Decision decision = queue_.next(now);
    switch (decision.kind) {
      case Decision::Kind::run:
        lock.unlock();
        handler_.run(decision.entry, now);
        lock.lock();
        break;
      case Decision::Kind::refuse:
        lock.unlock();
        handler_.refuse(decision.entry, now);
        lock.lock();
        break;
      case Decision::Kind::wait_until:
        wait(lock, decision.at, now);
        break;
      case Decision::Kind::idle:
        wake_.wait(lock);
        break;
    }
  }
  Entry entry;
  while (queue_.pop(entry)) {
    lock.unlock();
    if (pending_ == Pending::run)
      handler_.run(entry, clock_.now());
    else
      handler_.abandon(entry);
    lock.lock();
  }
}

}  // namespace carillon::worker
