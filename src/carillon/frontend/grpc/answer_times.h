#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "carillon/base/time.h"

struct grpc_call;

namespace carillon::frontend {

// Ends gRPC calls whose clients do not take their answers. An answer that waits in a closed window of HTTP/2
// would otherwise stay in memory for as long as its client likes. Safe from any thread.
//
//   taking_ = times.begin(context.c_call(), answer.Length());   // before Finish() or StartWrite()
//   ...
//   taking_ = {};                                               // in OnDone() or OnWriteDone()
//
// A call that is ended has the status ABORTED, which says why; its reactor hears of that as of a client that
// has gone.
class AnswerTimes {
 public:
  // An answer may take transfer_time(base, its size).
  explicit AnswerTimes(Duration base);
  ~AnswerTimes();  // requires that all tickets have ended
  AnswerTimes(const AnswerTimes&) = delete;
  AnswerTimes& operator=(const AnswerTimes&) = delete;

  // While it lives the time of one answer runs. It keeps the call; its end lets go of both.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept : times_(std::exchange(other.times_, nullptr)), number_(other.number_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(times_, other.times_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Ticket() {
      if (times_ != nullptr) times_->end(number_);
    }

   private:
    friend class AnswerTimes;
    Ticket(AnswerTimes& times, std::uint64_t number) : times_(&times), number_(number) {}
    AnswerTimes* times_ = nullptr;
    std::uint64_t number_ = 0;
  };

  // `call`: one that has not ended.
  [[nodiscard]] Ticket begin(grpc_call* call, std::size_t bytes);

 private:
  struct Answer {
    grpc_call* call = nullptr;  // a reference to it
    Duration given{0};
    TimePoint until;
    std::size_t bytes = 0;
  };

  void end(std::uint64_t number);
  void run();

  const Duration base_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Answer> answers_;
  std::thread thread_;
};

}  // namespace carillon::frontend
