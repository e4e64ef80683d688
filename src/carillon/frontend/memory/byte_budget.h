#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "carillon/frontend/memory/connection_share.h"

namespace carillon::frontend {

// How many bytes may be in flight: request bodies being read, those whose request is open, and answers that
// wait for their client to take them. One for all doors and connections together. Safe from any thread;
// taking and giving back cost an atomic addition.
//
// An eighth is kept for small bodies, so that clients with large ones never lock all others out.
class ByteBudget {
 public:
  static constexpr std::size_t small = std::size_t{64} << 10;

  // `largest`: a body of that size must fit when nothing else is in flight. Requires largest <= limit.
  ByteBudget(std::size_t limit, std::size_t largest);

  std::size_t limit() const { return limit_; }
  // What one reservation may have at most, when nothing else is in flight.
  std::size_t largest() const { return limit_of_large_; }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }
  // How often there was no room, so far.
  std::size_t refusals() const { return refusals_.load(std::memory_order_relaxed); }

 private:
  friend class Reservation;
  bool take(std::size_t bytes, std::size_t held);
  void overdraw(std::size_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void give_back(std::size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  const std::size_t limit_;
  const std::size_t limit_of_large_;
  std::atomic<std::size_t> used_ = 0;
  std::atomic<std::size_t> refusals_ = 0;
};

// What one body holds of the budget; it is given back when this ends. One thread at a time.
class Reservation {
 public:
  Reservation() = default;  // of no budget: cannot grow
  // `own`: a client's, of which everything is taken, too; `share`: a connection's, likewise; may be null.
  explicit Reservation(std::shared_ptr<ByteBudget> budget, std::shared_ptr<ByteBudget> own = nullptr,
                       std::shared_ptr<ConnectionShare> share = nullptr)
      : budget_(std::move(budget)), own_(std::move(own)), share_(std::move(share)) {}
  ~Reservation() { shrink_to(0); }
  Reservation(Reservation&& other) noexcept
      : budget_(std::move(other.budget_)),
        own_(std::move(other.own_)),
        share_(std::move(other.share_)),
        bytes_(std::exchange(other.bytes_, 0)),
        own_refused_(other.own_refused_),
        share_refused_(other.share_refused_) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(own_, other.own_);
    std::swap(share_, other.share_);
    std::swap(bytes_, other.bytes_);
    std::swap(own_refused_, other.own_refused_);
    std::swap(share_refused_, other.share_refused_);
    return *this;
  }

  // Takes room for `more` bytes. False: there is none, and what is held stays as it was.
  [[nodiscard]] bool grow(std::size_t more);
  // The same of what may be more than could ever be there together with `besides`, which somebody else holds
  // for the same request: then as much as that is taken, and found where nothing else is in flight.
  [[nodiscard]] bool grow_within(std::size_t more, std::size_t besides);
  // The same, whether or not there is room: where there is none, others find none until this is given back.
  void overdraw(std::size_t more);
  void shrink_to(std::size_t bytes);
  // The most that it and `besides` could hold together, when nothing else is in flight.
  std::size_t most_beside(std::size_t besides) const {
    return budget_ ? budget_->largest() - std::min(budget_->largest(), besides) : 0;
  }
  // The most that it could hold when nothing else is in flight.
  std::size_t most() const;
  // Another one of the same budget, and of no client's own and no connection's. Holds nothing.
  Reservation beside() const { return Reservation(budget_); }
  std::size_t bytes() const { return bytes_; }
  // Whether it was the client's own budget that had no room, the last time that there was none.
  bool own_refused() const { return own_refused_; }
  // Whether it was the connection's share.
  bool share_refused() const { return share_refused_; }

 private:
  std::shared_ptr<ByteBudget> budget_;
  std::shared_ptr<ByteBudget> own_;
  std::shared_ptr<ConnectionShare> share_;
  std::size_t bytes_ = 0;
  bool own_refused_ = false;
  bool share_refused_ = false;
};

}  // namespace carillon::frontend
