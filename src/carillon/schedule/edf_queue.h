#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "carillon/base/assert.h"
#include "carillon/base/ids.h"
#include "carillon/base/mix.h"
#include "carillon/base/time.h"

namespace carillon::schedule {

// Requests that run one after the other, earliest deadline first (ties: the smaller id), and how long each
// takes. Beside the order it knows whether one more would make any of them late. A treap whose priorities are
// a hash: each call costs O(log n) expected, and allocates nothing once there were as many. Not
// thread-safe.
class EdfQueue {
 public:
  struct Item {
    TimePoint due;  // when it has to have ended
    RequestId id;
    Duration takes{0};
  };

  bool empty() const { return root_ == none; }
  std::size_t size() const { return size_; }
  // Not empty.
  const Item& front() const {
    std::uint32_t at = root_;
    while (nodes_[at].left != none) at = nodes_[at].left;
    return nodes_[at].item;
  }
  // What all of them take.
  Duration total() const { return root_ == none ? Duration{0} : nodes_[root_].total; }

  // `id` is not there.
  void insert(const Item& item) {
    std::uint32_t node = 0;
    if (free_.empty()) {
      node = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      if (free_.capacity() < nodes_.capacity()) free_.reserve(nodes_.capacity());
    } else {
      node = free_.back();
      free_.pop_back();
    }
    nodes_[node] = {.item = item, .priority = priority_of(item)};
    update(node);
    std::uint32_t before = none, after = none;
    split(root_, item.due, item.id, before, after);
    root_ = join(join(before, node), after);
    ++size_;
  }
  // It is there.
  void erase(TimePoint due, RequestId id) {
    std::uint32_t before = none, rest = none, node = none, after = none;
    split(root_, due, id, before, rest);
    split(rest, due, RequestId{id.value + 1}, node, after);
    CARILLON_ASSERT(node != none && nodes_[node].left == none && nodes_[node].right == none);
    root_ = join(before, after);
    free_.push_back(node);
    --size_;
  }

  // Where one more would stand that is not there: what goes before it takes so long, and all that come after
  // it are in time if the first of these starts by then.
  struct Place {
    Duration before{0};
    TimePoint latest = TimePoint::max();
  };
  Place place(TimePoint due, RequestId id) const {
    Place found;
    Duration after{0};
    place_in(root_, due, id, found, after);
    return found;
  }

  // Calls visit(item) in their order, until it returns false.
  template <typename Visit>
  void visit(Visit&& visit) const {
    visit_from(root_, visit);
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct Node {
    Item item;
    std::uint64_t priority = 0;
    std::uint32_t left = none, right = none;
    Duration total{0};  // of the subtree
    TimePoint latest;   // all of the subtree are in time if the first starts by then
  };

  // Of the nanosecond, too, in which the request has to have ended: whoever could choose deadlines by their
  // requests' priorities could make the tree a list.
  static std::uint64_t priority_of(const Item& item) {
    return mix(item.id.value * 0x9e3779b97f4a7c15ULL +
               static_cast<std::uint64_t>(item.due.time_since_epoch().count()));
  }
  static bool precedes(const Item& item, TimePoint due, RequestId id) {
    return item.due != due ? item.due < due : item.id < id;
  }
  Duration sum(std::uint32_t at) const { return at == none ? Duration{0} : nodes_[at].total; }
  TimePoint latest(std::uint32_t at) const { return at == none ? TimePoint::max() : nodes_[at].latest; }
  void update(std::uint32_t at) {
    Node& node = nodes_[at];
    const Duration before = sum(node.left), until = before + node.item.takes;
    node.total = until + sum(node.right);
    node.latest = std::min({latest(node.left), saturating_add(node.item.due, -until),
                            saturating_add(latest(node.right), -until)});
  }
  // Adds what the subtree has of both; `after`: what its part behind the place takes.
  void place_in(std::uint32_t at, TimePoint due, RequestId id, Place& found, Duration& after) const {
    if (at == none) return;
    const Node& node = nodes_[at];
    if (precedes(node.item, due, id)) {
      found.before += sum(node.left) + node.item.takes;
      return place_in(node.right, due, id, found, after);
    }
    place_in(node.left, due, id, found, after);
    after += node.item.takes;
    found.latest = std::min(
        {found.latest, saturating_add(node.item.due, -after), saturating_add(latest(node.right), -after)});
    after += sum(node.right);
  }
  // Those before (due, id), and the others.
  void split(std::uint32_t at, TimePoint due, RequestId id, std::uint32_t& before, std::uint32_t& after) {
    if (at == none) {
      before = after = none;
    } else if (precedes(nodes_[at].item, due, id)) {
      std::uint32_t middle = none;
      split(nodes_[at].right, due, id, middle, after);
      nodes_[at].right = middle;
      update(at);
      before = at;
    } else {
      std::uint32_t middle = none;
      split(nodes_[at].left, due, id, before, middle);
      nodes_[at].left = middle;
      update(at);
      after = at;
    }
  }
  std::uint32_t join(std::uint32_t a, std::uint32_t b) {
    if (a == none) return b;
    if (b == none) return a;
    if (nodes_[a].priority > nodes_[b].priority) {
      nodes_[a].right = join(nodes_[a].right, b);
      update(a);
      return a;
    }
    nodes_[b].left = join(a, nodes_[b].left);
    update(b);
    return b;
  }
  template <typename Visit>
  bool visit_from(std::uint32_t at, Visit&& visit) const {
    if (at == none) return true;
    return visit_from(nodes_[at].left, visit) && visit(nodes_[at].item) &&
           visit_from(nodes_[at].right, visit);
  }

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> free_;
  std::uint32_t root_ = none;
  std::size_t size_ = 0;
};

}  // namespace carillon::schedule
