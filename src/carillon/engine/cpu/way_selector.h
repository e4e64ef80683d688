#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include <dnnl.hpp>

#include "carillon/base/result.h"
#include "carillon/engine/cpu/candidates.h"
#include "carillon/engine/cpu/plan.h"
#include "carillon/engine/cpu/plan_builder.h"
#include "carillon/engine/cpu/weight_store.h"
#include "carillon/graph/graph.h"

namespace carillon::engine::cpu {

// Which ways the plans of one model take. The first size that it is asked for, the largest, decides between
//
//   rules    what lowerings do without candidates
//   chosen   kernel by kernel, the candidate that is clearly faster on operands as the rules lay them
//   blocked  likewise, but convolutions have channels in blocks of 16
//
// by whole runs in turns, in which reorders count and kernels find in the caches what they find: another than
// the rules must take clearly less (by 3%: the sum of the least times of kernels differs by less than 1% from
// one measurement to the next). All other sizes follow, as they share the weights, of which kernels then have
// but those candidates that take them as they are packed. Plans are measured on the calling thread alone.
//
// Used while compiling, from one thread.
class WaySelector {
 public:
  // `budget` is for all sizes together, of which the first takes at most half, and so on; less than it takes
  // to run everything three times is exceeded by that. 0: what is kept, else the rules.
  WaySelector(const dnnl::engine& engine, KernelChoices& kept, Duration budget, const Clock& clock)
      : engine_(engine), chooser_(kept, clock), left_(budget), measures_(budget > Duration{0}) {}

  // Makes the plan in these ways, with constants packed there.
  using Make = std::function<Result<PlanParts>(WeightStore&, const Ways&)>;

  // In which ways to make the plan of `graph`, which is made for `parts` parts. Until done() the plan may
  // measure its kernels as it is made.
  Result<Ways> select(const graph::Graph& graph, int parts, const Make& make);
  // The plan was made once: if it is again, it is the same.
  void done() { chooser_.freeze(); }

  // "rules", "chosen" or "blocked"; empty before the first.
  const std::string& way() const { return way_; }
  // As another selector found.
  void follow(const std::string& way) { way_ = way; }

 private:
  Result<std::string> measure(const graph::Graph& graph, std::map<std::string, double> shares, Duration budget,
                              const Make& make);

  dnnl::engine engine_;
  Chooser chooser_;
  Duration left_;
  bool measures_;
  std::string way_;
};

}  // namespace carillon::engine::cpu
