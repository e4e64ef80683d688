#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace carillon::device {

// A binary heap of numbered things, the smallest key first, whose keys may change. Where each stands is kept
// in a table that the heaps of one kind share, as a thing is in one of them at most.
template <typename Key>
class JobHeap {
 public:
  using Places = std::vector<std::uint32_t>;
  static constexpr std::uint32_t nowhere = 0xffffffffU;

  bool empty() const { return items_.empty(); }
  std::size_t size() const { return items_.size(); }
  std::uint32_t top() const { return items_.front().second; }
  const Key& top_key() const { return items_.front().first; }
  std::uint32_t at(std::size_t i) const { return items_[i].second; }  // in no order

  // The first `count` of them, in order.
  void first(std::size_t count, std::vector<std::uint32_t>& out) const {
    out.clear();
    // Places whose parents are taken; the next is one of them.
    std::vector<std::size_t> next;
    if (!items_.empty()) next.push_back(0);
    while (out.size() < count && !next.empty()) {
      std::size_t least = 0;
      for (std::size_t i = 1; i < next.size(); ++i)
        if (items_[next[i]].first < items_[next[least]].first) least = i;
      const std::size_t place = next[least];
      out.push_back(items_[place].second);
      next[least] = next.back();
      next.pop_back();
      for (const std::size_t child : {2 * place + 1, 2 * place + 2})
        if (child < items_.size()) next.push_back(child);
    }
  }

  // Puts it in, or gives it another key. `places` has a place for `thing`.
  void set(std::uint32_t thing, const Key& key, Places& places) {
    if (places[thing] == nowhere) {
      places[thing] = static_cast<std::uint32_t>(items_.size());
      items_.emplace_back(key, thing);
    } else {
      items_[places[thing]].first = key;
    }
    down(up(places[thing], places), places);
  }
  // One that is in this heap.
  void remove(std::uint32_t thing, Places& places) {
    const std::uint32_t at = places[thing];
    places[thing] = nowhere;
    const std::uint32_t last = static_cast<std::uint32_t>(items_.size() - 1);
    if (at != last) {
      items_[at] = std::move(items_[last]);
      places[items_[at].second] = at;
    }
    items_.pop_back();
    if (at != last) down(up(at, places), places);
  }

 private:
  std::uint32_t up(std::uint32_t at, Places& places) {
    while (at > 0) {
      const std::uint32_t parent = (at - 1) / 2;
      if (!(items_[at].first < items_[parent].first)) break;
      swap(at, parent, places);
      at = parent;
    }
    return at;
  }
  void down(std::uint32_t at, Places& places) {
    for (;;) {
      std::size_t least = at;
      for (std::size_t child = 2 * std::size_t{at} + 1; child <= 2 * std::size_t{at} + 2; ++child)
        if (child < items_.size() && items_[child].first < items_[least].first) least = child;
      if (least == at) return;
      swap(at, static_cast<std::uint32_t>(least), places);
      at = static_cast<std::uint32_t>(least);
    }
  }
  void swap(std::uint32_t a, std::uint32_t b, Places& places) {
    std::swap(items_[a], items_[b]);
    places[items_[a].second] = a;
    places[items_[b].second] = b;
  }

  std::vector<std::pair<Key, std::uint32_t>> items_;
};

}  // namespace carillon::device
