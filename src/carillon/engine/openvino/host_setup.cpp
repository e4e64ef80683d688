#include "carillon/engine/second/host_setup.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <tbb/task_arena.h>

namespace carillon::engine::second {

// TBB's threads, which OpenVINO computes on, are there before a thread of low priority compiles a model:
// those that it makes itself would have that priority for good.
void set_up_process() {
  const int wanted = tbb::this_task_arena::max_concurrency() - 1;
  // Each keeps its thread until all are there. The system may not give all; then fewer do.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds{100};
  std::atomic<int> there{0};
  std::atomic<int> left{wanted};
  const auto wait = [&] {
    while (there < wanted && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  };
  tbb::task_arena arena(wanted + 1);
  for (int i = 0; i < wanted; ++i)
    arena.enqueue([&] {
      ++there;
      wait();
      --left;
    });
  wait();
  // What was not begun is run here.
  arena.execute([&] {
    while (left > 0) std::this_thread::yield();
  });
}

}  // namespace carillon::engine::second
