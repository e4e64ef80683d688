#pragma once

#include <variant>
#include <vector>

#include "carillon/schedule/action.h"

namespace carillon::schedule::testing {

// The actions of one kind, in their order.
template <typename Kind>
std::vector<Kind> of_kind(const Actions& actions) {
  std::vector<Kind> found;
  for (const Action& action : actions)
    if (const auto* kind = std::get_if<Kind>(&action)) found.push_back(*kind);
  return found;
}

}  // namespace carillon::schedule::testing
