#include "carillon/frontend/grpc/answer_thread.h"

#include <utility>

namespace carillon::frontend {

AnswerThread::AnswerThread() : thread_([this] { run(); }) {}

AnswerThread::~AnswerThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void AnswerThread::post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void AnswerThread::run() {
  std::vector<Work> batch;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (auto& work : batch) work();
    batch.clear();
  }
}

}  // namespace carillon::frontend
