#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "carillon/base/bytes.h"
#include "carillon/controller/calls/service.h"

namespace carillon::frontend {

// What a server's processes may have of memory, what they have resident, and what its parts take.
struct MemoryFigures {
  Bytes limit;
  Bytes resident;
  std::vector<std::pair<std::string, Bytes>> parts;
};
// From any thread, when metrics are asked for.
using LookAtMemory = std::function<MemoryFigures(const controller::ServerStatistics&)>;

}  // namespace carillon::frontend
