#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace carillon::schedule::orloj {

// Points (alpha, beta), of which the one with the largest alpha * x + beta is asked for, at any x >= 0: the
// upper convex hull of points that come and go (Orloj, section 4.4.4; Overmars and van Leeuwen, 1981).
//
// A weight-balanced tree with the points as leaves, ordered by alpha; each inner node keeps the bridge of its
// subtree's hull, the edge that joins the hulls of its two children. A bridge is found by walking down both
// children at once, so that insert and erase cost O(log^2 n); top() walks down the bridges, O(log n). Nothing
// is allocated once the most points have been there. Not thread-safe.
class DynamicHull {
 public:
  struct Point {
    double alpha = 0, beta = 0;
  };

  bool empty() const { return root_ == none; }
  std::size_t size() const { return empty() ? 0 : nodes_[root_].leaves; }

  // `key` is below 2^32 - 1 and not there yet; keys are best dense. Coordinates are finite.
  void insert(std::uint32_t key, Point point);
  // False where it is not there.
  bool erase(std::uint32_t key);
  bool contains(std::uint32_t key) const { return key < leaf_of_.size() && leaf_of_[key] != none; }
  Point at(std::uint32_t key) const { return nodes_[leaf_of_[key]].point; }
  void clear();
  // Multiplies alpha of all points by `factor` > 0, a power of two, and none so small that it falls below
  // what a double can tell from 0. O(points), and quick.
  void scale_alpha(double factor);

  // The key of the point with the largest alpha * x + beta; x is finite and >= 0. None where there is no
  // point. Of points that are level any may be given.
  std::optional<std::uint32_t> top(double x) const;

  // How many levels the tree has; for tests.
  int depth() const;

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct Node {
    Point point;  // of a leaf
    std::uint32_t key = none;
    std::uint32_t parent = none;
    std::uint32_t left = none, right = none;             // none in a leaf
    std::uint32_t first = none, last = none;             // leaves at the ends, for the order
    std::uint32_t bridge_from = none, bridge_to = none;  // leaves
    std::uint32_t leaves = 1;
  };

  bool is_leaf(std::uint32_t n) const { return nodes_[n].left == none; }
  const Point& point(std::uint32_t leaf) const { return nodes_[leaf].point; }
  bool before(std::uint32_t a, std::uint32_t b) const;  // leaves, in the order of the tree
  std::uint32_t new_node();
  void pull(std::uint32_t n);
  void find_bridge(std::uint32_t n);
  void replace(std::uint32_t parent, std::uint32_t old, std::uint32_t with);
  std::uint32_t rotate(std::uint32_t n, bool left);
  void rebalance_from(std::uint32_t n);

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> leaf_of_;  // by key
  std::uint32_t root_ = none;
};

}  // namespace carillon::schedule::orloj
