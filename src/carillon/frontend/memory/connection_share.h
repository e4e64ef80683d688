#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace carillon::frontend {

// How much of what may be in flight the calls of one connection hold together, messages and answers. Beyond
// the share these calls find no room. A connection's only call is not bound: a request may be as large as
// everything. Safe from any thread.
class ConnectionShare {
 public:
  explicit ConnectionShare(std::size_t limit) : limit_(limit) {}

  std::size_t limit() const { return limit_; }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }

  [[nodiscard]] bool take(std::size_t bytes) {
    const std::size_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
    if (calls_.load(std::memory_order_relaxed) <= 1 || (bytes <= limit_ && before <= limit_ - bytes))
      return true;
    give_back(bytes);
    return false;
  }
  void overdraw(std::size_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void give_back(std::size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  friend class CallOfConnection;
  const std::size_t limit_;
  std::atomic<std::size_t> used_ = 0;
  std::atomic<std::size_t> calls_ = 0;
};

// One call of a connection, or one request of a stream, as long as it is open.
class CallOfConnection {
 public:
  CallOfConnection() = default;
  explicit CallOfConnection(std::shared_ptr<ConnectionShare> share) : share_(std::move(share)) {
    if (share_) share_->calls_.fetch_add(1, std::memory_order_relaxed);
  }
  ~CallOfConnection() {
    if (share_) share_->calls_.fetch_sub(1, std::memory_order_relaxed);
  }
  CallOfConnection(const CallOfConnection&) = delete;
  CallOfConnection& operator=(const CallOfConnection&) = delete;

  const std::shared_ptr<ConnectionShare>& share() const { return share_; }

 private:
  const std::shared_ptr<ConnectionShare> share_;
};

// The shares of all connections, by what tells one connection from another ("ipv4:127.0.0.1:40112"). A share
// lives as long as calls of its connection. Safe from any thread; one lock a call.
class ConnectionShares {
 public:
  // A share is what `all`, the bytes that may be in flight, leave beside one message of `largest` bytes, so
  // that another connection's message of any size finds room. Where a share would be less than such a message
  // there are none: one connection may hold everything.
  ConnectionShares(std::size_t all, std::size_t largest)
      : limit_(all >= largest && all - largest >= largest ? all - largest : 0) {}

  explicit ConnectionShares(std::size_t of_each) : limit_(of_each) {}

  // Null: there are no shares.
  std::shared_ptr<ConnectionShare> of(const std::string& connection) {
    if (limit_ == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    auto& found = shares_[connection];
    auto share = found.lock();
    if (!share) found = share = std::make_shared<ConnectionShare>(limit_);
    if (shares_.size() > looked_through_at_) {
      std::erase_if(shares_, [](const auto& each) { return each.second.expired(); });
      looked_through_at_ = 2 * shares_.size() + smallest_;
    }
    return share;
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return shares_.size();
  }

 private:
  static constexpr std::size_t smallest_ = 64;  // not worth looking through
  const std::size_t limit_;                     // of each; 0: there are none
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<ConnectionShare>> shares_;
  std::size_t looked_through_at_ = smallest_;
};

}  // namespace carillon::frontend
