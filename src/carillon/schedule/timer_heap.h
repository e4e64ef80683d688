#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/time.h"

namespace carillon::schedule {

// At most one value for each of a dense set of keys, the least on top (ties: the smaller key). A 4-ary heap
// that knows where each key stands: set and remove cost O(log n) and allocate nothing once the keys are
// known.
template <typename At>
class KeyedHeap {
 public:
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  std::uint32_t top() const { return heap_.front().key; }
  At top_at() const { return heap_.empty() ? At::max() : heap_.front().at; }
  bool contains(std::uint32_t key) const { return key < place_.size() && place_[key] != none; }
  At at(std::uint32_t key) const { return heap_[place_[key]].at; }

  // Visits the keys of the first `most` values below `until`, in order. O(most log most). The heap must not
  // change meanwhile.
  template <typename Visit>
  void visit_first(std::size_t most, At until, Visit&& visit) const {
    if (most == 0) return;
    visit_in_order([&](std::uint32_t i) { return heap_[i].at < until; },
                   [&](std::uint32_t key) {
                     visit(key);
                     return --most == 0;
                   });
  }
  // Calls see(key) in order until it returns true. O(log n) for each. The heap must not change before.
  template <typename See>
  void visit(See&& see) const {
    visit_in_order([](std::uint32_t) { return true; }, see);
  }

  // Inserts, or moves what is there.
  void set(std::uint32_t key, At at) {
    if (key >= place_.size()) place_.resize(key + 1, none);
    std::uint32_t i = place_[key];
    if (i == none) {
      i = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back({at, key});
      place_[key] = i;
      up(i);
    } else {
      const At old = heap_[i].at;
      if (at == old) return;
      heap_[i].at = at;
      if (at < old)
        up(i);
      else
        down(i);
    }
  }
  void remove(std::uint32_t key) {
    if (!contains(key)) return;
    const std::uint32_t i = place_[key];
    place_[key] = none;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (i == heap_.size()) return;
    heap_[i] = last;
    if (i > 0 && last < heap_[(i - 1) / 4])
      up(i);
    else
      down(i);
  }

 private:
  struct Entry {
    At at{};
    std::uint32_t key = 0;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.at != b.at ? a.at < b.at : a.key < b.key;
    }
  };
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  template <typename Is, typename See>
  void visit_in_order(Is&& is, See&& see) const {
    const auto later = [this](std::uint32_t a, std::uint32_t b) { return heap_[b] < heap_[a]; };
    frontier_.clear();
    const auto push = [&](std::uint32_t i) {
      if (i >= heap_.size() || !is(i)) return;
      frontier_.push_back(i);
      std::push_heap(frontier_.begin(), frontier_.end(), later);
    };
    for (push(0); !frontier_.empty();) {
      std::pop_heap(frontier_.begin(), frontier_.end(), later);
      const std::uint32_t i = frontier_.back();
      frontier_.pop_back();
      if (see(heap_[i].key)) return;
      for (std::uint32_t child = 4 * i + 1; child <= 4 * i + 4; ++child) push(child);
    }
  }

  void up(std::uint32_t i) {
    const Entry moving = heap_[i];
    while (i > 0) {
      const std::uint32_t parent = (i - 1) / 4;
      if (!(moving < heap_[parent])) break;
      heap_[i] = heap_[parent];
      place_[heap_[i].key] = i;
      i = parent;
    }
    heap_[i] = moving;
    place_[moving.key] = i;
  }
  void down(std::uint32_t i) {
    const Entry moving = heap_[i];
    const auto size = static_cast<std::uint32_t>(heap_.size());
    while (true) {
      const std::uint32_t first = 4 * i + 1;
      if (first >= size) break;
      const std::uint32_t end = std::min(first + 4, size);
      std::uint32_t best = first;
      for (std::uint32_t c = first + 1; c < end; ++c)
        if (heap_[c] < heap_[best]) best = c;
      if (!(heap_[best] < moving)) break;
      heap_[i] = heap_[best];
      place_[heap_[i].key] = i;
      i = best;
    }
    heap_[i] = moving;
    place_[moving.key] = i;
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> place_;
  mutable std::vector<std::uint32_t> frontier_;  // scratch of visit_in_order()
};

using TimerHeap = KeyedHeap<TimePoint>;

}  // namespace carillon::schedule
