#pragma once

#include <span>

#include "carillon/base/result.h"
#include "carillon/graph/graph.h"

namespace carillon::graph {

// Whether `inner` holds only where `outer` does: it is `outer`, or under it. -1, which always holds, is
// around every guard. O(depth).
bool is_within(std::span<const Guard> guards, int inner, int outer);

// Whether `guard` holds, parents first; `is_true` tells a condition's value and is asked only for those that
// have been made.
template <typename IsTrue>
bool holds(std::span<const Guard> guards, int guard, const IsTrue& is_true) {
  if (guard < 0) return true;
  const Guard& g = guards[static_cast<std::size_t>(guard)];
  return holds(guards, g.parent, is_true) && is_true(g.condition) == g.when;
}

// A condition whose value is known at some place.
struct Known {
  ValueId condition;
  bool when = true;
};
// Whether a value made under guard `made` is there for a node that runs under `guard`, at a place where these
// conditions are known beside those of the guard: all that `made` asks for is known there. O(depth^2).
bool is_made(std::span<const Guard> guards, int made, int guard, std::span<const Known> known = {});

// What validate() wants of the guards, their conditions and the nodes under them. Ids are in range, and every
// value is made before it is used.
Result<> validate_guards(const Graph& graph);

}  // namespace carillon::graph
