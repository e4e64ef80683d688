#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace carillon::roles::testing {

// What is to happen, the earliest first: a heap of four children a node in one block. `Event` is small, and
// `a < b` says that `a` happens before `b`, which no two events leave open.
template <typename Event>
class Calendar {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& next() const { return heap_.front(); }

  void add(const Event& event) {
    heap_.push_back(event);
    rise(heap_.size() - 1);
  }
  Event take() {
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    return first;
  }
  // Gives each event to `change`, which may change its time.
  template <typename Change>
  void change(Change&& change) {
    std::vector<Event> all = std::exchange(heap_, {});
    heap_.reserve(all.size());
    for (Event& event : all) {
      change(event);
      add(event);
    }
  }

 private:
  void rise(std::size_t at) {
    const Event event = heap_[at];
    while (at > 0) {
      const std::size_t parent = (at - 1) / 4;
      if (!(event < heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }
  // Puts `event` into the place of the first.
  void sink(const Event& event) {
    std::size_t at = 0;
    for (;;) {
      const std::size_t first = 4 * at + 1;
      if (first >= heap_.size()) break;
      const std::size_t end = first + 4 < heap_.size() ? first + 4 : heap_.size();
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child)
        if (heap_[child] < heap_[least]) least = child;
      if (!(heap_[least] < event)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = event;
  }

  std::vector<Event> heap_;
};

}  // namespace carillon::roles::testing
