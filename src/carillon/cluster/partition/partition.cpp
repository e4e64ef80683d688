#include "carillon/cluster/partition/partition.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "carillon/cluster/partition/prove.h"

namespace carillon::cluster {
namespace {

// Groups are alike where nothing is in force.
void number_by_first_models(const Problem& problem, Division& division) {
  std::vector<int> number(static_cast<std::size_t>(problem.groups), no_group);
  int next = 0;
  for (int& group : division) {
    int& known = number[static_cast<std::size_t>(group)];
    if (known == no_group) known = next++;
    group = known;
  }
}

// Why a problem whose sums are well has no division, or none that is known. `closest` breaks its bounds the
// least.
Error none(const Problem& problem, const Figures& closest, bool proved, const PartitionOptions& options) {
  if (problem.max_move) {
    Problem unbounded = problem;
    unbounded.max_move.reset();
    const Figures other = measure(unbounded, search(unbounded, options.search));
    if (other.feasible)
      return {
          ErrorCode::invalid_argument,
          fmt::format("--max-move {} is too small: no division {} that keeps memory_bytes and max_rate_rps "
                      "and moves so little; one that costs {} does",
                      *problem.max_move, proved ? "exists" : "was found", other.move_cost)};
  }
  const std::string_view none = proved ? "no division can exist" : "no division was found";
  for (std::size_t g = 0; g < closest.groups.size(); ++g) {
    const Group& group = closest.groups[g];
    if (group.peak_bytes > problem.memory_bytes)
      return {
          ErrorCode::invalid_argument,
          fmt::format("{}: in the closest one the {} models of group {} take {} bytes, static_bytes and the "
                      "largest dynamic_bytes, but memory_bytes is {}; give more groups or memory",
                      none, group.models.size(), g, group.peak_bytes, problem.memory_bytes)};
    if (problem.max_micro_rps && group.micro_rps > *problem.max_micro_rps)
      return {ErrorCode::invalid_argument,
              fmt::format(
                  "{}: in the closest one the {} models of group {} have a rate of {} requests per second, "
                  "but max_rate_rps is {}; give more groups or a larger bound",
                  none, group.models.size(), g, in_rps(group.micro_rps), in_rps(*problem.max_micro_rps))};
  }
  return {ErrorCode::internal, std::string(none)};
}

}  // namespace

Result<Partition> partition(const Problem& problem, const PartitionOptions& options) {
  if (const auto possible = check_sums(problem); !possible) return std::unexpected(possible.error());
  Partition found{.division = search(problem, options.search)};
  found.figures = measure(problem, found.division);
  found.bound = objective_bound(problem);
  if (!found.figures.feasible || found.figures.objective > found.bound + tolerance) {
    const bool known = found.figures.feasible;
    Proof proof = prove(problem, known ? std::optional(found.division) : std::nullopt, options.proof_seconds);
    found.bound = std::max(found.bound, proof.bound);
    // The search's own wherever CBC's is as good, so that the answer does not depend on the time that CBC
    // has.
    if (proof.division &&
        (!known || measure(problem, *proof.division).objective < found.figures.objective - tolerance)) {
      found.division = *std::move(proof.division);
      found.figures = measure(problem, found.division);
    }
    if (!found.figures.feasible)
      return std::unexpected(none(problem, found.figures, proof.infeasible, options));
  }
  if (problem.current.empty()) {
    number_by_first_models(problem, found.division);
    found.figures = measure(problem, found.division);
  }
  found.bound = std::min(found.bound, found.figures.objective);
  found.proved = found.figures.objective <= found.bound + tolerance;
  return found;
}

}  // namespace carillon::cluster
