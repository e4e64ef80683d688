#include "carillon/graph/faults.h"

#include <algorithm>

namespace carillon::graph {

const Fault* Faults::of(int row) const {
  const auto found = std::ranges::find(all_, row, &Fault::row);
  return found == all_.end() ? nullptr : &*found;
}

bool Faults::is_news(int row) const {
  return of(row) == nullptr;
}

void Faults::add(const Faults& others) {
  for (const Fault& fault : others.all_)
    if (is_news(fault.row)) all_.push_back(fault);
}

}  // namespace carillon::graph
