#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace carillon::frontend {

// Answers are encoded and sent from here: the service's thread, which brings them, has a schedule to keep.
class AnswerThread {
 public:
  using Work = std::move_only_function<void()>;

  AnswerThread();
  // Runs what was posted before. Requires that nothing posts any more.
  ~AnswerThread();
  AnswerThread(const AnswerThread&) = delete;
  AnswerThread& operator=(const AnswerThread&) = delete;

  void post(Work work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Work> queue_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace carillon::frontend
