#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/cluster/partition/partition.h"

namespace carillon::cluster {

// Parses {"memory_bytes": 8e9, "max_rate_rps": 5000, "models": [{"name": "resnet50", "rate_rps": 120,
// "static_bytes": 1e8, "dynamic_bytes": 3e7, "move_cost": 1}]}. `where` (the file's name) opens every error,
// which goes on with the place in the document, what was there and what would be right.
//
// Optional are max_rate_rps (no bound), dynamic_bytes (0), and move_cost: static_bytes, as loading weights is
// what a move takes, and takes time by their size. Costs are given for all models or for none, as bytes and
// another unit have no sum. Rates are rounded to millionths of a request per second.
//
// `groups` is Problem::groups; more than models, or none, is an error, too.
Result<Problem> parse_problem(std::string_view json, std::string_view where, std::int64_t groups);
Result<Problem> read_problem(const std::filesystem::path& file, std::int64_t groups);

// How a division in force differs from the problem in its models.
struct Changes {
  std::size_t added = 0;    // models that are in no group
  std::size_t removed = 0;  // models of groups that are not wanted any more, and are left out
};

// Fills problem.current from a division as to_json() writes it: of each group the names in "models" count. A
// file that has none of the problem's models is an error.
Result<Changes> parse_current(std::string_view json, std::string_view where, Problem& problem);
Result<Changes> read_current(const std::filesystem::path& file, Problem& problem);

// The names of each group's models, from a division that to_json() wrote. Nothing else in the file counts.
// Errors: no group, more than most_groups, a name that is empty or comes twice.
using GroupNames = std::vector<std::vector<std::string>>;
Result<GroupNames> parse_group_names(std::string_view json, std::string_view where);
Result<GroupNames> read_group_names(const std::filesystem::path& file);

// One JSON object: {"groups": [{"models", "rate_rps", "static_bytes", "peak_bytes"}], "load_imbalance",
// "memory_imbalance", "move_cost", "objective", "bound", "proved"}; of a problem with a division in force
// also "changes": {"moved", "added", "removed"}.
std::string to_json(const Problem& problem, const Partition& partition, const Changes& changes);

// The same for people: a line a group, with the names of the first models.
std::string to_table(const Problem& problem, const Partition& partition, const Changes& changes);

}  // namespace carillon::cluster
