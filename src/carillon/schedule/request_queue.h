#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "carillon/workload/request.h"

namespace carillon::schedule {

// The waiting requests of one model, earliest deadline first (ties in order of their ids). Requests of one
// SLO arrive in that order, so that push and pop cost O(1); otherwise O(requests with a later deadline). Not
// thread-safe.
class RequestQueue {
 public:
  bool empty() const { return head_ == items_.size(); }
  std::size_t size() const { return items_.size() - head_; }
  // i < size(), from the earliest deadline on.
  const Request& operator[](std::size_t i) const { return items_[head_ + i]; }
  const Request& front() const { return items_[head_]; }
  const Request* begin() const { return items_.data() + head_; }
  const Request* end() const { return items_.data() + items_.size(); }

  void push(const Request& request) {
    std::size_t at = items_.size();
    while (at > head_ && before(request, items_[at - 1])) --at;
    items_.insert(items_.begin() + static_cast<std::ptrdiff_t>(at), request);
  }
  // n <= size().
  void pop_front(std::size_t n = 1) {
    head_ += n;
    if (head_ == items_.size()) {
      items_.clear();
      head_ = 0;
    } else if (head_ >= 64 && head_ * 2 >= items_.size()) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
  }
  // Takes out n from place `first` on; first + n <= size(). O(first + n).
  void remove(std::size_t first, std::size_t n) {
    const auto head = items_.begin() + static_cast<std::ptrdiff_t>(head_);
    std::move_backward(head, head + static_cast<std::ptrdiff_t>(first),
                       head + static_cast<std::ptrdiff_t>(first + n));
    pop_front(n);
  }
  // False where it is not there. O(size).
  bool remove(RequestId id) {
    const auto from = items_.begin() + static_cast<std::ptrdiff_t>(head_);
    const auto found = std::find_if(from, items_.end(), [id](const Request& r) { return r.id == id; });
    if (found == items_.end()) return false;
    items_.erase(found);
    if (empty()) pop_front(0);
    return true;
  }
  void clear() { pop_front(size()); }

 private:
  static bool before(const Request& a, const Request& b) {
    return a.deadline != b.deadline ? a.deadline < b.deadline : a.id < b.id;
  }

  std::vector<Request> items_;
  std::size_t head_ = 0;
};

}  // namespace carillon::schedule
