#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace carillon::frontend {

// Threads for what would hold up a door's own: unpacking and packing bodies, parsing large ones, waiting for
// devices. Work runs in the order in which it came; no more waits than the queue may hold. Any thread.
class WorkPool {
 public:
  using Work = std::move_only_function<void()>;

  // Requires threads >= 1. `name`: of the threads, 15 letters at most; outlives them.
  WorkPool(int threads, std::size_t longest_queue, const char* name = "carillon-heavy");
  // Ends when the work under way has ended; what waits is dropped.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False: the queue is full, and `work` is as it was. Work catches what it throws.
  [[nodiscard]] bool post(Work&& work);

 private:
  void run();

  const std::size_t longest_queue_;
  const char* const name_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace carillon::frontend
