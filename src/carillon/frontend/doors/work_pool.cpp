#include "carillon/frontend/doors/work_pool.h"

#include <utility>

#include <pthread.h>

#include "carillon/base/assert.h"

namespace carillon::frontend {

WorkPool::WorkPool(int threads, std::size_t longest_queue, const char* name)
    : longest_queue_(longest_queue), name_(name) {
  CARILLON_ASSERT(threads >= 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

bool WorkPool::post(Work&& work) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= longest_queue_) return false;
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
  return true;
}

void WorkPool::run() {
  pthread_setname_np(pthread_self(), name_);
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (ending_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace carillon::frontend
