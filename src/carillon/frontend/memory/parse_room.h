#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "carillon/frontend/memory/byte_budget.h"

namespace carillon::frontend {

// Room in which large JSON is read, one body after the other where there is no other. A body is admitted
// before it is taken: the room then holds, of the bytes in flight, what the most demanding of all admitted
// bodies may take while it is read. So an admitted body is read some time, unless reading it takes more than
// it was admitted for: such a body finds room where little else is in flight. Safe from any thread.
class ParseRoom : public std::enable_shared_from_this<ParseRoom> {
 public:
  // Reading in the room; nobody else does until this ends.
  class Turn {
   public:
    explicit Turn(ParseRoom& room) : room_(room) {}
    ~Turn() { room_.end_turn(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ParseRoom& room_;
  };
  // A body that was admitted, until it has been read.
  class Admission {
   public:
    Admission(std::shared_ptr<ParseRoom> room, std::size_t bytes) : room_(std::move(room)), bytes_(bytes) {}
    ~Admission() { leave(); }
    Admission(const Admission&) = delete;
    Admission& operator=(const Admission&) = delete;

    // The most that reading it may take in the room.
    std::size_t bytes() const { return bytes_; }
    // Waits while others read there, which takes as long as reading their bodies.
    std::unique_ptr<Turn> wait() { return room_->wait(); }
    // The body is read elsewhere, or not at all. Not after wait().
    void leave() {
      if (bytes_ > 0) room_->leave(bytes_);
      bytes_ = 0;
    }

   private:
    const std::shared_ptr<ParseRoom> room_;
    std::size_t bytes_;
  };

  explicit ParseRoom(std::shared_ptr<ByteBudget> budget)
      : left_to_others_(budget->limit() / 8), room_(std::move(budget)) {}

  // Admits a body that holds `held` bytes already, and may take `bytes` more while it is read. The room
  // leaves an eighth of the budget to others: a body that may take more than that allows is admitted for what
  // is allowed, so that a busy server reads large bodies, too. Null: there is no room.
  std::unique_ptr<Admission> admit(std::size_t bytes, std::size_t held);

  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    return room_.bytes();
  }

 private:
  void leave(std::size_t bytes);
  std::unique_ptr<Turn> wait();
  void end_turn();

  const std::size_t left_to_others_;
  std::mutex mutex_;
  std::condition_variable free_;
  Reservation room_;
  std::multiset<std::size_t> admitted_;
  bool taken_ = false;
};

}  // namespace carillon::frontend
