#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "carillon/frontend/memory/byte_budget.h"

namespace carillon::frontend {

// What is no inference holds of the bytes in flight: answers of other methods until their clients have them,
// and HTTP's headers. All of it together has a part of the budget to itself, and finds room there however
// many inferences are in flight; but no more than that part, so that who asks for much else and takes nothing
// leaves the rest to inferences.
class SideBudget {
 public:
  explicit SideBudget(std::shared_ptr<ByteBudget> bodies)
      : bodies_(std::move(bodies)),
        side_(std::make_shared<ByteBudget>(bodies_->limit() / part, bodies_->limit() / part)) {}

  // What has so many bytes at most goes whether or not there is room: health, and refusals.
  static constexpr std::size_t always = 4096;
  std::size_t limit() const { return side_->limit(); }
  // The part of it for a connection that has several answers at a time.
  std::size_t of_connection() const { return side_->limit() / 8; }

 private:
  friend class SideRoom;
  static constexpr std::size_t part = 16;
  std::shared_ptr<ByteBudget> bodies_;
  std::shared_ptr<ByteBudget> side_;
};

// What one answer, or header, holds of it. One thread at a time.
class SideRoom {
 public:
  SideRoom() = default;  // holds nothing, and never will
  // `share`: of of_connection() bytes; null: the connection has one of them at a time.
  explicit SideRoom(const SideBudget& budget, std::shared_ptr<ConnectionShare> share = nullptr)
      : side_(budget.side_, nullptr, std::move(share)), all_(budget.bodies_) {}

  // Holds at least `bytes`. False: there is no room, and what is held stays as it was. One that is larger
  // than all that there may be takes that much, which it finds where nothing else is.
  [[nodiscard]] bool hold(std::size_t bytes) {
    const std::size_t wanted = std::min(bytes, side_.most());
    if (wanted > side_.bytes() && !side_.grow(wanted - side_.bytes())) return bytes <= SideBudget::always;
    if (bytes > all_.bytes()) all_.overdraw(bytes - all_.bytes());
    return true;
  }
  void shrink_to(std::size_t bytes) {
    side_.shrink_to(bytes);
    all_.shrink_to(bytes);
  }
  std::size_t bytes() const { return all_.bytes(); }

 private:
  Reservation side_;
  Reservation all_;
};

}  // namespace carillon::frontend
