#pragma once

#include <functional>
#include <span>

namespace carillon::simulate::testing::broken {

struct World;

// A way to break one of the checker's promises.
struct Fault {
  const char* found;  // the problem that it must lead to
  std::function<void(World&)> plant;
};

// By whose promise it is.
std::span<const Fault> by_requests();
std::span<const Fault> by_devices();
std::span<const Fault> by_runs();
std::span<const Fault> by_decisions();
std::span<const Fault> by_figures();
std::span<const Fault> by_classes();

}  // namespace carillon::simulate::testing::broken
