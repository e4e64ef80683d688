#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <dnnl.hpp>

#include "carillon/base/time.h"
#include "carillon/engine/cpu/kernel.h"
#include "carillon/engine/cpu/layout.h"
#include "carillon/engine/cpu/team.h"
#include "carillon/engine/cpu/weight_store.h"

namespace carillon::engine::cpu {

// Into how many parts a kernel is divided, so that a run can be stopped inside it: as many as cost at most a
// given share of its time, which is found by running it. Used while compiling, from one thread.
class Divider {
 public:
  // A primitive as it is made in the arena where it was asked for.
  struct Made {
    dnnl::primitive primitive;
    Desc scratchpad;
    std::string implementation;
  };
  struct Choice {
    Made made;
    int parts = 1;
  };
  static constexpr int most_parts = 512;
  // No part is made shorter than this on average: stopping sooner would gain nothing.
  static constexpr Duration least_part = std::chrono::microseconds{4};

  // `cost`: in [0, 1], of the kernel's time.
  Divider(const dnnl::engine& engine, double cost) : engine_(engine), cost_(cost) {}

  // Of `made`, which was made in an arena of `parts`, and of what `again` makes in other arenas: that with the
  // most parts, powers of 2 up to most_parts, that takes at most 1 + cost times as long as `made` on one
  // thread. Both are measured in turns, in less than 30 ms or in 4 runs of each. Only what is the same
  // implementation counts. `arguments`: all but the scratchpad. Throws dnnl::error.
  Choice choose(Made made, int parts, const std::vector<DnnlKernel::Argument>& arguments,
                const std::function<std::optional<Made>()>& again);

 private:
  struct Trial;
  Duration time(Trial& trial);
  Arena& arena(int parts);

  dnnl::engine engine_;
  double cost_;
  std::map<int, std::unique_ptr<Arena>> arenas_;
  std::vector<HostBlock> memory_;  // of the operands, by number; grows
};

}  // namespace carillon::engine::cpu
