#include "carillon/schedule/orloj/dynamic_hull.h"

#include <algorithm>
#include <cmath>

#include "carillon/base/assert.h"

namespace carillon::schedule::orloj {
namespace {

// Weight balance: no child has more than this many times the leaves of the other (and one).
constexpr std::uint32_t delta = 3;

// Above 0 where c lies to the left of the way from a to b.
double side(const DynamicHull::Point& a, const DynamicHull::Point& b, const DynamicHull::Point& c) {
  return (b.alpha - a.alpha) * (c.beta - a.beta) - (b.beta - a.beta) * (c.alpha - a.alpha);
}

double line_at(const DynamicHull::Point& a, const DynamicHull::Point& b, double alpha) {
  return a.beta + (b.beta - a.beta) * ((alpha - a.alpha) / (b.alpha - a.alpha));
}

}  // namespace

bool DynamicHull::before(std::uint32_t a, std::uint32_t b) const {
  const Point &p = point(a), &q = point(b);
  if (p.alpha != q.alpha) return p.alpha < q.alpha;
  if (p.beta != q.beta) return p.beta < q.beta;
  return nodes_[a].key < nodes_[b].key;
}

std::uint32_t DynamicHull::new_node() {
  if (free_.empty()) {
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  const std::uint32_t n = free_.back();
  free_.pop_back();
  nodes_[n] = Node{};
  return n;
}

void DynamicHull::clear() {
  nodes_.clear();
  free_.clear();
  leaf_of_.clear();
  root_ = none;
}

// Nothing is rounded, so that order and bridges stay as they are.
void DynamicHull::scale_alpha(double factor) {
  for (Node& node : nodes_) node.point.alpha *= factor;
}

// The bridge between the hulls of n's children: the pair of points, one of each, below whose line all others
// lie.
void DynamicHull::find_bridge(std::uint32_t n) {
  Node& node = nodes_[n];
  std::uint32_t a = node.left, b = node.right;
  const double middle = point(nodes_[node.left].last).alpha;  // all of the left lie at it or before
  while (true) {
    const bool a_leaf = is_leaf(a), b_leaf = is_leaf(b);
    if (a_leaf && b_leaf) break;
    // The edges of the two hulls that are looked at; of a leaf, the point.
    const Point& a1 = point(a_leaf ? a : nodes_[a].bridge_from);
    const Point& a2 = point(a_leaf ? a : nodes_[a].bridge_to);
    const Point& b1 = point(b_leaf ? b : nodes_[b].bridge_from);
    const Point& b2 = point(b_leaf ? b : nodes_[b].bridge_to);
    // Of points in a line the outermost are taken, or top() could not tell to which side to go.
    if (!a_leaf && side(a1, a2, b1) >= 0) {
      a = nodes_[a]
              .left;  // the right hull rises to this edge's line: it is touched from its left end or before
    } else if (!b_leaf && side(b1, b2, a2) >= 0) {
      b = nodes_[b].right;
    } else if (a_leaf) {
      b = nodes_[b].left;
    } else if (b_leaf) {
      a = nodes_[a].right;
    } else if (a1.alpha == a2.alpha) {
      a = nodes_[a].right;
    } else if (b1.alpha == b2.alpha) {
      b = nodes_[b].left;
    } else if (line_at(b1, b2, middle) <= line_at(a1, a2, middle)) {
      a = nodes_[a].right;  // all of the right hull is below this edge's line, so the edge belongs to the
                            // joint hull
    } else {
      b = nodes_[b].left;
    }
  }
  node.bridge_from = a;
  node.bridge_to = b;
}

void DynamicHull::pull(std::uint32_t n) {
  Node& node = nodes_[n];
  node.leaves = nodes_[node.left].leaves + nodes_[node.right].leaves;
  node.first = is_leaf(node.left) ? node.left : nodes_[node.left].first;
  node.last = is_leaf(node.right) ? node.right : nodes_[node.right].last;
  find_bridge(n);
}

void DynamicHull::replace(std::uint32_t parent, std::uint32_t old, std::uint32_t with) {
  nodes_[with].parent = parent;
  if (parent == none)
    root_ = with;
  else
    (nodes_[parent].left == old ? nodes_[parent].left : nodes_[parent].right) = with;
}

// Turns n's heavy child above it; returns the child.
std::uint32_t DynamicHull::rotate(std::uint32_t n, bool left) {
  const std::uint32_t child = left ? nodes_[n].right : nodes_[n].left;
  replace(nodes_[n].parent, n, child);
  const std::uint32_t inner = left ? nodes_[child].left : nodes_[child].right;
  (left ? nodes_[n].right : nodes_[n].left) = inner;
  (left ? nodes_[child].left : nodes_[child].right) = n;
  nodes_[inner].parent = n;
  nodes_[n].parent = child;
  pull(n);
  return child;
}

// Restores balance, ends and bridges from n up to the root.
void DynamicHull::rebalance_from(std::uint32_t n) {
  while (n != none) {
    const std::uint32_t left = nodes_[nodes_[n].left].leaves, right = nodes_[nodes_[n].right].leaves;
    if (left > delta * right || right > delta * left) {
      const bool to_left = right > left;
      const std::uint32_t child = to_left ? nodes_[n].right : nodes_[n].left;
      const std::uint32_t inner = to_left ? nodes_[child].left : nodes_[child].right;
      const std::uint32_t outer = to_left ? nodes_[child].right : nodes_[child].left;
      if (!is_leaf(inner) && nodes_[inner].leaves > 2 * nodes_[outer].leaves) {
        const std::uint32_t up = rotate(child, !to_left);
        pull(up);
      }
      n = rotate(n, to_left);
    }
    pull(n);
    n = nodes_[n].parent;
  }
}

void DynamicHull::insert(std::uint32_t key, Point at) {
  CARILLON_ASSERT(key != none && !contains(key));
  CARILLON_ASSERT(std::isfinite(at.alpha) && std::isfinite(at.beta));
  const std::uint32_t leaf = new_node();
  nodes_[leaf].point = at;
  nodes_[leaf].key = key;
  nodes_[leaf].first = nodes_[leaf].last = leaf;
  if (key >= leaf_of_.size()) leaf_of_.resize(key + 1, none);
  leaf_of_[key] = leaf;
  if (root_ == none) {
    root_ = leaf;
    return;
  }
  std::uint32_t n = root_;
  while (!is_leaf(n)) n = before(leaf, nodes_[nodes_[n].right].first) ? nodes_[n].left : nodes_[n].right;
  const std::uint32_t joint = new_node();
  replace(nodes_[n].parent, n, joint);
  const bool first = before(leaf, n);
  nodes_[joint].left = first ? leaf : n;
  nodes_[joint].right = first ? n : leaf;
  nodes_[leaf].parent = nodes_[n].parent = joint;
  rebalance_from(joint);
}

bool DynamicHull::erase(std::uint32_t key) {
  if (!contains(key)) return false;
  const std::uint32_t leaf = leaf_of_[key];
  leaf_of_[key] = none;
  const std::uint32_t parent = nodes_[leaf].parent;
  if (parent == none) {
    root_ = none;
  } else {
    const std::uint32_t other = nodes_[parent].left == leaf ? nodes_[parent].right : nodes_[parent].left;
    const std::uint32_t above = nodes_[parent].parent;
    replace(above, parent, other);
    free_.push_back(parent);
    rebalance_from(above);
  }
  free_.push_back(leaf);
  return true;
}

std::optional<std::uint32_t> DynamicHull::top(double x) const {
  if (root_ == none) return std::nullopt;
  std::uint32_t n = root_;
  while (!is_leaf(n)) {
    const Point &p = point(nodes_[n].bridge_from), &q = point(nodes_[n].bridge_to);
    n = q.alpha * x + q.beta >= p.alpha * x + p.beta ? nodes_[n].right : nodes_[n].left;
  }
  return nodes_[n].key;
}

int DynamicHull::depth() const {
  std::vector<std::pair<std::uint32_t, int>> open;
  if (root_ != none) open.emplace_back(root_, 1);
  int most = 0;
  while (!open.empty()) {
    const auto [n, level] = open.back();
    open.pop_back();
    most = std::max(most, level);
    if (is_leaf(n)) continue;
    open.emplace_back(nodes_[n].left, level + 1);
    open.emplace_back(nodes_[n].right, level + 1);
  }
  return most;
}

}  // namespace carillon::schedule::orloj
